#include <algorithm>
#include <iterator>
#include <map>
#include <string_view>
#include <tuple>

#include "observe/report.h"
#include "observe/stats.h"

namespace pgf::observe {
namespace {

constexpr std::string_view kNoDatabase = "(nodb)";

// Within a pool SHOW lists one state after the other. An idle client still belongs to the active ones.
constexpr std::string_view kClientStates[] = {"active", "waiting", "active_cancel_req", "waiting_cancel_req"};
constexpr std::string_view kServerStates[] = {"active", "idle",          "used",          "tested",
                                              "new",    "active_cancel", "being_canceled"};

std::ptrdiff_t rank(const SocketRow& row) {
  if (row.type == 'S') return std::ranges::find(kServerStates, row.state) - std::begin(kServerStates);
  if (row.state == "idle") return 0;
  return std::ranges::find(kClientStates, row.state) - std::begin(kClientStates);
}

// Cancels of peers have no database and come last.
auto sort_key(const SocketRow& row) {
  return std::tuple<bool, std::string_view, std::string_view, std::ptrdiff_t>(row.database == kNoDatabase, row.database,
                                                                              row.user, rank(row));
}

// Sorts pointers and moves each row once: rows are large, and there may be a hundred thousand of them.
std::vector<SocketRow> in_pool_order(std::vector<Report>& reports, std::vector<SocketRow> Report::*sockets) {
  std::vector<SocketRow*> order;
  for (Report& report : reports)
    for (SocketRow& row : report.*sockets) order.push_back(&row);
  std::ranges::stable_sort(order, {}, [](const SocketRow* row) { return sort_key(*row); });
  std::vector<SocketRow> rows;
  rows.reserve(order.size());
  for (SocketRow* row : order) rows.push_back(std::move(*row));
  return rows;
}

constexpr int PoolRow::*kClientCounts[] = {&PoolRow::cl_active, &PoolRow::cl_waiting, &PoolRow::cl_active_cancel_req,
                                           &PoolRow::cl_waiting_cancel_req};
constexpr int PoolRow::*kServerCounts[] = {&PoolRow::sv_active, &PoolRow::sv_active_cancel, &PoolRow::sv_being_canceled,
                                           &PoolRow::sv_idle,   &PoolRow::sv_used,          &PoolRow::sv_tested,
                                           &PoolRow::sv_login};

auto pool_key(const PoolRow& row) { return std::tuple<std::string_view, std::string_view>(row.database, row.user); }

void add(PoolRow& sum, const PoolRow& part) {
  for (auto count : kClientCounts) sum.*count += part.*count;
  for (auto count : kServerCounts) sum.*count += part.*count;
  sum.maxwait = std::max(sum.maxwait, part.maxwait);
  if (sum.load_balance_hosts.empty()) sum.load_balance_hosts = part.load_balance_hosts;
  sum.counters += part.counters;
  sum.latencies += part.latencies;
  sum.pool_size = std::max(sum.pool_size, part.pool_size);
}

std::vector<PoolRow> sum_pools(std::vector<Report>& reports) {
  std::vector<PoolRow> parts, sums;
  for (Report& report : reports) std::ranges::move(report.pools, std::back_inserter(parts));
  std::ranges::stable_sort(parts, {}, pool_key);
  for (PoolRow& part : parts) {
    if (!sums.empty() && pool_key(sums.back()) == pool_key(part))
      add(sums.back(), part);
    else
      sums.push_back(std::move(part));
  }
  return sums;
}

std::vector<PeerPoolRow> sum_peer_pools(const std::vector<Report>& reports) {
  std::map<int, PeerPoolRow> sums;
  for (const Report& report : reports) {
    for (const PeerPoolRow& part : report.peer_pools) {
      PeerPoolRow& sum = sums[part.peer_id];
      sum.peer_id = part.peer_id;
      for (auto count : {&PeerPoolRow::cl_active_cancel_req, &PeerPoolRow::cl_waiting_cancel_req,
                         &PeerPoolRow::sv_active_cancel, &PeerPoolRow::sv_login})
        sum.*count += part.*count;
    }
  }
  std::vector<PeerPoolRow> rows;
  for (const auto& [id, row] : sums) rows.push_back(row);
  return rows;
}

std::vector<HostUse> sum_host_use(std::vector<Report>& reports) {
  std::map<std::pair<std::string, std::string>, HostUse> sums;
  for (Report& report : reports)
    for (HostUse& part : report.host_use) {
      HostUse& sum = sums[{part.database, part.address}];
      part.open += sum.open;
      part.active += sum.active;
      sum = std::move(part);
    }
  std::vector<HostUse> rows;
  for (auto& [key, row] : sums) rows.push_back(std::move(row));
  return rows;
}

std::vector<HostTimesRow> sum_host_times(std::vector<Report>& reports) {
  std::map<std::string, HostTimesRow> sums;
  for (Report& report : reports)
    for (HostTimesRow& part : report.host_times) {
      HostTimesRow& sum = sums[part.address];
      sum.address = part.address;
      sum.query += part.query;
      sum.connect += part.connect;
    }
  std::vector<HostTimesRow> rows;
  for (auto& [address, row] : sums) rows.push_back(std::move(row));
  return rows;
}

std::vector<SlowWaitRow> latest_waits(std::vector<Report>& reports) {
  std::vector<SlowWaitRow> all;
  for (Report& report : reports) std::ranges::move(report.slow_waits, std::back_inserter(all));
  std::ranges::stable_sort(all, std::greater(), &SlowWaitRow::ended);
  return all;
}

}  // namespace

// Replaces everything that comes from workers; databases, users, settings and the other items of LISTS are not touched.
void merge(Fleet& fleet, std::vector<Report>& reports) {
  for (Report& report : reports)
    for (const PoolRow& pool : report.pools) report.worker.latencies += pool.latencies;
  fleet.host_use = sum_host_use(reports);
  fleet.host_times = sum_host_times(reports);
  fleet.slow_waits = latest_waits(reports);
  fleet.clients = in_pool_order(reports, &Report::clients);
  fleet.servers = in_pool_order(reports, &Report::servers);
  fleet.pools = sum_pools(reports);
  fleet.peer_pools = sum_peer_pools(reports);
  fleet.stats = totals(fleet.pools);

  Lists& lists = fleet.lists;
  lists.pools = static_cast<int>(fleet.pools.size());
  lists.peer_pools = static_cast<int>(fleet.peer_pools.size());
  lists.login_clients = lists.used_clients = lists.used_servers = 0;
  fleet.workers.clear();
  fleet.handed.clear();
  for (Report& report : reports) {
    std::ranges::move(report.handed, std::back_inserter(fleet.handed));
    lists.login_clients += report.login_clients;
    fleet.workers.push_back(std::move(report.worker));
  }
  std::ranges::stable_sort(fleet.workers, {}, &WorkerRow::worker);
  lists.used_clients = lists.login_clients;
  for (const PoolRow& pool : fleet.pools) {
    for (auto count : kClientCounts) lists.used_clients += pool.*count;
    for (auto count : kServerCounts) lists.used_servers += pool.*count;
  }
  for (const PeerPoolRow& pool : fleet.peer_pools) {
    lists.used_clients += pool.cl_active_cancel_req + pool.cl_waiting_cancel_req;
    lists.used_servers += pool.sv_active_cancel + pool.sv_login;
  }
}

}  // namespace pgf::observe
