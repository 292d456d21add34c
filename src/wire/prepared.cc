#include "wire/prepared.h"

#include <cctype>

namespace pgf::wire {

struct StatementTable::Shard {
  mutable std::mutex mutex;
  // By hash of the text. A statement dies with its last user; what is left of it here is reused or swept later.
  std::unordered_map<std::size_t, std::vector<std::weak_ptr<const Statement>>> map;
  std::size_t inserts_until_sweep = 64;

  void sweep() {
    std::size_t live = 0;
    for (auto it = map.begin(); it != map.end();) {
      std::erase_if(it->second, [](const auto& w) { return w.expired(); });
      live += it->second.size();
      it = it->second.empty() ? map.erase(it) : std::next(it);
    }
    inserts_until_sweep = 64 + live;  // amortised: a sweep costs no more than the inserts since the last one
  }
};

StatementTable::StatementTable() : shards_(std::make_unique<Shard[]>(kShards)) {}
StatementTable::~StatementTable() = default;

StatementPtr StatementTable::intern(std::string_view tail) {
  std::size_t hash = std::hash<std::string_view>{}(tail);
  Shard& shard = shards_[hash % kShards];
  std::lock_guard lock(shard.mutex);
  auto& same_hash = shard.map[hash];
  std::weak_ptr<const Statement>* expired = nullptr;
  for (auto& weak : same_hash) {
    StatementPtr s = weak.lock();
    if (!s)
      expired = &weak;
    else if (s->tail == tail)
      return s;
  }
  std::uint64_t id = next_id_.fetch_add(1, std::memory_order_relaxed);
  StatementPtr fresh(new Statement{id, "PGBOUNCER_" + std::to_string(id), std::string(tail)},
                     [total = bytes_](const Statement* s) {
                       total->fetch_sub(s->tail.size(), std::memory_order_relaxed);
                       delete s;
                     });
  bytes_->fetch_add(tail.size(), std::memory_order_relaxed);
  if (expired) {  // a text that comes and goes does not pile up dead entries for the next look to walk over
    *expired = fresh;
    return fresh;
  }
  same_hash.push_back(fresh);
  if (--shard.inserts_until_sweep == 0) shard.sweep();
  return fresh;
}

std::size_t StatementTable::size() const {
  std::size_t n = 0;
  for (int i = 0; i < kShards; ++i) {
    std::lock_guard lock(shards_[i].mutex);
    for (const auto& [hash, list] : shards_[i].map)
      for (const auto& weak : list) n += !weak.expired();
  }
  return n;
}

StatementPtr ClientStatements::find(std::string_view name) {
  auto it = map_.find(name);
  if (it == map_.end()) return nullptr;
  order_.splice(order_.begin(), order_, it->second.place);
  return it->second.statement;
}
bool ClientStatements::add(std::string_view name, StatementPtr statement) {
  auto [it, fresh] = map_.try_emplace(std::string(name));
  if (!fresh) return false;
  order_.push_front(&it->first);
  it->second = {std::move(statement), order_.begin()};
  return true;
}
bool ClientStatements::remove(std::string_view name) {
  auto it = map_.find(name);
  if (it == map_.end()) return false;
  order_.erase(it->second.place);
  map_.erase(it);
  return true;
}
bool ClientStatements::forget_oldest() { return map_.size() > 1 && remove(*order_.back()); }
void ClientStatements::clear() {
  map_.clear();
  order_.clear();
}

bool ServerStatements::has(const Statement& statement) const { return map_.contains(statement.id); }

bool ServerStatements::ready(const Statement& statement, std::uint32_t epoch, std::uint32_t batch) const {
  auto it = map_.find(statement.id);
  return it != map_.end() && it->second.epoch == epoch && it->second.sure(batch);
}

bool ServerStatements::use(const Statement& statement, std::uint32_t epoch, std::uint32_t batch) {
  auto it = map_.find(statement.id);
  if (it == map_.end() || it->second.epoch != epoch || !it->second.sure(batch)) return false;
  order_.splice(order_.begin(), order_, it->second.place);
  return true;
}

void ServerStatements::confirm(const Statement& statement) {
  if (auto it = map_.find(statement.id); it != map_.end()) it->second.confirmed = true;
}

void ServerStatements::add(StatementPtr statement, std::uint32_t epoch, std::uint32_t batch) {
  auto [it, fresh] = map_.try_emplace(statement->id);
  it->second.epoch = epoch;
  it->second.batch = batch;
  if (!fresh) {
    order_.splice(order_.begin(), order_, it->second.place);
    return;
  }
  order_.push_front(std::move(statement));
  it->second.place = order_.begin();
}

bool ServerStatements::remove(const Statement& statement) {
  auto it = map_.find(statement.id);
  if (it == map_.end()) return false;
  order_.erase(it->second.place);
  map_.erase(it);
  return true;
}

StatementPtr ServerStatements::evict(std::size_t limit) {
  if (map_.size() <= limit || map_.empty()) return nullptr;
  StatementPtr victim = order_.back();
  map_.erase(victim->id);
  order_.pop_back();
  return victim;
}

void ServerStatements::clear() {
  map_.clear();
  order_.clear();
}

Forgets forgotten_by(std::string_view sql) {
  auto space = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  auto letter = [](char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_' || (c & 0x80); };
  auto skip = [&] {
    while (!sql.empty() && space(sql.front())) sql.remove_prefix(1);
  };
  // An identifier as the server's scanner reads it: folded to lower case unless quoted.
  auto word = [&](bool& quoted) {
    std::string out;
    skip();
    quoted = !sql.empty() && sql.front() == '"';
    if (quoted) {
      for (std::size_t i = 1; i < sql.size(); ++i) {
        if (sql[i] == '"') {
          if (i + 1 == sql.size() || sql[i + 1] != '"') {
            sql.remove_prefix(i + 1);
            return out;
          }
          ++i;
        }
        out += sql[i];
      }
      return std::string();  // no closing quote
    }
    while (!sql.empty() &&
           (letter(sql.front()) ||
            (!out.empty() && (std::isdigit(static_cast<unsigned char>(sql.front())) || sql.front() == '$')))) {
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(sql.front())));
      sql.remove_prefix(1);
    }
    return out;
  };
  bool quoted;
  skip();
  if (sql.empty() || (sql.front() | 0x20) != 'd') return {};  // most of what is asked
  const std::string verb = word(quoted);
  if (quoted || (verb != "deallocate" && verb != "discard")) return {};
  std::string name = word(quoted);
  if (verb == "deallocate" && name == "prepare" && !quoted) {
    skip();
    if (!sql.empty() && sql.front() != ';') name = word(quoted);
  }
  skip();
  if (sql.starts_with(';')) sql.remove_prefix(1);
  skip();
  if (!sql.empty()) return {};
  if (name == "all" && !quoted) return {true, {}};
  // Identifiers are cut at 63 bytes by the server: whoever relies on that is left to the server.
  if (verb == "discard" || name.size() >= 64) return {};
  return {false, std::move(name)};
}

}  // namespace pgf::wire
