#include "pool/shared.h"

#include <fmt/format.h>

namespace pgf::pool {

static constexpr std::uint64_t kClaimed = 1, kPoolBits = 20, kPoolMask = (1 << kPoolBits) - 1;

static std::uint64_t hunger_mark(Usec since, std::uint32_t pool) {
  return static_cast<std::uint64_t>(since / kMillisecond) << (kPoolBits + 1) | (pool & kPoolMask) << 1;
}

void Hunger::raise(Usec since, std::uint32_t pool) {
  const std::uint64_t mine = hunger_mark(since, pool);
  std::uint64_t now = mark_.load(std::memory_order_relaxed);
  while ((now == 0 || mine < (now & ~kClaimed)) && !mark_.compare_exchange_weak(now, mine, std::memory_order_acq_rel)) {
  }
}

void Hunger::settle(std::uint32_t pool) {
  std::uint64_t now = mark_.load(std::memory_order_relaxed);
  while (now && (now >> 1 & kPoolMask) == (pool & kPoolMask) &&
         !mark_.compare_exchange_weak(now, 0, std::memory_order_acq_rel)) {
  }
}

void Hunger::left(Usec since, std::uint32_t pool) {
  const std::uint64_t mine = hunger_mark(since, pool);
  std::uint64_t now = mark_.load(std::memory_order_relaxed);
  while ((now & ~kClaimed) == mine && !mark_.compare_exchange_weak(now, 0, std::memory_order_acq_rel)) {
  }
}

bool Hunger::before(std::uint64_t mark, Usec since, std::uint32_t pool) {
  return mark && (mark >> 1 & kPoolMask) != (pool & kPoolMask) && mark < hunger_mark(since, 0);
}

bool Hunger::claim(Usec since, std::uint32_t pool) {
  std::uint64_t now = mark_.load(std::memory_order_relaxed);
  return !(now & kClaimed) && before(now, since, pool) &&
         mark_.compare_exchange_strong(now, now | kClaimed, std::memory_order_acq_rel);
}

PoolShared::PoolShared(DatabaseShared& database_, UserShared& user_, int workers, std::uint32_t number_)
    : database(database_),
      user(user_),
      number(number_),
      idle_(static_cast<std::size_t>(workers)),
      fronts_(static_cast<std::size_t>(workers)) {}

std::shared_ptr<const Welcome> PoolShared::welcome() const {
  std::lock_guard lock(mutex_);
  return welcome_;
}

void PoolShared::set_welcome(std::shared_ptr<const Welcome> welcome) {
  std::lock_guard lock(mutex_);
  welcome_ = std::move(welcome);
}

void PoolShared::end_generation() {
  generation.fetch_add(1);
  set_welcome(nullptr);
}

PoolShared::LoginError PoolShared::login_error() const {
  std::lock_guard lock(mutex_);
  return login_error_;
}

void PoolShared::set_login_error(LoginError error) {
  std::lock_guard lock(mutex_);
  login_error_ = std::move(error);
}

std::string PoolShared::unreachable() const {
  std::lock_guard lock(mutex_);
  return unreachable_;
}

void PoolShared::set_unreachable(std::string report) {
  std::lock_guard lock(mutex_);
  unreachable_ = std::move(report);
}

Permit Permit::take(PoolShared& pool, int pool_limit, const config::PoolPolicy& policy, bool check_shared,
                    Refused& why) {
  Permit permit;
  why = Refused::none;
  if (!pool.servers.take(pool_limit, check_shared)) {
    why = Refused::pool;
    return permit;
  }
  if (!pool.database.servers.take(check_shared ? policy.max_db_connections : 0)) {
    pool.servers.put();
    why = Refused::database;
    return permit;
  }
  if (!pool.user.servers.take(check_shared ? policy.max_user_connections : 0)) {
    pool.database.servers.put();
    pool.servers.put();
    why = Refused::user;
    return permit;
  }
  permit.pool_ = &pool;
  return permit;
}

void Permit::reset() {
  if (!pool_) return;
  pool_->user.servers.put();
  pool_->database.servers.put();
  pool_->servers.put();
  pool_ = nullptr;
}

void Permit::inherited() {
  if (!pool_) return;
  pool_->servers.inherited();
  pool_->database.servers.inherited();
  pool_->user.servers.inherited();
}

void Permit::want(PoolShared& pool, const config::PoolPolicy& policy, Refused why, Usec waited) {
  pool.barred.store(true);  // first: whoever is told looks at it
  if (why == Refused::pool) pool.servers.stake()->want(policy.pool_size, waited);
  if (why == Refused::database) pool.database.servers.stake()->want(policy.max_db_connections, waited);
  if (why == Refused::user) pool.user.servers.stake()->want(policy.max_user_connections, waited);
}

void Permit::set_limits(PoolShared& pool, const config::PoolPolicy& policy) {
  if (!pool.servers.stake()) return;
  pool.servers.stake()->set_limit(policy.pool_size);
  pool.database.servers.stake()->set_limit(policy.max_db_connections);
  pool.user.servers.stake()->set_limit(policy.max_user_connections);
}

// The console is each process's own.
template <class T>
T& Directory::named(Map<T>& map, const std::string& name, char kind) {
  std::unique_ptr<T>& slot = map[name];
  if (!slot) {
    slot = std::make_unique<T>();
    slot->name = name;
    if (kind != 'd' || name != "pgbouncer") {
      slot->servers.share(ledger_, fmt::format("{} servers {}", kind, name));
      slot->clients.share(ledger_, fmt::format("{} clients {}", kind, name));
    }
  }
  return *slot;
}

template <class Map>
static auto values(const Map& map) {
  std::vector<decltype(map.begin()->second.get())> all;
  for (const auto& [key, value] : map) all.push_back(value.get());
  return all;
}

PoolShared& Directory::pool(const std::string& database, const std::string& user) {
  std::lock_guard lock(mutex_);
  std::unique_ptr<PoolShared>& slot = pools_[{database, user}];
  if (!slot) {
    slot = std::make_unique<PoolShared>(named(databases_, database, 'd'), named(users_, user, 'u'), workers_,
                                        static_cast<std::uint32_t>(pools_.size()));
    if (database != "pgbouncer")
      slot->servers.share(ledger_, fmt::format("p servers {}{}{}", database, std::string_view("\0", 1), user));
  }
  return *slot;
}

DatabaseShared& Directory::database(const std::string& name) {
  std::lock_guard lock(mutex_);
  return named(databases_, name, 'd');
}

UserShared& Directory::user(const std::string& name) {
  std::lock_guard lock(mutex_);
  return named(users_, name, 'u');
}

DatabaseShared* Directory::find_database(const std::string& name) {
  std::lock_guard lock(mutex_);
  auto it = databases_.find(name);
  return it == databases_.end() ? nullptr : it->second.get();
}

std::vector<PoolShared*> Directory::pools() const {
  std::lock_guard lock(mutex_);
  return values(pools_);
}
std::vector<UserShared*> Directory::users() const {
  std::lock_guard lock(mutex_);
  return values(users_);
}
std::vector<DatabaseShared*> Directory::databases() const {
  std::lock_guard lock(mutex_);
  return values(databases_);
}

}  // namespace pgf::pool
