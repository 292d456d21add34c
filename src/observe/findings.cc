#include "observe/findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

namespace pgf::observe {
namespace {

constexpr int kFew = 5;                     // queries say too little about a host
constexpr Usec kSlow = 5 * kSecond / 1000;  // no host is slow that answers faster
constexpr double kSlower = 4;               // times the others
constexpr Usec kLong = kSecond;             // who waits less comes on
constexpr double kBusy = 0.95;              // of a worker's time

std::string shown(Usec t) {
  if (t < 1000) return fmt::format("{} µs", t);
  if (t < kSecond) return fmt::format("{:.1f} ms", static_cast<double>(t) / 1e3);
  return fmt::format("{:.1f} s", static_cast<double>(t) / 1e6);
}

std::string counted(int n, std::string_view one) { return fmt::format("{} {}{}", n, one, n == 1 ? "" : "s"); }

struct Look {
  const Fleet& fleet;
  std::map<std::string_view, const DatabaseRow*> databases;
  std::map<std::string_view, const UserRow*> users;
  std::map<std::string_view, std::vector<const HostRow*>> hosts;  // by database
  std::map<std::string_view, std::vector<const PoolRow*>> pools;  // by database
  std::map<std::string_view, const RecentHost*> recent;           // by address

  Look(const Fleet& f, const std::vector<RecentHost>& recent_hosts) : fleet(f) {
    for (const DatabaseRow& d : f.databases) databases[d.name] = &d;
    for (const UserRow& u : f.users) users[u.name] = &u;
    for (const HostRow& h : f.hosts) hosts[h.database].push_back(&h);
    for (const PoolRow& p : f.pools) pools[p.database].push_back(&p);
    for (const RecentHost& h : recent_hosts) recent[h.address] = &h;
  }

  const RecentHost* lately(const HostRow& h) const {
    auto it = recent.find(h.address);
    return it != recent.end() && it->second->queries >= kFew ? it->second : nullptr;
  }
};

// The slowest host of a database, if it is much slower than the fastest.
std::optional<std::string> slow_host(const Look& look, const std::vector<const HostRow*>& hosts) {
  const RecentHost *slowest = nullptr, *fastest = nullptr;
  for (const HostRow* h : hosts) {
    const RecentHost* r = look.lately(*h);
    if (!r) continue;
    if (!slowest || r->median > slowest->median) slowest = r;
    if (!fastest || r->median < fastest->median) fastest = r;
  }
  if (!slowest || slowest->median < kSlow ||
      static_cast<double>(slowest->median) < kSlower * static_cast<double>(std::max<Usec>(fastest->median, 1)))
    return std::nullopt;
  return fmt::format("host {} is slow: half of its queries take {} or more, on {} it is {}", slowest->address,
                     shown(slowest->median), fastest->address, shown(fastest->median));
}

// A limit that other processes use up as well (budget = fleet).
std::optional<std::string> used_up_together(const Fleet& fleet, const PoolRow& pool) {
  for (const BudgetRow& b : fleet.budget) {
    if (b.members < 2 || b.held < b.configured || b.here >= b.held) continue;
    if ((b.database != pool.database && !b.database.empty()) || (b.user != pool.user && !b.user.empty())) continue;
    if (b.limit.find("client") != std::string::npos) continue;  // no limit of server connections
    return fmt::format("{} = {} is used up by {} processes together, {} of them here", b.limit, b.configured, b.members,
                       b.here);
  }
  return std::nullopt;
}

// Who holds most of the servers of a database.
std::string holder(const std::vector<const PoolRow*>& pools) {
  const PoolRow* most = *std::ranges::max_element(pools, {}, [](const PoolRow* p) { return servers(*p); });
  return fmt::format("user {} holds {} of them", most->user, servers(*most));
}

std::string why_it_waits(const Look& look, const PoolRow& pool, const RecentPool& recent) {
  auto db = look.databases.find(pool.database);
  const DatabaseRow* d = db == look.databases.end() ? nullptr : db->second;
  if (look.fleet.suspended) return "everything is suspended";
  if (look.fleet.paused) return "everything is paused";
  if (d && d->paused) return "the database is paused";

  auto of = look.hosts.find(pool.database);
  static const std::vector<const HostRow*> kNone;
  const auto& hosts = of == look.hosts.end() ? kNone : of->second;
  if (!hosts.empty() && std::ranges::all_of(hosts, [](const HostRow* h) { return h->state == "out"; })) {
    const HostRow& h = *hosts.front();
    return fmt::format("no host can be reached{}{}", h.last_error.empty() ? "" : ": ", h.last_error);
  }
  if (auto slow = slow_host(look, hosts)) return *slow;
  if (auto others = used_up_together(look.fleet, pool)) return *others;
  if (d && d->max_connections > 0 && d->current_connections >= d->max_connections)
    return fmt::format("max_db_connections = {} is used up, {}", d->max_connections,
                       holder(look.pools.at(pool.database)));
  auto user = look.users.find(pool.user);
  if (user != look.users.end() && user->second->max_user_connections > 0 &&
      user->second->current_connections >= user->second->max_user_connections)
    return fmt::format("max_user_connections = {} is used up", user->second->max_user_connections);
  const int all = servers(pool);
  if (pool.pool_size > 0 && all >= pool.pool_size && pool.sv_login == all)
    return all == 1 ? "its only server is logging in" : fmt::format("all {} servers are logging in", all);
  if (pool.pool_size > 0 && all >= pool.pool_size) {
    std::string text = "the pool is too small: its only server is busy (pool_size = 1)";
    if (all > 1)
      text = fmt::format("the pool is too small: all {} servers are busy (pool_size = {})", all, pool.pool_size);
    if (pool.pool_mode == config::PoolMode::session)
      text += "; a server stays with its client until that leaves (pool_mode = session)";
    else if (recent.in_transaction > 0.1 && recent.in_query < 0.5 * recent.in_transaction)
      text += fmt::format("; transactions have no query running for {:.0f} % of their time",
                          100 * (1 - recent.in_query / recent.in_transaction));
    return text;
  }
  if (pool.sv_login > 0) return fmt::format("{} being opened", pool.sv_login == 1 ? "a server is" : "servers are");
  return "they are about to be served";
}

// How many there are, and how many there may be: of all processes, if somebody counts them together.
std::pair<int, int> clients_of(const Fleet& fleet) {
  for (const BudgetRow& b : fleet.budget)
    if (b.limit == "max_client_conn") return b.held >= 0 ? std::pair(b.held, b.configured) : std::pair(b.here, b.share);
  return {0, 0};
}

}  // namespace

int servers(const PoolRow& p) {
  return p.sv_active + p.sv_active_cancel + p.sv_being_canceled + p.sv_idle + p.sv_used + p.sv_tested + p.sv_login;
}

std::vector<Finding> findings(const Fleet& fleet, const std::vector<RecentPool>& recent,
                              const std::vector<RecentHost>& recent_hosts) {
  const Look look(fleet, recent_hosts);
  std::vector<Finding> all;
  std::vector<std::size_t> waiting;
  for (std::size_t i = 0; i < fleet.pools.size(); ++i)
    if (fleet.pools[i].cl_waiting > 0) waiting.push_back(i);
  std::ranges::stable_sort(waiting, std::greater(), [&](std::size_t i) { return fleet.pools[i].maxwait; });
  const std::size_t room = kMaxFindings - 5;  // what follows wants to be seen, too
  for (std::size_t n = 0; n < waiting.size() && n < room; ++n) {
    const PoolRow& p = fleet.pools[waiting[n]];
    const RecentPool lately = waiting[n] < recent.size() ? recent[waiting[n]] : RecentPool{};
    all.push_back({p.maxwait >= kLong,
                   fmt::format("{} of {} / {} wait{}, the first for {}", counted(p.cl_waiting, "client"), p.database,
                               p.user, p.cl_waiting == 1 ? "s" : "", shown(p.maxwait)),
                   why_it_waits(look, p, lately), p.database, p.user});
  }
  if (waiting.size() > room)
    all.push_back({true, fmt::format("clients of {} more pools wait", waiting.size() - room), "see the pools below"});

  auto add = [&](Finding f) {
    if (all.size() < kMaxFindings) all.push_back(std::move(f));
  };
  if (fleet.ending) add({true, "a shutdown is under way", "it waits for clients or servers to leave"});
  if (fleet.paused && waiting.empty()) add({false, "everything is paused", "RESUME in the console ends it"});
  if (auto [clients, limit] = clients_of(fleet); limit > 0) {
    if (clients * 10 >= limit * 9)
      add({clients >= limit, fmt::format("{} of {} clients are connected", clients, limit),
           "more than max_client_conn are turned away"});
  }
  for (const WorkerRow& w : fleet.workers)
    if (w.busy >= kBusy)
      add({false, fmt::format("worker {} has no time left", w.worker),
           fmt::format("it is busy for {:.0f} % of the time with {}", 100 * w.busy, counted(w.clients, "client"))});
  for (const HostRow& h : fleet.hosts)
    if (h.state == "out")
      add({false, fmt::format("host {} of {} is out", h.address.empty() ? h.host : h.address, h.database),
           h.last_error.empty() ? "it could not be reached" : h.last_error});
  for (const auto& [database, hosts] : look.hosts) {
    auto of = look.pools.find(database);
    const bool waited =
        of != look.pools.end() && std::ranges::any_of(of->second, [](const PoolRow* p) { return p->cl_waiting > 0; });
    if (waited) continue;  // said already
    if (auto slow = slow_host(look, hosts)) add({false, fmt::format("{} has a slow host", database), *slow});
  }
  return all;
}

}  // namespace pgf::observe
