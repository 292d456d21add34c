#include "observe/foremost.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

namespace pgf::observe {
namespace {

// Candidates with how busy each is. If all fit, all are taken; else who has done nothing yet waits for his first day.
template <class Key>
void choose(std::set<Key>& chosen, std::size_t limit, const std::map<Key, std::uint64_t>& candidates) {
  std::erase_if(chosen, [&](const Key& key) { return !candidates.contains(key); });
  std::vector<std::pair<std::uint64_t, const Key*>> rest;
  for (const auto& [key, weight] : candidates)
    if ((weight > 0 || candidates.size() <= limit) && !chosen.contains(key)) rest.emplace_back(weight, &key);
  std::ranges::stable_sort(rest, std::greater(), [](const auto& r) { return r.first; });
  for (const auto& [weight, key] : rest) {
    if (chosen.size() >= limit) break;
    chosen.insert(*key);
  }
}

std::uint64_t count(int n) { return static_cast<std::uint64_t>(std::max(n, 0)); }

}  // namespace

void Foremost::update(const Fleet& fleet) {
  std::map<std::pair<std::string, std::string>, std::uint64_t> pools;
  std::map<std::string, std::uint64_t> databases, users, hosts;
  for (const PoolRow& p : fleet.pools)
    pools[{p.database, p.user}] = p.counters.xact_count + count(p.cl_waiting) + count(p.cl_active);
  for (const DatabaseRow& d : fleet.databases)
    databases[d.name] = count(d.current_client_connections) + count(d.current_connections);
  for (const Fleet::Stats& s : fleet.stats) databases[s.database] += s.total.xact_count;
  for (const UserRow& u : fleet.users)
    users[u.name] = count(u.current_client_connections) + count(u.current_connections);
  for (const HostTimesRow& h : fleet.host_times) hosts[h.address] = h.query.count() + h.connect.count();
  for (const HostRow& h : fleet.hosts) hosts[h.address] += count(h.open) + h.failures;
  // A database may be called as our sum is: then it is part of that.
  const std::string others(kOthers);
  pools.erase({others, others});
  databases.erase(others);
  users.erase(others);
  choose(pools_, limit_, pools);
  choose(databases_, limit_, databases);
  choose(users_, limit_, users);
  choose(hosts_, limit_, hosts);
}

}  // namespace pgf::observe
