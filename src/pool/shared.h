#pragma once
// What the workers share about pools: the exact budgets, who has idle servers, who waits. Everything here is touched by
// several threads; each atomic says who writes it. Nothing here does I/O or reads a clock.
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "config/config.h"
#include "pool/hosts.h"
#include "pool/ledger.h"
#include "wire/params.h"

namespace pgf::pool {

inline constexpr int kMaxWorkers = 64;

// A number that must never pass its limit, whoever asks. Written by all workers. With a stake in a ledger the limit is
// for all processes that share it.
class Counter {
 public:
  bool take(int limit, bool yield = true) {  // limit <= 0: unlimited
    int now = value_.load(std::memory_order_relaxed);
    do {
      if (limit > 0 && now >= limit) return false;
    } while (!value_.compare_exchange_weak(now, now + 1, std::memory_order_acq_rel));
    if (!stake_ || stake_->take(limit, yield, now + 1)) return true;
    value_.fetch_sub(1, std::memory_order_acq_rel);
    return false;
  }
  void put() {
    value_.fetch_sub(1, std::memory_order_acq_rel);
    if (stake_) stake_->put();
  }
  int value() const { return value_.load(std::memory_order_relaxed); }  // in this process
  int total() const { return stake_ ? stake_->total() : value(); }      // in all that share
  void share(Ledger* ledger, std::string_view name) {                   // before anybody else knows this object
    if (ledger) stake_ = std::make_unique<Stake>(*ledger, name);
  }
  Stake* stake() const { return stake_.get(); }  // null: nobody shares
  bool owes() const { return stake_ && stake_->owes(); }
  void inherited() {  // what was just taken had been the process's before us
    if (stake_) stake_->inherited();
  }

 private:
  std::atomic<int> value_{0};
  std::unique_ptr<Stake> stake_;
};

// The pool whose client has waited longest for a place under a limit that several pools share and that the others never
// leave idle. Its turn comes: some pool gives up the next server that it frees, and nobody else takes the place.
// Written by all workers.
class Hunger {
 public:
  void raise(Usec since, std::uint32_t pool);  // an older one stays
  void settle(std::uint32_t pool);             // this pool has got a place, or wants none any more
  void left(Usec since, std::uint32_t pool);   // that client has left the queue
  // May `pool` take a place for a client that waits since then?
  bool yields(Usec since, std::uint32_t pool) const {
    return before(mark_.load(std::memory_order_relaxed), since, pool);
  }
  // The same question from who frees a server: true for one asker only.
  bool claim(Usec since, std::uint32_t pool);

 private:
  static bool before(std::uint64_t mark, Usec since, std::uint32_t pool);
  std::atomic<std::uint64_t> mark_{0};  // ms << 21 | pool << 1 | claimed; 0: nobody
};

struct UserShared {
  std::string name;
  Counter servers, clients;
  Hunger hunger;
};

struct DatabaseShared {
  std::string name;
  Counter servers, clients;
  Hunger hunger;
  std::atomic<bool> paused{false}, disabled{false};  // console
  std::atomic<bool> is_auto{false};
  // Plans prepared before are stale: raised by the worker whose server found one that no longer fits (DDL).
  std::atomic<std::uint32_t> plan_epoch{0};
  Writer writer;
};

// What a client is told at login besides its own values, taken from the pool's first server login.
struct Welcome {
  std::string untracked;   // raw ParameterStatus messages
  wire::ParamSet tracked;  // server defaults
};

// One pool: a database entry and the server user, over all workers.
class PoolShared {
 public:
  PoolShared(DatabaseShared& database, UserShared& user, int workers, std::uint32_t number);

  DatabaseShared& database;
  UserShared& user;
  const std::uint32_t number;
  Counter servers;                           // open or opening, cancel connections included
  std::atomic<int> cancels{0};               // those cancel connections; any worker
  std::atomic<int> usable{0};                // logged in; all workers
  std::atomic<bool> connecting{false};       // at most one login attempt at a time; taken by the worker that launches
  std::atomic<Usec> retry_at{0};             // no attempt before; written by the worker whose attempt failed
  std::atomic<bool> last_failed{false};      // the last attempt failed
  std::atomic<std::uint32_t> generation{0};  // RECONNECT and changed entries raise it: older servers are closed
  std::atomic<bool> taken_over{false};       // has servers from a process that did not say how they greet; any worker
  std::atomic<bool> barred{false};  // other processes hold the places: not asked again until there is news; any worker
  std::atomic<std::uint32_t> host_cursor{0};
  std::atomic<Usec> last_used{0};  // when some worker last saw a client or server here; 0: never, or cleaned up since

  // Bit w: worker w has a client queued here that no server was promised to. Each worker writes its own bit.
  alignas(64) std::atomic<std::uint64_t> waiting{0};
  // The same for replication clients, which want a new connection and nothing else: no idle server is sent to them.
  std::atomic<std::uint64_t> joining{0};
  // When the first client in each worker's queue began to wait; 0: nobody waits, or a server is on its way to that one.
  // Written by that worker when its queue gets another head, and set to 0 by whoever sends a server there.
  struct alignas(64) Front {
    std::atomic<Usec> since{0};
  };
  Front& front(int worker) { return fronts_[static_cast<std::size_t>(worker)]; }

  // Number of idle servers on each worker; written by that worker only, read by all.
  struct alignas(64) Idle {
    std::atomic<int> count{0};
    std::atomic<Usec> oldest{0};
  };
  Idle& idle(int worker) { return idle_[static_cast<std::size_t>(worker)]; }
  int workers() const { return static_cast<int>(idle_.size()); }

  // Welcome and last login error: rare, under the mutex.
  std::shared_ptr<const Welcome> welcome() const;
  void set_welcome(std::shared_ptr<const Welcome> welcome);
  void end_generation();  // the servers there are count as outdated, and so does what they said
  struct LoginError {
    std::string sqlstate, text;
  };
  LoginError login_error() const;
  void set_login_error(LoginError error);
  // What was wrong with each address when the last attempt failed; for clients that wait in vain.
  std::string unreachable() const;
  void set_unreachable(std::string report);

 private:
  std::vector<Idle> idle_;
  std::vector<Front> fronts_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Welcome> welcome_;
  LoginError login_error_;
  std::string unreachable_;
};

// One server connection's share of every budget. Taken before the connection is opened, given back by the destructor.
class Permit {
 public:
  Permit() = default;
  Permit(Permit&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)) {}
  Permit& operator=(Permit&& other) noexcept {
    reset();
    pool_ = std::exchange(other.pool_, nullptr);
    return *this;
  }
  ~Permit() { reset(); }

  enum class Refused { none, pool, database, user };
  // pool_limit is what the pool may have in this case (with reserve, or 2 x for cancels); others come from the policy.
  // check_shared false: the database's and user's limits do not apply (cancel requests) but are still counted.
  static Permit take(PoolShared& pool, int pool_limit, const config::PoolPolicy& policy, bool check_shared,
                     Refused& why);
  explicit operator bool() const { return pool_ != nullptr; }
  void reset();
  void inherited();  // the connection had been the process's before us

  // Other processes hold what take() was refused for, and a client waits since `waited`: they are told. Then try again.
  static void want(PoolShared& pool, const config::PoolPolicy& policy, Refused why, Usec waited);
  static void set_limits(PoolShared& pool, const config::PoolPolicy& policy);

 private:
  PoolShared* pool_ = nullptr;
};

// Names to shared objects. Objects live as long as the directory, so plain references are safe everywhere.
class Directory {
 public:
  explicit Directory(int workers, Ledger* ledger = nullptr) : workers_(workers), ledger_(ledger) {}
  PoolShared& pool(const std::string& database, const std::string& user);
  DatabaseShared& database(const std::string& name);
  UserShared& user(const std::string& name);
  DatabaseShared* find_database(const std::string& name);
  std::vector<PoolShared*> pools() const;
  std::vector<UserShared*> users() const;
  std::vector<DatabaseShared*> databases() const;

 private:
  template <class T>
  using Map = std::map<std::string, std::unique_ptr<T>>;
  template <class T>
  T& named(Map<T>& map, const std::string& name, char kind);

  int workers_;
  Ledger* ledger_;
  mutable std::mutex mutex_;
  Map<DatabaseShared> databases_;
  Map<UserShared> users_;
  std::map<std::pair<std::string, std::string>, std::unique_ptr<PoolShared>> pools_;
};

// A client may see places under a shared limit go round in other pools for this long, then it is the next.
inline constexpr Usec kFamine = 500 * kMillisecond;

// A foreign client may be overtaken by local ones for at most this long once it waits (design.md section 5).
inline constexpr Usec kOvertake = 2 * kMillisecond;

}  // namespace pgf::pool
