#pragma once
// Prepared statements of transaction and statement mode (behaviour.md section 9): one cache of statement texts for the
// whole program, a map per client, an LRU per server. No I/O here; session/relay rewrites messages with it.
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
  std::uint64_t id;          // n of PGBOUNCER_<n>
  std::string server_name;   // "PGBOUNCER_<n>"
  std::string tail;          // query NUL count oids: what follows the name in Parse
};
using StatementPtr = std::shared_ptr<const Statement>;

// Shared by all workers; sharded by hash, a mutex per shard. Entries are dropped when the last user is gone (weak
// entries swept as the table grows). Identical text afterwards gets a new number.
class StatementTable {
 public:
  StatementPtr intern(std::string_view tail);
  std::size_t size() const;       // live statements
  std::size_t bytes() const;      // of their texts

 private:
  struct Shard;
  static constexpr int kShards = 16;
  std::unique_ptr<Shard[]> shards_;
  std::atomic<std::uint64_t> next_id_{1};  // any worker

 public:
  StatementTable();
  ~StatementTable();
};

// What one client has prepared: its own names.
class ClientStatements {
 public:
  StatementPtr find(std::string_view name) const;
  bool add(std::string_view name, StatementPtr statement);  // false: the name is in use
  bool remove(std::string_view name);
  void clear();
  std::size_t size() const;
  // 0 heap allocations in find().
 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
  };
  std::unordered_map<std::string, StatementPtr, Hash, std::equal_to<>> map_;
};

// What one server connection has prepared.
class ServerStatements {
 public:
  bool has(const Statement& statement) const;
  void touch(const Statement& statement);          // Bind and Describe refresh, Parse hits do not
  void add(StatementPtr statement);                // most recently used
  bool remove(const Statement& statement);
  // The least recently used one if size() > limit, removed from here; null otherwise. Call until null.
  StatementPtr evict(std::size_t limit);
  void clear();
  std::size_t size() const { return map_.size(); }

 private:
  std::list<StatementPtr> order_;  // front = most recently used
  std::unordered_map<std::uint64_t, std::list<StatementPtr>::iterator> map_;
};

}  // namespace pgf::wire
