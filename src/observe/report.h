#pragma once
// What a worker tells about itself when asked (worker/messages.h: Gather), and what the control thread adds. Plain
// values, copied out in the worker's thread; views.cc turns them into SHOW results.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/time.h"
#include "config/settings.h"
#include "observe/cancels.h"
#include "pool/placement.h"
#include "session/handover.h"
#include "session/latencies.h"

namespace pgf::observe {

struct Counters {  // per pool, since start; SHOW STATS sums them per database (admin.md)
  std::uint64_t server_assignment_count = 0, xact_count = 0, query_count = 0, received = 0, sent = 0;
  std::uint64_t xact_time = 0, query_time = 0, wait_time = 0;  // µs
  std::uint64_t client_parse_count = 0, server_parse_count = 0, bind_count = 0, client_login_count = 0;
  Counters& operator+=(const Counters& other);
};

struct SocketRow {  // SHOW CLIENTS / SHOW SERVERS
  char type = 'C';
  std::string user, database, replication = "none", state, addr;
  int port = 0;
  std::string local_addr;
  int local_port = 0;
  Usec connect_time = 0, request_time = 0;  // wall clock, µs since 1970
  Usec wait = 0;
  bool close_needed = false;
  std::uint64_t ptr = 0, link = 0;
  int remote_pid = 0;
  std::string tls, application_name;
  int prepared_statements = 0;
  std::size_t unsent = 0;  // bytes that this socket has not taken yet
  std::uint64_t id = 0;
  int worker = 0;
  std::string address;  // servers: as SHOW HOSTS names it
};

struct PoolRow {  // one pool's part on one worker; the control thread sums over workers
  std::string database, user;
  int cl_active = 0, cl_waiting = 0, cl_active_cancel_req = 0, cl_waiting_cancel_req = 0;
  int sv_active = 0, sv_active_cancel = 0, sv_being_canceled = 0, sv_idle = 0, sv_used = 0, sv_tested = 0, sv_login = 0;
  int pool_size = 0;  // sum rule: the maximum
  Usec maxwait = 0;   // sum rule: the maximum
  config::PoolMode pool_mode = config::PoolMode::session;
  std::string load_balance_hosts;  // empty = NULL
  Counters counters;
  session::Latencies latencies = {};
};

using MoveCounts = std::array<std::uint64_t, pool::kMoveReasons>;  // clients moved, by why

struct WorkerRow {  // SHOW WORKERS
  int worker = 0;
  std::string engine;
  int clients = 0, servers_active = 0, servers_idle = 0, waiting = 0;
  std::uint64_t transactions = 0, received = 0, sent = 0;
  double cpu_seconds = 0;
  double busy = 0;  // share of the time since it was last asked for (0.1 s at least) that it did not sleep, 0..1
  std::uint64_t loop_turns = 0, syscalls = 0;
  MoveCounts clients_in{}, clients_out{};
  std::uint64_t servers_in = 0, servers_out = 0;  // moved
  std::string why;                                // the last move that the control thread asked for; empty = none
  CancelCounts cancels{};                         // that were settled here
  std::uint64_t logins_refused = 0;
  std::uint64_t stalls = 0;           // how often the watchdog found it blocked; from the control thread
  session::Latencies latencies = {};  // of all pools
};

struct DatabaseRow {  // SHOW DATABASES; made by the control thread
  std::string name, host, database, force_user, pool_mode, load_balance_hosts;  // empty = NULL (host, force_user, …)
  int port = 5432, pool_size = 0, min_pool_size = 0, reserve_pool_size = 0;
  std::int64_t server_lifetime = 0;  // seconds
  int max_connections = 0, current_connections = 0, max_client_connections = 0, current_client_connections = 0;
  bool paused = false, disabled = false;
};

struct UserRow {                               // SHOW USERS
  std::string name, pool_mode;                 // empty = NULL
  int pool_size = -1, reserve_pool_size = -1;  // -1 = unset (shown as an empty string)
  int max_user_connections = 0, current_connections = 0, max_user_client_connections = 0,
      current_client_connections = 0;
};

struct PeerRow {  // SHOW PEERS; made by the control thread
  int peer_id = 0;
  std::string host;
  int port = 0, pool_size = 0;
};

struct PeerPoolRow {  // SHOW PEER_POOLS; one row a connection goes to, summed by number
  int peer_id = 0, cl_active_cancel_req = 0, cl_waiting_cancel_req = 0, sv_active_cancel = 0, sv_login = 0;
};

struct BudgetRow {                    // SHOW FLEET; made by the control thread
  std::string limit, database, user;  // empty = NULL
  int configured = 0, share = 0, here = 0;
  int held = -1;  // by all members; -1 = NULL: nobody counts that
  int members = 1, waiting = 0;
};

struct HostRow {  // SHOW HOSTS; made by the control thread
  std::string database, host;
  int port = 5432;
  std::string address;  // empty = NULL: its name has not been asked for
  int weight = 1;
  std::string role = "unknown", state = "unknown";
  Usec since = 0;  // wall clock, 0 = NULL
  int open = 0, active = 0;
  std::uint64_t failures = 0;
  Usec next_try = 0;       // from now
  std::string last_error;  // empty = NULL
  Usec latency = 0;        // of its last answer
};

struct HostUse {  // connections of one database to one address, as SHOW HOSTS counts them
  std::string database, address;
  int open = 0, active = 0;
};

struct HostTimesRow {
  std::string address;
  Histogram query, connect;
};

struct DnsHostRow {  // SHOW DNS_HOSTS; made by the control thread
  std::string hostname;
  std::int64_t ttl = 0;  // seconds until the next look-up
  std::string addrs;     // with commas between
};

struct DnsZoneRow {  // SHOW DNS_ZONES
  std::string zonename;
  std::uint32_t serial = 0;
  int count = 0;  // hosts
};

struct MemoryRow {  // SHOW MEM: one kind of object; made by the control thread
  std::string name;
  std::size_t size = 0;  // bytes of one, without what it points to
  int used = 0;
};

struct Lists {  // SHOW LISTS
  int databases = 0, users = 0, peers = 0, pools = 0, peer_pools = 0, free_clients = 0, used_clients = 0,
      login_clients = 0, free_servers = 0, used_servers = 0, dns_names = 0, dns_zones = 0, dns_queries = 0,
      dns_pending = 0;
};

struct SlowWaitRow {  // SHOW SLOW_WAITS
  Usec ended = 0;     // wall clock
  Usec waited = 0;
  bool in_vain = false;
  std::string database, user;
  int servers = 0, pool_size = 0;
  std::uint64_t client = 0;
  std::string addr;
  int port = 0;
  std::string application_name;
  int worker = 0;
};

// What one worker answers; fields not asked for stay empty.
struct Report {
  std::vector<SocketRow> clients, servers;
  std::vector<PoolRow> pools;
  std::vector<PeerPoolRow> peer_pools;
  std::vector<HostUse> host_use;  // an entry may come more than once
  std::vector<HostTimesRow> host_times;
  std::vector<SlowWaitRow> slow_waits;
  WorkerRow worker;
  int login_clients = 0;
  std::vector<session::Handed> handed;
};

// Everything a view can draw from: reports of all workers merged, plus the fleet's own rows.
struct Fleet {
  std::vector<SocketRow> clients, servers;  // in SHOW order
  std::vector<PoolRow> pools;               // summed, sorted by database then user
  std::vector<PeerPoolRow> peer_pools;      // summed, sorted by number
  std::vector<WorkerRow> workers;
  std::vector<PeerRow> peers;
  std::vector<DatabaseRow> databases;
  std::vector<UserRow> users;
  std::vector<HostRow> hosts;
  std::vector<HostUse> host_use;         // summed
  std::vector<HostTimesRow> host_times;  // summed
  std::vector<SlowWaitRow> slow_waits;   // latest first
  std::vector<BudgetRow> budget;
  std::vector<DnsHostRow> dns_hosts;
  std::vector<DnsZoneRow> dns_zones;
  Lists lists;
  std::vector<MemoryRow> memory;
  std::vector<config::ShownSetting> settings;
  struct Stats {
    std::string database;
    Counters total, period;  // period: growth over the last stats_period
  };
  std::vector<Stats> stats;  // per database, sorted
  Usec period = kSecond;     // length of `period` above
  bool paused = false, suspended = false, ending = false;
  std::vector<session::Handed> handed;  // SHOW FDS: listening sockets first
  std::string version;                  // "PgBouncer 1.25.2" style text of SHOW VERSION
};

// Sums the workers' reports (pools by key, sockets concatenated in pool order).
void merge(Fleet& fleet, std::vector<Report>& reports);

}  // namespace pgf::observe
