#include "observe/views.h"

#include <gmock/gmock.h>
#include <stdlib.h>
#include <time.h>

#include <set>

#include "observe/answer_test.h"

namespace pgf::observe {
namespace {

using test::rows;
using testing::ElementsAre;
using testing::IsEmpty;

std::string columns_of(std::string_view name) {
  const View* view = find_view(name);
  if (!view) return "no such view";
  return test::columns(test::split(render(*view, Fleet{})).at(0).body);
}

std::vector<std::string> shown(std::string_view name, const Fleet& fleet) {
  return rows(render(*find_view(name), fleet));
}

const std::string kSocketColumns =
    "type s user s database s replication s state s addr s port i local_addr s local_port i connect_time s "
    "request_time s wait i wait_us i close_needed i ptr s link s remote_pid i tls s application_name s "
    "prepared_statements i id i";
const std::string kBufferColumns =
    " recv_pos i pkt_pos i pkt_remain i send_pos i send_remain i pkt_avail i send_avail i";
const std::string kHandedColumns =
    "fd i task s user s database s addr s port i cancel q link i client_encoding s std_strings s datestyle s timezone "
    "s "
    "password s scram_client_key b scram_server_key b";

// The lists are those of the reference (admin.md section 4), T written as s.
TEST(Views, ColumnsAreThoseOfTheReference) {
  const std::pair<std::string_view, std::string> expected[] = {
      {"CLIENTS", kSocketColumns},
      {"SERVERS", kSocketColumns},
      {"SOCKETS", kSocketColumns + kBufferColumns},
      {"ACTIVE_SOCKETS", kSocketColumns + kBufferColumns},
      {"POOLS",
       "database s user s cl_active i cl_waiting i cl_active_cancel_req i cl_waiting_cancel_req i sv_active i "
       "sv_active_cancel i sv_being_canceled i sv_idle i sv_used i sv_tested i sv_login i maxwait i maxwait_us i "
       "pool_mode s load_balance_hosts s"},
      {"DATABASES",
       "name s host s port i database s force_user s pool_size i min_pool_size i reserve_pool_size i "
       "server_lifetime i pool_mode s load_balance_hosts s max_connections i current_connections i "
       "max_client_connections i current_client_connections i paused i disabled i"},
      {"USERS",
       "name s pool_size s reserve_pool_size s pool_mode s max_user_connections i current_connections i "
       "max_user_client_connections i current_client_connections i"},
      {"PEERS", "peer_id i host s port i pool_size i"},
      {"PEER_POOLS", "peer_id i cl_active_cancel_req i cl_waiting_cancel_req i sv_active_cancel i sv_login i"},
      {"LISTS", "list s items i"},
      {"STATS",
       "database s total_server_assignment_count N total_xact_count N total_query_count N total_received N "
       "total_sent N total_xact_time N total_query_time N total_wait_time N total_client_parse_count N "
       "total_server_parse_count N total_bind_count N total_client_login_count N avg_server_assignment_count N "
       "avg_xact_count N avg_query_count N avg_recv N avg_sent N avg_xact_time N avg_query_time N avg_wait_time N "
       "avg_client_parse_count N avg_server_parse_count N avg_bind_count N avg_client_login_count N"},
      {"STATS_TOTALS",
       "database s server_assignment_count N xact_count N query_count N bytes_received N bytes_sent N xact_time N "
       "query_time N wait_time N client_parse_count N server_parse_count N bind_count N client_login_count N"},
      {"STATS_AVERAGES",
       "database s server_assignment_count N xact_count N query_count N bytes_received N bytes_sent N xact_time N "
       "query_time N wait_time N avg_client_parse_count N avg_server_parse_count N avg_bind_count N "
       "avg_client_login_count N"},
      {"TOTALS", "name s value N"},
      {"LATENCY", "database s user s what s count q p50_us q p90_us q p99_us q p999_us q max_us q"},
      {"SLOW_WAITS",
       "ended s waited_us q outcome s database s user s servers i pool_size i client_id q addr s port i "
       "application_name s worker i"},
      {"VERSION", "version s"},
      {"STATE", "key s value s"},
      {"CONFIG", "key s value s default s changeable s"},
      {"MEM", "name s size i used i free i memtotal i"},
      {"HOSTS",
       "database s host s port i address s weight i role s state s since s open i active i failures q next_try i "
       "last_error s connect_us q"},
      {"FLEET", "limit s database s user s configured i share i held_here i held i members i members_waiting i"},
      {"DNS_HOSTS", "hostname s ttl q addrs s"},
      {"DNS_ZONES", "zonename s serial q count i"},
      {"FDS", kHandedColumns},
      {"TAKEOVER", kHandedColumns + " state b"},
      {"WORKERS",
       "worker i engine s clients i servers_active i servers_idle i waiting i transactions q received q sent q "
       "cpu_seconds N busy N loop_turns q syscalls q clients_moved_in q clients_moved_out q servers_moved_in q "
       "servers_moved_out q accept_in q accept_out q gather_in q gather_out q relieve_in q relieve_out q level_in q "
       "level_out q last_move s"},
  };
  std::set<std::string_view> tested;
  for (const auto& [name, text] : expected) {
    EXPECT_EQ(columns_of(name), text) << name;
    tested.insert(name);
  }
  for (const View& view : views()) EXPECT_TRUE(tested.contains(view.name)) << view.name << " is not tested";
}

TEST(Views, Budget) {
  Fleet fleet;
  fleet.budget.push_back({"max_client_conn", "", "", 100, 50, 7});
  fleet.budget.push_back({"pool_size", "d", "u", 10, 5, 3, 9, 2, 1});
  EXPECT_THAT(shown("FLEET", fleet),
              ElementsAre("max_client_conn|NULL|NULL|100|50|7|NULL|1|0", "pool_size|d|u|10|5|3|9|2|1"));
}

TEST(Views, SlowWaitsLatestFirst) {
  std::vector<Report> reports(2);
  reports[0].slow_waits = {{1000 * kSecond, 150'000, false, "d", "u", 3, 3, 7, "10.0.0.1", 4000, "app", 0}};
  reports[1].slow_waits = {{1001 * kSecond, 2'000'000, true, "d", "u", 3, 0, 8, "unix", 6432, "", 1}};
  Fleet fleet;
  merge(fleet, reports);
  auto rows = shown("SLOW_WAITS", fleet);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_THAT(rows[0], ::testing::EndsWith("|2000000|none|d|u|3|0|8|unix|6432||1"));
  EXPECT_THAT(rows[1], ::testing::EndsWith("|150000|served|d|u|3|3|7|10.0.0.1|4000|app|0"));
}

TEST(Views, Hosts) {
  Fleet fleet;
  HostRow row;
  row.database = "db";
  row.host = "name";
  fleet.hosts.push_back(row);
  row.host = "::1";
  row.port = 1;
  row.address = "[::1]:1";
  row.weight = 2;
  row.role = "standby";
  row.state = "out";
  row.open = 3;
  row.active = 4;
  row.failures = 5;
  row.next_try = kSecond + 1;
  row.last_error = "Connection refused";
  row.latency = 6;
  fleet.hosts.push_back(row);
  EXPECT_THAT(shown("HOSTS", fleet), ElementsAre("db|name|5432|NULL|1|unknown|unknown|NULL|0|0|0|0|NULL|0",
                                                 "db|::1|1|[::1]:1|2|standby|out|NULL|3|4|5|2|Connection refused|6"));
}

TEST(Views, EachPartHasABitOfItsOwn) {
  unsigned seen = 0;
  for (unsigned part : {kClients, kServers, kPools, kWorkers, kDatabases, kUsers, kLists, kSettings, kStats, kHanded,
                        kDns, kHosts, kBudget}) {
    EXPECT_FALSE(seen & part) << part;
    seen |= part;
  }
}

TEST(Views, FdsLeavesOutWhatItsFormatCannotCarry) {
  Fleet fleet;
  using session::Handed;
  Handed plain, pool, queued;
  plain.fd = 7;
  plain.addr = "unix";
  plain.scram_client_key = std::string("\x01\xff", 2);
  plain.state = "s";
  pool.task = Handed::Task::pool;
  queued.fd = 8;
  queued.needs_state = true;
  fleet.handed = {plain, pool, queued};
  EXPECT_EQ(shown("FDS", fleet).size(), 2u);
  fleet.suspended = true;  // somebody may be about to take over
  EXPECT_EQ(shown("FDS", fleet).size(), 1u);
  EXPECT_EQ(shown("TAKEOVER", fleet).size(), 3u);
  EXPECT_NE(shown("TAKEOVER", fleet)[0].find("\\x01ff"), std::string::npos);
  EXPECT_NE(shown("TAKEOVER", fleet)[0].find("\\x73"), std::string::npos);
}

TEST(Views, FindIgnoresCaseAndWantsTheWholeName) {
  ASSERT_TRUE(find_view("pOOls"));
  EXPECT_EQ(find_view("pOOls")->name, "POOLS");
  EXPECT_FALSE(find_view("POOL"));
  EXPECT_FALSE(find_view("POOLSX"));
  EXPECT_FALSE(find_view(""));
}

Fleet one_of_each() {
  Fleet fleet;
  fleet.clients.emplace_back().state = "active";
  fleet.servers.emplace_back().state = "idle";
  fleet.servers.back().type = 'S';
  fleet.pools.emplace_back();
  fleet.workers.emplace_back();
  fleet.databases.emplace_back();
  fleet.users.emplace_back();
  fleet.settings.push_back({"key", "v", "d", false, false, true});
  fleet.peers.emplace_back();
  fleet.peer_pools.emplace_back();
  fleet.stats.emplace_back();
  return fleet;
}

TEST(Views, EveryRowHasAsManyValuesAsColumns) {
  Fleet fleet = one_of_each();
  for (const View& view : views()) {
    for (const test::Message& message : test::split(render(view, fleet))) {
      if (message.type != 'D') continue;
      EXPECT_EQ(load_be16(as_bytes(message.body).data()), view.columns.size()) << view.name;
    }
  }
}

TEST(Views, AnswerIsCompleteEvenWithoutRows) {
  for (const View& view : views()) {
    auto messages = test::split(render(view, Fleet{}));
    ASSERT_GE(messages.size(), 3u);
    EXPECT_EQ(messages.front().type, 'T');
    EXPECT_EQ(messages[messages.size() - 2].type, 'C');
    EXPECT_EQ(messages[messages.size() - 2].body, std::string("SHOW\0", 5));
    EXPECT_EQ(messages.back().type, 'Z');
    EXPECT_EQ(messages.back().body, "I");
  }
}

TEST(Views, Sockets) {
  setenv("TZ", "XYZ-2", 1);  // two hours ahead of UTC, no daylight saving
  tzset();
  SocketRow c;
  c.user = "u", c.database = "d", c.state = "idle", c.addr = "10.0.0.1", c.port = 4711;
  c.local_addr = "10.0.0.2", c.local_port = 6432;
  c.connect_time = 1'700'000'000 * kSecond + 999'999, c.request_time = 1'700'000'061 * kSecond;
  c.wait = 3 * kSecond + 25, c.ptr = 0xabc0, c.link = 0x10, c.remote_pid = 5, c.tls = "TLSv1.3/X/Y";
  c.application_name = "psql", c.prepared_statements = 2, c.id = 9;
  SocketRow s = c;
  s.type = 'S', s.state = "new", s.link = 0, s.close_needed = true, s.tls = "";
  SocketRow cancel = s;
  cancel.state = "active_cancel";
  Fleet fleet;
  fleet.clients = {c};
  fleet.servers = {s, cancel};
  EXPECT_THAT(shown("CLIENTS", fleet),
              ElementsAre("C|u|d|none|idle|10.0.0.1|4711|10.0.0.2|6432|2023-11-15 00:13:20 XYZ|"
                          "2023-11-15 00:14:21 XYZ|3|25|0|0xabc0|0x10|5|TLSv1.3/X/Y|psql|2|9"));
  const std::string server =
      "10.0.0.1|4711|10.0.0.2|6432|2023-11-15 00:13:20 XYZ|2023-11-15 00:14:21 XYZ|3|25|1|0xabc0||5||psql|2|9";
  EXPECT_THAT(shown("SERVERS", fleet), ElementsAre("S|u|d|none|new|" + server, "S|u|d|none|active_cancel|" + server));
  auto sockets = shown("SOCKETS", fleet);
  ASSERT_EQ(sockets.size(), 2u);  // cancels are not listed
  EXPECT_TRUE(sockets[0].starts_with("C|u|d|none|cl_active|"));
  EXPECT_EQ(sockets[1], "S|u|d|none|sv_login|" + server + "|0|0|0|0|0|0|0");
  EXPECT_THAT(shown("ACTIVE_SOCKETS", fleet), IsEmpty());

  fleet.clients[0].unsent = 70'000;
  EXPECT_EQ(shown("SOCKETS", fleet).size(), 2u);
  auto active = shown("ACTIVE_SOCKETS", fleet);
  ASSERT_EQ(active.size(), 1u);
  EXPECT_TRUE(active[0].ends_with("|0|0|0|0|0|0|70000")) << active[0];
}

TEST(Views, Memory) {
  Fleet fleet;
  fleet.memory = {{"server_cache", 500, 3}};
  EXPECT_THAT(shown("MEM", fleet), ElementsAre("server_cache|500|3|0|1500"));
}

TEST(Views, Pools) {
  Fleet fleet;
  PoolRow p;
  p.database = "d", p.user = "u";
  p.cl_active = 1, p.cl_waiting = 2, p.cl_active_cancel_req = 3, p.cl_waiting_cancel_req = 4, p.sv_active = 5;
  p.sv_active_cancel = 6, p.sv_being_canceled = 7, p.sv_idle = 8, p.sv_used = 9, p.sv_tested = 10, p.sv_login = 11;
  p.maxwait = 12 * kSecond + 13, p.pool_mode = config::PoolMode::transaction;
  fleet.pools = {p, p};
  fleet.pools[1].load_balance_hosts = "round-robin";
  EXPECT_THAT(shown("POOLS", fleet), ElementsAre("d|u|1|2|3|4|5|6|7|8|9|10|11|12|13|transaction|NULL",
                                                 "d|u|1|2|3|4|5|6|7|8|9|10|11|12|13|transaction|round-robin"));
}

TEST(Views, Databases) {
  Fleet fleet;
  DatabaseRow d;
  d.name = "a", d.database = "b", d.port = 1, d.pool_size = 2, d.min_pool_size = 3, d.reserve_pool_size = 4;
  d.server_lifetime = 5, d.max_connections = 6, d.current_connections = 7, d.max_client_connections = 8;
  d.current_client_connections = 9, d.disabled = true;
  fleet.databases = {d, d};
  fleet.databases[1].host = "h", fleet.databases[1].force_user = "f", fleet.databases[1].pool_mode = "session";
  fleet.databases[1].load_balance_hosts = "disable", fleet.databases[1].paused = true;
  EXPECT_THAT(shown("DATABASES", fleet), ElementsAre("a|NULL|1|b|NULL|2|3|4|5|NULL|NULL|6|7|8|9|0|1",
                                                     "a|h|1|b|f|2|3|4|5|session|disable|6|7|8|9|1|1"));
}

TEST(Views, Users) {
  Fleet fleet;
  fleet.users = {{.name = "u",
                  .pool_mode = "",
                  .max_user_connections = 1,
                  .current_connections = 2,
                  .max_user_client_connections = 3,
                  .current_client_connections = 4},
                 {.name = "v", .pool_mode = "session", .pool_size = 20, .reserve_pool_size = 0}};
  EXPECT_THAT(shown("USERS", fleet), ElementsAre("u|||NULL|1|2|3|4", "v|       20|        0|session|0|0|0|0"));
}

TEST(Views, StatsHaveTotalsThenAverages) {
  Fleet fleet;
  Counters total{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  Counters growth{10, 20, 40, 60'000, 80'000, 2000, 2000, 500, 100, 120, 140, 160};
  fleet.stats = {{"d", total, growth}, {"e", total, {}}};
  fleet.period = 20 * kSecond;
  EXPECT_THAT(shown("STATS", fleet), ElementsAre("d|1|2|3|4|5|6|7|8|9|10|11|12|0|1|2|3000|4000|100|50|50|5|6|7|8",
                                                 "e|1|2|3|4|5|6|7|8|9|10|11|12|0|0|0|0|0|0|0|0|0|0|0|0"));
  EXPECT_EQ(shown("STATS_TOTALS", fleet)[0], "d|1|2|3|4|5|6|7|8|9|10|11|12");
  EXPECT_EQ(shown("STATS_AVERAGES", fleet)[0], "d|0|1|2|3000|4000|100|50|50|5|6|7|8");
  EXPECT_THAT(shown("TOTALS", fleet),
              ElementsAre("total_server_assignment_count|2", "total_xact_count|4", "total_query_count|6",
                          "total_client_bytes|8", "total_server_bytes|10", "total_xact_time|12", "total_query_time|14",
                          "total_wait_time|16", "total_ps_client_parse_count|18", "total_ps_server_parse_count|20",
                          "total_ps_bind_count|22", "total_client_login_count|24", "avg_server_assignment_count|0",
                          "avg_xact_count|1", "avg_query_count|2", "avg_client_bytes|3000", "avg_server_bytes|4000",
                          "avg_xact_time|100", "avg_query_time|50", "avg_wait_time|50", "avg_ps_client_parse_count|5",
                          "avg_ps_server_parse_count|6", "avg_ps_bind_count|7", "avg_client_login_count|8"));
}

TEST(Views, Lists) {
  Fleet fleet;
  fleet.lists = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 0};
  EXPECT_THAT(shown("LISTS", fleet),
              ElementsAre("databases|1", "users|2", "peers|3", "pools|4", "peer_pools|5", "free_clients|6",
                          "used_clients|7", "login_clients|8", "free_servers|9", "used_servers|10", "dns_names|11",
                          "dns_zones|12", "dns_queries|13", "dns_pending|0"));
}

TEST(Views, Peers) {
  Fleet fleet;
  fleet.peers = {{0, "pods.svc", 6432, 20}, {7, "/sock", 1, 2}};
  fleet.peer_pools = {{7, 1, 2, 3, 4}};
  EXPECT_THAT(shown("PEERS", fleet), ElementsAre("0|pods.svc|6432|20", "7|/sock|1|2"));
  EXPECT_THAT(shown("PEER_POOLS", fleet), ElementsAre("7|1|2|3|4"));
}

// What hands out descriptors goes a way of its own.
TEST(Views, OnlyFdsAndTakeoverAreHanded) {
  for (const View& view : views())
    EXPECT_EQ((view.gather & kHanded) != 0, view.name == "FDS" || view.name == "TAKEOVER") << view.name;
}

TEST(Views, Dns) {
  Fleet fleet;
  fleet.dns_hosts = {{"db.a", 14, "10.0.0.1:0,[::1]:0"}, {"gone", 0, ""}};
  fleet.dns_zones = {{"a", 4294967295, 1}};
  EXPECT_THAT(shown("DNS_HOSTS", fleet), ElementsAre("db.a|14|10.0.0.1:0,[::1]:0", "gone|0|"));
  EXPECT_THAT(shown("DNS_ZONES", fleet), ElementsAre("a|4294967295|1"));
}

TEST(Views, ConfigVersionState) {
  Fleet fleet;
  fleet.settings = {{"a", "1", "2", false, false, true}, {"b", "", "", true, true, false}};
  fleet.version = "PgBouncer 1.25.2";
  EXPECT_THAT(shown("CONFIG", fleet), ElementsAre("a|1|2|yes", "b|NULL|NULL|no"));
  EXPECT_THAT(shown("VERSION", fleet), ElementsAre("PgBouncer 1.25.2"));
  EXPECT_THAT(shown("STATE", fleet), ElementsAre("active|yes", "paused|no", "suspended|no"));
  fleet.paused = true;
  EXPECT_THAT(shown("STATE", fleet), ElementsAre("active|no", "paused|yes", "suspended|no"));
  fleet.paused = false, fleet.suspended = true;
  EXPECT_THAT(shown("STATE", fleet), ElementsAre("active|no", "paused|no", "suspended|yes"));
}

TEST(Views, Workers) {
  Fleet fleet;
  fleet.workers = {{1,
                    "io_uring",
                    2,
                    3,
                    4,
                    5,
                    6,
                    7,
                    8,
                    9.25,
                    0.5,
                    10,
                    11,
                    {1, 2, 3, 4, 5},
                    {6, 0, 0, 7, 0},
                    14,
                    15,
                    "level: 7 to worker 0"}};
  EXPECT_THAT(shown("WORKERS", fleet), ElementsAre("1|io_uring|2|3|4|5|6|7|8|9.250|0.500|10|11|15|13|14|15|"
                                                   "1|6|2|0|3|0|4|7|level: 7 to worker 0"));
  fleet.workers[0].why.clear();
  EXPECT_THAT(shown("WORKERS", fleet), ElementsAre(testing::EndsWith("|7|NULL")));
}

}  // namespace
}  // namespace pgf::observe
