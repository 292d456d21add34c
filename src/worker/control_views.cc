// SHOW: what the workers report, what the control thread itself knows, and descriptors for the process that takes over.
#include <string.h>

#include <algorithm>
#include <map>

#include "admin/reply.h"
#include "base/version.h"
#include "net/socket.h"
#include "observe/stats.h"
#include "observe/views.h"
#include "wire/write.h"
#include "worker/control.h"

namespace pgf::worker {

void Control::show(Console console, const admin::Command& command) {
  std::string out;
  if (command.help) {
    admin::help(out);
    return reply(console, std::move(out));
  }
  if (command.parameter) {
    admin::show_parameter(out, *command.parameter);
    return reply(console, std::move(out));
  }
  const observe::View* view = command.view;
  if (view->admin_only && !console.is_admin) return fail(console, "admin access needed", "42501");
  gather(view->gather, [this, console, view](observe::Fleet& fleet) {
    if (view->gather & observe::kHanded) return show_handed(console, *view, fleet);
    reply(console, observe::render(*view, fleet));
  });
}

// Each row goes with its descriptor, if the asker may have it and everything stands still (else a number may have got
// another meaning meanwhile). Sent from here, the worker has nothing queued for a console that waits.
void Control::show_handed(const Console& console, const observe::View& view, observe::Fleet& fleet) {
  std::vector<session::Handed> rows = std::exchange(fleet.handed, {});
  auto listeners = [&](const std::vector<int>& fds) {
    for (int fd : fds) {
      session::Handed row;
      row.task = session::Handed::Task::pooler;
      row.fd = fd;
      auto address = net::local_address(fd);
      row.addr = address ? net::format_host(*address) : "";
      row.port =
          address && !address->is_unix() ? address->port() : static_cast<int>(fleet_.config->settings.listen_port);
      fleet.handed.push_back(std::move(row));
    }
  };
  for (const auto& of_worker : fleet_.plan.listeners) listeners(of_worker);
  listeners(fleet_.plan.unix_listeners);
  for (auto& row : session::hand_over_pools(fleet_.shared)) fleet.handed.push_back(std::move(row));
  std::ranges::move(rows, std::back_inserter(fleet.handed));
  if (!console.socket || !fleet.suspended) return reply(console, observe::render(view, fleet));

  std::string out;
  wire::row_description(out, view.columns);
  bool sent = send_with_descriptor(console.socket->fd, out, -1);
  observe::Fleet one;
  one.suspended = true;
  for (session::Handed& row : fleet.handed) {
    const int fd = row.fd;
    one.handed.assign(1, std::move(row));
    out.clear();
    view.rows(out, one);
    if (sent && !out.empty()) sent = send_with_descriptor(console.socket->fd, out, fd);
  }
  if (!sent) {
    fleet_.log(LogLevel::error, "{}: sending a descriptor failed: {}", view.name, strerror(errno));
    return fleet_.worker(console.client.worker).post(ConsoleReply{console.client, {}, true});
  }
  out.clear();
  wire::command_complete(out, "SHOW");
  wire::ready_for_query(out, 'I');
  reply(console, std::move(out));
}

// ---- what views draw from besides the workers' reports ----

void Control::fill(observe::Fleet& view, unsigned parts) {
  view.paused = fleet_.shared.paused.load();
  view.suspended = fleet_.shared.suspended.load();
  view.ending = ending_;
  view.version = fmt::format("PgBouncer {}", kPgBouncerVersion);
  view.period = period_;
  observe::copy_growth(view.stats, last_stats_);
  if (last_stats_.empty()) {
    // Before the first period: everything so far, over the time so far (PgBouncer: start minus one second).
    for (auto& s : view.stats) s.period = s.total;
    view.period = net::monotonic_now() - period_start_ + kSecond;
  }
  for (observe::WorkerRow& w : view.workers) {
    w.why = placement_.why(w.worker);
    w.stalls = watchdog_.stalls(w.worker);
  }
  if (parts & (observe::kDatabases | observe::kLists)) fill_databases(view);
  if (parts & (observe::kUsers | observe::kLists)) fill_users(view);
  if (parts & observe::kHosts) fill_hosts(view);
  if (parts & observe::kHostUse) {
    std::map<std::pair<std::string_view, std::string_view>, const observe::HostUse*> use;
    for (const observe::HostUse& u : view.host_use) use[{u.database, u.address}] = &u;
    for (observe::HostRow& row : view.hosts) {
      auto it = use.find({row.database, row.address});
      if (it == use.end()) continue;
      row.open = it->second->open;
      row.active = it->second->active;
    }
  }
  if (parts & (observe::kBudget | observe::kClientBudget)) fill_budget(view, (parts & observe::kBudget) != 0);
  if (parts & (observe::kDns | observe::kLists)) fill_dns(view);
  if (parts & observe::kPeers) {
    for (const auto& [id, peer] : fleet_.config->peers)
      view.peers.push_back({id, peer.host, peer.port,
                            peer.pool_size.value_or(static_cast<int>(fleet_.config->settings.default_pool_size))});
  }
  if (parts & observe::kSettings) view.settings = config::show(fleet_.config->settings);
  if (parts & observe::kLists) {
    view.lists.databases = static_cast<int>(view.databases.size());
    view.lists.users = static_cast<int>(view.users.size());
    view.lists.peers = static_cast<int>(fleet_.config->peers.size());
    // PgBouncer's names, with its words for a used one.
    const observe::Lists& l = view.lists;
    view.memory = {{"user_cache", sizeof(pool::UserShared), l.users},
                   {"db_cache", sizeof(pool::DatabaseShared), l.databases},
                   {"pool_cache", sizeof(session::Pool), static_cast<int>(view.pools.size())},
                   {"server_cache", sizeof(session::Server), l.used_servers},
                   {"client_cache", sizeof(session::Client), l.used_clients}};
  }
}

// A host for each element of a list, with an address each that its name stands for.
void Control::fill_hosts(observe::Fleet& view) {
  const config::Config& c = *fleet_.config;
  const Usec now = net::monotonic_now(), wall = net::wall_now();
  auto add = [&](const config::Database& db) {
    const std::size_t first = view.hosts.size();
    for (const auto& [host, port] : config::hosts_of(db, c.settings)) {
      observe::HostRow row;
      row.database = db.name;
      row.host = host;
      row.port = port;
      auto same = std::find_if(view.hosts.begin() + static_cast<std::ptrdiff_t>(first), view.hosts.end(),
                               [&](const auto& r) { return r.host == row.host && r.port == row.port; });
      if (same != view.hosts.end()) {
        for (; same != view.hosts.end() && same->host == row.host && same->port == row.port; ++same) ++same->weight;
        continue;
      }
      auto known = fleet_.shared.hosts.rows(db.name, row.host, row.port, now);
      if (known.empty()) view.hosts.push_back(row);
      for (const auto& k : known) {
        row.address = k.address;
        row.role = pool::to_text(k.role);
        row.state = k.out ? "out" : k.returning ? "returning" : k.known ? "up" : "unknown";
        row.since = k.known ? wall - (now - k.since) : 0;
        row.failures = k.failures;
        row.next_try = k.out ? std::max<Usec>(0, k.next_try - now) : 0;
        row.last_error = k.last_error;
        row.latency = k.latency;
        row.open = row.active = 0;
        for (const observe::SocketRow& s : view.servers) {
          if (s.database != db.name || s.address != k.address) continue;
          ++row.open;
          row.active += s.state == "active";
        }
        view.hosts.push_back(row);
      }
    }
  };
  for (const auto& [name, db] : c.databases) add(db);
  for (pool::DatabaseShared* shared : fleet_.shared.directory.databases())
    if (shared->is_auto.load() && !c.databases.contains(shared->name))
      if (auto db = config::find_database(c, shared->name)) add(*db);
}

void Control::fill_dns(observe::Fleet& view) {
  net::Resolver::State state = fleet_.resolver->state();
  for (const auto& host : state.hosts) {
    observe::DnsHostRow row{host.name, host.ttl_left / kSecond, {}};
    for (const net::Address& a : host.addresses) row.addrs += (row.addrs.empty() ? "" : ",") + net::format_address(a);
    view.dns_hosts.push_back(std::move(row));
  }
  for (const auto& zone : state.zones) view.dns_zones.push_back({zone.name, zone.serial, zone.hosts});
  view.lists.dns_names = static_cast<int>(state.hosts.size());
  view.lists.dns_zones = static_cast<int>(state.zones.size());
  view.lists.dns_queries = state.queries;
}

void Control::fill_databases(observe::Fleet& view) {
  const config::Config& c = *fleet_.config;
  auto add = [&](const config::Database& db) {
    observe::DatabaseRow row;
    config::PoolPolicy p = config::resolve(c, db, db.user.value_or(""));
    config::ClientPolicy cp = config::resolve_client(c, db, "");
    row.name = db.name;
    row.host = db.host;
    row.port = db.ports[0];
    row.database = db.dbname.empty() ? db.name : db.dbname;
    row.force_user = db.user.value_or("");
    row.pool_size = db.pool_size.value_or(static_cast<int>(c.settings.default_pool_size));
    row.min_pool_size = p.min_pool_size;
    row.reserve_pool_size = db.reserve_pool_size.value_or(static_cast<int>(c.settings.reserve_pool_size));
    row.server_lifetime = p.server_lifetime / kSecond;
    if (db.pool_mode) row.pool_mode = config::to_text(*db.pool_mode);
    if (db.hosts.size() > 1) row.load_balance_hosts = config::to_text(db.load_balance_hosts);
    row.max_connections = p.max_db_connections;
    row.max_client_connections = cp.max_db_client_connections;
    if (pool::DatabaseShared* shared = fleet_.shared.directory.find_database(db.name)) {
      row.current_connections = shared->servers.value();
      row.current_client_connections = shared->clients.value();
      row.paused = shared->paused.load();
      row.disabled = shared->disabled.load();
    }
    view.databases.push_back(std::move(row));
  };
  for (const auto& [name, db] : c.databases) add(db);
  for (pool::DatabaseShared* shared : fleet_.shared.directory.databases())
    if (shared->is_auto.load() && !c.databases.contains(shared->name))
      if (auto db = config::find_database(c, shared->name)) add(*db);
  observe::DatabaseRow console;
  console.name = console.database = console.force_user = "pgbouncer";
  console.port = static_cast<int>(c.settings.listen_port);
  console.pool_mode = "statement";
  console.pool_size = 2;
  console.max_client_connections = config::resolve_client(c, {}, "").max_db_client_connections;
  if (pool::DatabaseShared* shared = fleet_.shared.directory.find_database("pgbouncer"))
    console.current_client_connections = shared->clients.value();
  view.databases.push_back(std::move(console));
  std::sort(view.databases.begin(), view.databases.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
}

void Control::fill_users(observe::Fleet& view) {
  const config::Config& c = *fleet_.config;
  std::map<std::string, observe::UserRow> rows;
  for (const auto& [name, secret] : c.passwords) rows[name];
  for (const auto& [name, user] : c.users) rows[name];
  for (const auto& [name, db] : c.databases) {
    if (db.user) rows[*db.user];
    if (db.auth_user) rows[*db.auth_user];
  }
  if (!c.settings.auth_user.empty()) rows[c.settings.auth_user];
  rows["pgbouncer"];
  for (pool::UserShared* u : fleet_.shared.directory.users()) rows[u->name];
  std::map<std::string, pool::UserShared*> shared;
  for (pool::UserShared* u : fleet_.shared.directory.users()) shared[u->name] = u;
  for (auto& [name, row] : rows) {
    row.name = name;
    row.max_user_connections = static_cast<int>(c.settings.max_user_connections);
    row.max_user_client_connections = static_cast<int>(c.settings.max_user_client_connections);
    if (auto own = c.users.find(name); own != c.users.end()) {
      const config::User& u = own->second;
      row.pool_size = u.pool_size.value_or(-1);
      row.reserve_pool_size = u.reserve_pool_size.value_or(-1);
      if (u.pool_mode) row.pool_mode = config::to_text(*u.pool_mode);
      row.max_user_connections = u.max_user_connections.value_or(row.max_user_connections);
      row.max_user_client_connections = u.max_user_client_connections.value_or(row.max_user_client_connections);
    }
    if (auto it = shared.find(name); it != shared.end()) {
      row.current_connections = it->second->servers.value();
      row.current_client_connections = it->second->clients.value();
    }
    view.users.push_back(std::move(row));
  }
}

}  // namespace pgf::worker
