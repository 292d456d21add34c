#include "wire/prepared.h"

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
  auto fresh = std::make_shared<const Statement>(Statement{id, "PGBOUNCER_" + std::to_string(id), std::string(tail)});
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

std::size_t StatementTable::bytes() const {
  std::size_t n = 0;
  for (int i = 0; i < kShards; ++i) {
    std::lock_guard lock(shards_[i].mutex);
    for (const auto& [hash, list] : shards_[i].map)
      for (const auto& weak : list)
        if (StatementPtr s = weak.lock()) n += s->tail.size();
  }
  return n;
}

StatementPtr ClientStatements::find(std::string_view name) const {
  auto it = map_.find(name);
  return it == map_.end() ? nullptr : it->second;
}
bool ClientStatements::add(std::string_view name, StatementPtr statement) {
  return map_.try_emplace(std::string(name), std::move(statement)).second;
}
bool ClientStatements::remove(std::string_view name) {
  auto it = map_.find(name);
  if (it == map_.end()) return false;
  map_.erase(it);
  return true;
}
void ClientStatements::clear() { map_.clear(); }
std::size_t ClientStatements::size() const { return map_.size(); }

bool ServerStatements::has(const Statement& statement) const { return map_.contains(statement.id); }

void ServerStatements::touch(const Statement& statement) {
  auto it = map_.find(statement.id);
  if (it != map_.end()) order_.splice(order_.begin(), order_, it->second);
}

void ServerStatements::add(StatementPtr statement) {
  auto [it, fresh] = map_.try_emplace(statement->id);
  if (!fresh) {
    order_.splice(order_.begin(), order_, it->second);
    return;
  }
  order_.push_front(std::move(statement));
  it->second = order_.begin();
}

bool ServerStatements::remove(const Statement& statement) {
  auto it = map_.find(statement.id);
  if (it == map_.end()) return false;
  order_.erase(it->second);
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

}  // namespace pgf::wire
