#pragma once
// Prepared statements of transaction and statement mode (behaviour.md section 9): one cache of statement texts for the
// whole program, a map per client, an LRU per server. No I/O here; session/relay rewrites messages with it.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace pgf::wire {

// One distinct (query text, parameter count, OIDs). Lives while a client or server refers to it.
struct Statement {
  std::uint64_t id;         // n of PGBOUNCER_<n>
  std::string server_name;  // "PGBOUNCER_<n>"
  std::string tail;         // query NUL count oids: what follows the name in Parse
};
using StatementPtr = std::shared_ptr<const Statement>;

// Shared by all workers; sharded by hash, a mutex per shard. Entries are dropped when the last user is gone (weak
// entries swept as the table grows). Identical text afterwards gets a new number.
class StatementTable {
 public:
  StatementPtr intern(std::string_view tail);
  std::size_t size() const;  // live statements
  // Of their texts. Cheap: asked for at every Parse.
  std::size_t bytes() const { return bytes_->load(std::memory_order_relaxed); }
  // Numbers below `id` are taken: servers that were taken over know statements by them.
  std::uint64_t next_id() const { return next_id_.load(std::memory_order_relaxed); }
  void start_at(std::uint64_t id) { next_id_.store(std::max(id, next_id()), std::memory_order_relaxed); }

 private:
  struct Shard;
  static constexpr int kShards = 16;
  std::unique_ptr<Shard[]> shards_;
  std::atomic<std::uint64_t> next_id_{1};  // any worker
  // Written by any worker: whoever adds a text, or drops the last reference to one. Outlives the table if a statement
  // does.
  std::shared_ptr<std::atomic<std::size_t>> bytes_ = std::make_shared<std::atomic<std::size_t>>(0);

 public:
  StatementTable();
  ~StatementTable();
};

// What one client has prepared: its own names, and which of them it used last.
class ClientStatements {
 public:
  StatementPtr find(std::string_view name);                 // marks it as used; 0 heap allocations
  bool add(std::string_view name, StatementPtr statement);  // false: the name is in use
  bool remove(std::string_view name);
  bool forget_oldest();  // the name that was not used for longest; false: only one is left, which stays
  void clear();
  std::size_t size() const { return map_.size(); }
  template <class F>
  void each(F&& f) const {  // the longest unused first: adding them in this order gives the same order again
    for (auto it = order_.rbegin(); it != order_.rend(); ++it) f(**it, *map_.find(**it)->second.statement);
  }

 private:
  struct Item {
    StatementPtr statement;
    std::list<const std::string*>::iterator place;
  };
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
  };
  std::list<const std::string*> order_;  // keys of map_; front = most recently used
  std::unordered_map<std::string, Item, Hash, std::equal_to<>> map_;
};

// What one server connection has prepared. A plan belongs to an epoch: when the shape of a result changes (DDL), the
// plans of earlier epochs are stale, and PostgreSQL would refuse to run them.
//
// A statement whose Parse is not answered yet may be counted on in the same batch only (Owed::batch): an error before
// it makes the server skip that Parse, and what is said behind the next Sync is not skipped with it.
class ServerStatements {
 public:
  bool has(const Statement& statement) const;  // of whatever epoch: the name is taken there
  // Prepared, not stale, and sure to be there.
  bool ready(const Statement& statement, std::uint32_t epoch, std::uint32_t batch = 0) const;
  // ready(), and most recently used from here on: Bind and Describe refresh, Parse hits do not.
  bool use(const Statement& statement, std::uint32_t epoch, std::uint32_t batch = 0);
  void add(StatementPtr statement, std::uint32_t epoch = 0, std::uint32_t batch = 0);  // most recently used
  void confirm(const Statement& statement);                                            // its ParseComplete came
  bool remove(const Statement& statement);
  // The least recently used one if size() > limit, removed from here; null otherwise. Call until null.
  StatementPtr evict(std::size_t limit);
  void clear();
  std::size_t size() const { return map_.size(); }

 private:
  std::list<StatementPtr> order_;  // front = most recently used
  struct Item {
    std::list<StatementPtr>::iterator place;
    std::uint32_t epoch, batch;
    bool confirmed = false;
    bool sure(std::uint32_t now) const { return confirmed || batch == now; }
  };
  std::unordered_map<std::uint64_t, Item> map_;
};

// Which statements some SQL forgets, if it does nothing else: `name` as PostgreSQL would fold it for "DEALLOCATE name",
// "deallocate prepare "Name";" and so on, `all` for DEALLOCATE ALL and DISCARD ALL. Neither for anything else.
struct Forgets {
  bool all = false;
  std::string name;
};
Forgets forgotten_by(std::string_view sql);
// Most SQL begins otherwise.
inline bool may_forget(std::uint8_t first) { return (first | 0x20) == 'd' || first <= ' '; }

}  // namespace pgf::wire
