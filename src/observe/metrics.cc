#include "observe/metrics.h"

#include <algorithm>
#include <cstdlib>

#include "base/version.h"
#include "observe/stats.h"

namespace pgf::observe {
namespace {

template <class Row>
struct Gauge {
  std::string_view name, help;
  int Row::*value;
};

constexpr Gauge<PoolRow> kPoolGauges[] = {
    {"pgbouncer_pools_client_active_connections", "clients that are linked to a server or idle", &PoolRow::cl_active},
    {"pgbouncer_pools_client_waiting_connections", "clients that wait for a server", &PoolRow::cl_waiting},
    {"pgbouncer_pools_client_active_cancel_connections", "cancel requests that were sent on",
     &PoolRow::cl_active_cancel_req},
    {"pgbouncer_pools_client_waiting_cancel_connections", "cancel requests that wait", &PoolRow::cl_waiting_cancel_req},
    {"pgbouncer_pools_server_active_connections", "servers that are linked to a client", &PoolRow::sv_active},
    {"pgbouncer_pools_server_active_cancel_connections", "connections that carry a cancel request",
     &PoolRow::sv_active_cancel},
    {"pgbouncer_pools_server_being_canceled_connections", "servers held back until a cancel has arrived",
     &PoolRow::sv_being_canceled},
    {"pgbouncer_pools_server_idle_connections", "servers that are free", &PoolRow::sv_idle},
    {"pgbouncer_pools_server_used_connections", "free servers that are checked before their next use",
     &PoolRow::sv_used},
    {"pgbouncer_pools_server_testing_connections", "servers in a reset or check query", &PoolRow::sv_tested},
    {"pgbouncer_pools_server_login_connections", "servers that are logging in", &PoolRow::sv_login},
    {"pgflotilla_pool_size", "server connections that the pool may have, 0 = no limit", &PoolRow::pool_size}};

struct Latency {
  std::string_view name, help;
  Histogram session::Latencies::*value;
};
constexpr Latency kLatencyHistograms[] = {
    {"wait_seconds", "a client's wait for a server, at every assignment", &session::Latencies::wait},
    {"query_seconds", "from a request to the end of its answer", &session::Latencies::query},
    {"transaction_seconds", "from a transaction's first request to its end", &session::Latencies::xact},
    {"login_seconds", "of a client, from accept until it is authenticated", &session::Latencies::login},
    {"connect_seconds", "of a server, until it can be used", &session::Latencies::connect}};

// The rows that have series of their own, and the sum of the others behind them, if there are any.
template <class Row, class Has, class Add>
std::vector<Row> bounded(const std::vector<Row>& rows, Row others, Has has, Add add) {
  std::vector<Row> own;
  bool more = false;
  for (const Row& row : rows) {
    if (has(row)) {
      own.push_back(row);
    } else {
      add(others, row);
      more = true;
    }
  }
  if (more) own.push_back(std::move(others));
  return own;
}

template <class Row, std::size_t N>
void add_all(Row& sum, const Row& part, const Gauge<Row> (&gauges)[N]) {
  for (const Gauge<Row>& g : gauges) sum.*g.value += part.*g.value;
}

void write_pools(Page& page, const Fleet& fleet, const Foremost& foremost) {
  PoolRow others;
  others.database = others.user = kOthers;
  const auto pools = bounded(
      fleet.pools, std::move(others), [&](const PoolRow& p) { return foremost.has(p); },
      [](PoolRow& sum, const PoolRow& part) {
        add_all(sum, part, kPoolGauges);
        sum.maxwait = std::max(sum.maxwait, part.maxwait);
        sum.latencies += part.latencies;
      });
  std::vector<std::string> who;
  for (const PoolRow& p : pools) who.push_back(labels({{"database", p.database}, {"user", p.user}}));
  for (const auto& g : kPoolGauges) {
    page.family(g.name, "gauge", g.help);
    for (std::size_t i = 0; i < pools.size(); ++i) page.sample(who[i], pools[i].*g.value);
  }
  page.family("pgbouncer_pools_client_maxwait_seconds", "gauge", "how long the first in the queue has waited");
  for (std::size_t i = 0; i < pools.size(); ++i)
    page.sample(who[i], seconds(static_cast<std::uint64_t>(pools[i].maxwait)));
  for (const Latency& l : kLatencyHistograms) {
    page.family(fmt::format("pgflotilla_{}", l.name), "histogram", l.help);
    for (std::size_t i = 0; i < pools.size(); ++i)
      if ((pools[i].latencies.*l.value).count()) page.histogram(who[i], pools[i].latencies.*l.value);
  }
}

void write_stats(Page& page, const Fleet& fleet, const Foremost& foremost) {
  struct Counter {
    std::string_view name, help;
    std::uint64_t Counters::*value;
    bool time = false;
  };
  static constexpr Counter kCounters[] = {
      {"pgbouncer_stats_sql_transactions_pooled", "transactions", &Counters::xact_count},
      {"pgbouncer_stats_queries_pooled", "queries", &Counters::query_count},
      {"pgbouncer_stats_received_bytes", "bytes received from clients", &Counters::received},
      {"pgbouncer_stats_sent_bytes", "bytes sent to clients", &Counters::sent},
      {"pgbouncer_stats_server_in_transaction_seconds", "time in transactions", &Counters::xact_time, true},
      {"pgbouncer_stats_queries_duration_seconds", "time in queries", &Counters::query_time, true},
      {"pgbouncer_stats_client_wait_seconds", "time that clients waited for a server", &Counters::wait_time, true},
      {"pgbouncer_stats_client_parses", "statements prepared by clients", &Counters::client_parse_count},
      {"pgbouncer_stats_server_parses", "statements prepared on servers", &Counters::server_parse_count},
      {"pgbouncer_stats_binds", "prepared statements executed", &Counters::bind_count},
      {"pgflotilla_server_assignments", "servers given to clients", &Counters::server_assignment_count},
      {"pgflotilla_client_logins", "logins of clients", &Counters::client_login_count}};
  Fleet::Stats others;
  others.database = kOthers;
  const auto rows = bounded(
      fleet.stats, std::move(others), [&](const Fleet::Stats& s) { return foremost.has_database(s.database); },
      [](Fleet::Stats& sum, const Fleet::Stats& part) { sum.total += part.total; });
  for (const Counter& c : kCounters) {
    page.family(c.name, "counter", c.help);
    for (const Fleet::Stats& row : rows) {
      const std::string who = labels({{"database", row.database}});
      if (c.time)
        page.sample(who, seconds(row.total.*c.value));
      else
        page.sample(who, row.total.*c.value);
    }
  }
}

void write_databases(Page& page, const Fleet& fleet, const Foremost& foremost) {
  static constexpr Gauge<DatabaseRow> kOfExporter[] = {
      {"pgbouncer_databases_pool_size", "server connections that a pool may have", &DatabaseRow::pool_size},
      {"pgbouncer_databases_reserve_pool", "server connections beyond it", &DatabaseRow::reserve_pool_size},
      {"pgbouncer_databases_max_connections", "server connections allowed, 0 = no limit",
       &DatabaseRow::max_connections},
      {"pgbouncer_databases_current_connections", "server connections now", &DatabaseRow::current_connections}};
  static constexpr Gauge<DatabaseRow> kOwn[] = {
      {"pgflotilla_database_max_clients", "clients allowed, 0 = no limit", &DatabaseRow::max_client_connections},
      {"pgflotilla_database_clients", "clients now", &DatabaseRow::current_client_connections}};
  DatabaseRow others;
  others.name = kOthers;
  others.port = 0;
  const auto rows = bounded(
      fleet.databases, std::move(others), [&](const DatabaseRow& d) { return foremost.has_database(d.name); },
      [](DatabaseRow& sum, const DatabaseRow& part) {
        add_all(sum, part, kOfExporter);
        add_all(sum, part, kOwn);
        sum.paused |= part.paused;
        sum.disabled |= part.disabled;
      });
  std::vector<std::string> who, name;
  for (const DatabaseRow& d : rows) {
    name.push_back(labels({{"database", d.name}}));
    who.push_back(labels({{"name", d.name},
                          {"host", d.host},
                          {"port", std::to_string(d.port)},
                          {"database", d.database},
                          {"force_user", d.force_user},
                          {"pool_mode", d.pool_mode}}));
  }
  auto each = [&](std::string_view family, std::string_view help, const std::vector<std::string>& which, auto value) {
    page.family(family, "gauge", help);
    for (std::size_t i = 0; i < rows.size(); ++i) page.sample(which[i], int{rows[i].*value});
  };
  for (const auto& g : kOfExporter) each(g.name, g.help, who, g.value);
  each("pgbouncer_databases_paused", "1 while paused", who, &DatabaseRow::paused);
  each("pgbouncer_databases_disabled", "1 while disabled", who, &DatabaseRow::disabled);
  for (const auto& g : kOwn) each(g.name, g.help, name, g.value);
}

void write_users(Page& page, const Fleet& fleet, const Foremost& foremost) {
  static constexpr Gauge<UserRow> kGauges[] = {
      {"pgflotilla_user_servers", "server connections of a user now", &UserRow::current_connections},
      {"pgflotilla_user_max_servers", "server connections allowed, 0 = no limit", &UserRow::max_user_connections},
      {"pgflotilla_user_clients", "clients of a user now", &UserRow::current_client_connections},
      {"pgflotilla_user_max_clients", "clients allowed, 0 = no limit", &UserRow::max_user_client_connections}};
  UserRow others;
  others.name = kOthers;
  const auto rows = bounded(
      fleet.users, std::move(others), [&](const UserRow& u) { return foremost.has_user(u.name); },
      [](UserRow& sum, const UserRow& part) { add_all(sum, part, kGauges); });
  for (const auto& g : kGauges) {
    page.family(g.name, "gauge", g.help);
    for (const UserRow& row : rows) page.sample(labels({{"user", row.name}}), row.*g.value);
  }
}

void write_hosts(Page& page, const Fleet& fleet, const Foremost& foremost) {
  HostRow rest;
  rest.database = rest.host = rest.address = rest.role = rest.state = kOthers;
  rest.port = 0;
  rest.weight = 0;
  const auto rows = bounded(
      fleet.hosts, std::move(rest),
      [&](const HostRow& h) { return foremost.has_host(h.address) && foremost.has_database(h.database); },
      [](HostRow& sum, const HostRow& part) {
        sum.open += part.open;
        sum.active += part.active;
        sum.failures += part.failures;
        sum.latency = std::max(sum.latency, part.latency);
        if (part.state == "out") sum.state = "out";  // at least one of them
      });
  std::vector<std::string> who;
  for (const HostRow& h : rows)
    who.push_back(
        labels({{"database", h.database}, {"host", h.host}, {"port", std::to_string(h.port)}, {"address", h.address}}));
  auto each = [&](std::string_view name, std::string_view type, std::string_view help, auto value) {
    page.family(name, type, help);
    for (std::size_t i = 0; i < rows.size(); ++i) page.sample(who[i], value(rows[i]));
  };
  page.family("pgflotilla_host_info", "gauge", "1, with role and state of an address as labels");
  for (std::size_t i = 0; i < rows.size(); ++i)
    page.sample(who[i] + "," + labels({{"role", rows[i].role}, {"state", rows[i].state}}), 1);
  each("pgflotilla_host_out", "gauge", "1: it has failed and not answered since",
       [](const HostRow& h) { return int{h.state == "out"}; });
  each("pgflotilla_host_weight", "gauge", "how often it stands in the list", [](const HostRow& h) { return h.weight; });
  each("pgflotilla_host_connections", "gauge", "server connections to it", [](const HostRow& h) { return h.open; });
  each("pgflotilla_host_active_connections", "gauge", "those that are linked to a client",
       [](const HostRow& h) { return h.active; });
  each("pgflotilla_host_failures", "counter", "failures to connect", [](const HostRow& h) { return h.failures; });
  each("pgflotilla_host_answer_seconds", "gauge", "how long its last first answer took",
       [](const HostRow& h) { return seconds(static_cast<std::uint64_t>(h.latency)); });

  HostTimesRow others;
  others.address = kOthers;
  const auto times = bounded(
      fleet.host_times, std::move(others), [&](const HostTimesRow& h) { return foremost.has_host(h.address); },
      [](HostTimesRow& sum, const HostTimesRow& part) {
        sum.query += part.query;
        sum.connect += part.connect;
      });
  page.family("pgflotilla_host_query_seconds", "histogram", "queries by the address that answered them");
  for (const HostTimesRow& h : times)
    if (h.query.count()) page.histogram(labels({{"address", h.address}}), h.query);
  page.family("pgflotilla_host_connect_seconds", "histogram", "connections opened, by address");
  for (const HostTimesRow& h : times)
    if (h.connect.count()) page.histogram(labels({{"address", h.address}}), h.connect);
}

void write_peers(Page& page, const Fleet& fleet) {
  static constexpr Gauge<PeerPoolRow> kGauges[] = {
      {"pgflotilla_peer_cancels_sent", "cancel requests sent to it that it has not settled yet",
       &PeerPoolRow::cl_active_cancel_req},
      {"pgflotilla_peer_cancels_waiting", "cancel requests that wait to be sent to it",
       &PeerPoolRow::cl_waiting_cancel_req},
      {"pgflotilla_peer_connections", "connections to it that carry a request", &PeerPoolRow::sv_active_cancel},
      {"pgflotilla_peer_connecting", "connections to it that are being opened", &PeerPoolRow::sv_login}};
  page.family("pgflotilla_peer_info", "gauge", "1 for each configured peer");
  for (const PeerRow& p : fleet.peers)
    page.sample(labels({{"peer", std::to_string(p.peer_id)}, {"host", p.host}, {"port", std::to_string(p.port)}}), 1);
  for (const auto& g : kGauges) {
    page.family(g.name, "gauge", g.help);
    for (const PeerPoolRow& p : fleet.peer_pools)
      page.sample(labels({{"peer", std::to_string(p.peer_id)}}), p.*g.value);
  }
}

void write_program(Page& page, const Fleet& fleet) {
  auto gauge = [&](std::string_view name, std::string_view help, std::int64_t value) {
    page.family(name, "gauge", help);
    page.sample("", value);
  };
  page.family("pgflotilla_info", "gauge", "1, with the version as a label");
  page.sample(labels({{"version", PGF_VERSION}}), 1);
  gauge("pgbouncer_up", "1: the page is served by the pooler itself", 1);
  page.family("pgbouncer_version_info", "gauge", "1, with the version that SHOW VERSION tells");
  page.sample(labels({{"version", fleet.version}}), 1);
  gauge("pgflotilla_paused", "1 while everything is paused or suspended", fleet.paused || fleet.suspended);
  gauge("pgflotilla_ending", "1 while a shutdown waits for clients or servers", fleet.ending);

  const Lists& l = fleet.lists;
  gauge("pgbouncer_databases", "databases known", static_cast<std::int64_t>(fleet.databases.size()));
  gauge("pgbouncer_users", "users known", static_cast<std::int64_t>(fleet.users.size()));
  gauge("pgbouncer_pools", "pools", l.pools);
  gauge("pgbouncer_free_clients", "always 0: nothing is kept in reserve", 0);
  gauge("pgbouncer_used_clients", "clients", l.used_clients);
  gauge("pgbouncer_login_clients", "clients that are logging in", l.login_clients);
  gauge("pgbouncer_free_servers", "always 0: nothing is kept in reserve", 0);
  gauge("pgbouncer_used_servers", "server connections", l.used_servers);
  gauge("pgbouncer_cached_dns_names", "names in the resolver's memory", l.dns_names);
  gauge("pgbouncer_cached_dns_zones", "zones in the resolver's memory", l.dns_zones);
  gauge("pgbouncer_in_flight_dns_queries", "names that are being resolved", l.dns_queries);
  for (const BudgetRow& b : fleet.budget) {
    if (b.limit != "max_client_conn") continue;
    gauge("pgflotilla_max_clients", "clients that this process may have, as long as others of its budget take no more",
          b.held >= 0 ? std::max(b.configured - b.held, 0) + b.here : b.share);
    gauge("pgflotilla_budget_members", "processes that share the limits (budget = fleet)", b.members);
  }
  for (const config::ShownSetting& s : fleet.settings) {
    const std::int64_t value = std::atoll(s.value.c_str());
    if (s.key == "max_client_conn")
      gauge("pgbouncer_config_max_client_connections", "clients allowed: max_client_conn", value);
    if (s.key == "max_user_connections")
      gauge("pgbouncer_config_max_user_connections", "server connections allowed to a user: max_user_connections",
            value);
  }
}

void write_workers(Page& page, const std::vector<WorkerRow>& workers) {
  std::vector<std::string> who;
  for (const WorkerRow& w : workers) who.push_back(labels({{"worker", std::to_string(w.worker)}}));
  auto each = [&](std::string_view name, std::string_view type, std::string_view help, auto value) {
    page.family(name, type, help);
    for (std::size_t i = 0; i < workers.size(); ++i) page.sample(who[i], workers[i].*value);
  };
  each("pgflotilla_worker_clients", "gauge", "clients of a worker", &WorkerRow::clients);
  each("pgflotilla_worker_servers_active", "gauge", "its servers that are linked", &WorkerRow::servers_active);
  each("pgflotilla_worker_servers_idle", "gauge", "its servers that are free", &WorkerRow::servers_idle);
  each("pgflotilla_worker_waiting", "gauge", "its clients that wait for a server", &WorkerRow::waiting);
  each("pgflotilla_worker_busy_ratio", "gauge", "share of the time in which it did not sleep", &WorkerRow::busy);
  each("pgflotilla_worker_transactions", "counter", "transactions", &WorkerRow::transactions);
  each("pgflotilla_worker_received_bytes", "counter", "bytes from clients", &WorkerRow::received);
  each("pgflotilla_worker_sent_bytes", "counter", "bytes to clients", &WorkerRow::sent);
  each("pgflotilla_worker_cpu_seconds", "counter", "processor time", &WorkerRow::cpu_seconds);
  each("pgflotilla_worker_turns", "counter", "turns of its loop", &WorkerRow::loop_turns);
  each("pgflotilla_worker_system_calls", "counter", "system calls of its loop", &WorkerRow::syscalls);
  each("pgflotilla_worker_servers_in", "counter", "servers that came from other workers", &WorkerRow::servers_in);
  each("pgflotilla_worker_servers_out", "counter", "servers that went to other workers", &WorkerRow::servers_out);
  each("pgflotilla_worker_logins_refused", "counter", "clients refused before they were logged in",
       &WorkerRow::logins_refused);
  each("pgflotilla_worker_stalls", "counter", "times that it did not come back to its loop for watchdog_report",
       &WorkerRow::stalls);
  auto moves = [&](std::string_view name, std::string_view help, MoveCounts WorkerRow::*value) {
    page.family(name, "counter", help);
    for (std::size_t i = 0; i < workers.size(); ++i)
      for (int why = 0; why < pool::kMoveReasons; ++why)
        page.sample(who[i] + "," + labels({{"reason", pool::to_text(static_cast<pool::MoveReason>(why))}}),
                    (workers[i].*value)[static_cast<std::size_t>(why)]);
  };
  moves("pgflotilla_worker_clients_in", "clients that came from other workers", &WorkerRow::clients_in);
  moves("pgflotilla_worker_clients_out", "clients that went to other workers", &WorkerRow::clients_out);
  for (const Latency& l : kLatencyHistograms) {
    page.family(fmt::format("pgflotilla_worker_{}", l.name), "histogram", l.help);
    for (std::size_t i = 0; i < workers.size(); ++i) page.histogram(who[i], workers[i].latencies.*l.value);
  }
  CancelCounts cancels{};
  for (const WorkerRow& w : workers)
    for (std::size_t i = 0; i < cancels.size(); ++i) cancels[i] += w.cancels[i];
  page.family("pgflotilla_cancels", "counter", "cancel requests by how they ended");
  for (std::size_t i = 0; i < cancels.size(); ++i) page.sample(labels({{"outcome", kCancelOutcomes[i]}}), cancels[i]);
}

}  // namespace

std::string metrics(const Fleet& fleet, Exposition exposition, Foremost& foremost) {
  foremost.update(fleet);
  Page page(exposition);
  write_program(page, fleet);
  write_pools(page, fleet, foremost);
  write_stats(page, fleet, foremost);
  write_databases(page, fleet, foremost);
  write_users(page, fleet, foremost);
  write_hosts(page, fleet, foremost);
  write_peers(page, fleet);
  write_workers(page, fleet.workers);
  return page.finish();
}

}  // namespace pgf::observe
