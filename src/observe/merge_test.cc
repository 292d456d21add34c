#include <gmock/gmock.h>

#include "observe/report.h"
#include "observe/stats.h"

namespace pgf::observe {
namespace {

using testing::ElementsAre;

SocketRow socket(char type, std::string database, std::string user, std::string state, std::uint64_t id) {
  SocketRow row;
  row.type = type, row.database = std::move(database), row.user = std::move(user), row.state = std::move(state);
  row.id = id;
  return row;
}

std::vector<std::uint64_t> ids(const std::vector<SocketRow>& rows) {
  std::vector<std::uint64_t> found;
  for (const SocketRow& row : rows) found.push_back(row.id);
  return found;
}

PoolRow pool(std::string database, std::string user, int cl_active, int sv_idle, Usec maxwait, std::uint64_t queries) {
  PoolRow row;
  row.database = std::move(database), row.user = std::move(user), row.cl_active = cl_active, row.sv_idle = sv_idle;
  row.maxwait = maxwait, row.counters.query_count = queries;
  return row;
}

TEST(Merge, NothingFromNobody) {
  Fleet fleet;
  std::vector<Report> reports;
  merge(fleet, reports);
  EXPECT_TRUE(fleet.pools.empty() && fleet.clients.empty() && fleet.workers.empty() && fleet.stats.empty());
}

TEST(Merge, PoolsAreSummedByKeyAndSorted) {
  std::vector<Report> reports(2);
  reports[0].pools = {pool("b", "u", 1, 2, 30, 100), pool("a", "v", 1, 0, 0, 1)};
  reports[1].pools = {pool("b", "u", 10, 20, 7, 1000), pool("a", "u", 5, 6, 7, 8)};
  reports[1].pools[0].load_balance_hosts = "disable";
  Fleet fleet;
  merge(fleet, reports);
  ASSERT_EQ(fleet.pools.size(), 3u);
  EXPECT_EQ(fleet.pools[0].database + fleet.pools[0].user, "au");
  EXPECT_EQ(fleet.pools[1].database + fleet.pools[1].user, "av");
  const PoolRow& sum = fleet.pools[2];
  EXPECT_EQ(sum.database + sum.user, "bu");
  EXPECT_EQ(sum.cl_active, 11);
  EXPECT_EQ(sum.sv_idle, 22);
  EXPECT_EQ(sum.maxwait, 30);
  EXPECT_EQ(sum.counters.query_count, 1100u);
  EXPECT_EQ(sum.load_balance_hosts, "disable");
}

TEST(Merge, PeersAreSummedByNumber) {
  std::vector<Report> reports(2);
  reports[0].peer_pools = {{7, 1, 2, 3, 4}, {0, 1, 1, 1, 1}};
  reports[1].peer_pools = {{0, 10, 20, 30, 40}, {3, 0, 0, 0, 0}};
  Fleet fleet;
  merge(fleet, reports);
  std::vector<std::vector<int>> rows;
  for (const PeerPoolRow& p : fleet.peer_pools)
    rows.push_back({p.peer_id, p.cl_active_cancel_req, p.cl_waiting_cancel_req, p.sv_active_cancel, p.sv_login});
  EXPECT_THAT(rows,
              ElementsAre(ElementsAre(0, 11, 21, 31, 41), ElementsAre(3, 0, 0, 0, 0), ElementsAre(7, 1, 2, 3, 4)));
  EXPECT_EQ(fleet.lists.peer_pools, 3);
  EXPECT_EQ(fleet.lists.used_clients, 11 + 21 + 1 + 2);
  EXPECT_EQ(fleet.lists.used_servers, 31 + 41 + 3 + 4);
}

TEST(Merge, EveryPoolNumberIsSummed) {
  std::vector<Report> reports(3);
  for (Report& report : reports) {
    PoolRow p;
    p.cl_active = 1, p.cl_waiting = 2, p.cl_active_cancel_req = 3, p.cl_waiting_cancel_req = 4, p.sv_active = 5;
    p.sv_active_cancel = 6, p.sv_being_canceled = 7, p.sv_idle = 8, p.sv_used = 9, p.sv_tested = 10, p.sv_login = 11;
    p.counters = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    report.pools = {p};
    report.login_clients = 2;
  }
  Fleet fleet;
  merge(fleet, reports);
  const PoolRow& p = fleet.pools.at(0);
  EXPECT_THAT((std::vector{p.cl_active, p.cl_waiting, p.cl_active_cancel_req, p.cl_waiting_cancel_req, p.sv_active,
                           p.sv_active_cancel, p.sv_being_canceled, p.sv_idle, p.sv_used, p.sv_tested, p.sv_login}),
              ElementsAre(3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 33));
  for (std::size_t i = 0; i < std::size(kCounters); ++i) EXPECT_EQ(p.counters.*kCounters[i], 3 * (i + 1));
  EXPECT_EQ(fleet.lists.pools, 1);
  EXPECT_EQ(fleet.lists.login_clients, 6);
  EXPECT_EQ(fleet.lists.used_clients, 3 + 6 + 9 + 12 + 6);
  EXPECT_EQ(fleet.lists.used_servers, 15 + 18 + 21 + 24 + 27 + 30 + 33);
}

TEST(Merge, SocketsInPoolOrderThenByState) {
  std::vector<Report> reports(2);
  reports[0].clients = {socket('C', "b", "u", "waiting", 1), socket('C', "(nodb)", "(nouser)", "active_cancel_req", 2),
                        socket('C', "a", "u", "active", 3)};
  reports[1].clients = {socket('C', "b", "u", "active", 4), socket('C', "b", "u", "idle", 5),
                        socket('C', "a", "u", "waiting_cancel_req", 6)};
  reports[0].servers = {socket('S', "a", "u", "being_canceled", 7), socket('S', "a", "u", "active_cancel", 8),
                        socket('S', "a", "u", "new", 9)};
  reports[1].servers = {socket('S', "a", "u", "tested", 10), socket('S', "a", "u", "used", 11),
                        socket('S', "a", "u", "idle", 12), socket('S', "a", "u", "active", 13)};
  Fleet fleet;
  merge(fleet, reports);
  EXPECT_THAT(ids(fleet.clients), ElementsAre(3, 6, 4, 5, 1, 2));
  EXPECT_THAT(ids(fleet.servers), ElementsAre(13, 12, 11, 10, 9, 8, 7));
}

TEST(Merge, WorkersInOrder) {
  std::vector<Report> reports(2);
  reports[0].worker.worker = 1;
  reports[1].worker.worker = 0;
  Fleet fleet;
  merge(fleet, reports);
  ASSERT_EQ(fleet.workers.size(), 2u);
  EXPECT_EQ(fleet.workers[0].worker, 0);
}

TEST(Stats, TotalsPerDatabase) {
  std::vector<Report> reports(1);
  reports[0].pools = {pool("a", "u", 0, 0, 0, 1), pool("a", "v", 0, 0, 0, 2), pool("b", "u", 0, 0, 0, 4)};
  Fleet fleet;
  merge(fleet, reports);
  ASSERT_EQ(fleet.stats.size(), 2u);
  EXPECT_EQ(fleet.stats[0].total.query_count, 3u);
  EXPECT_EQ(fleet.stats[1].total.query_count, 4u);
}

TEST(Stats, GrowthIsPerDatabaseAndNeverNegative) {
  Counters five, eight;
  five.query_count = 5, eight.query_count = 8;
  std::vector<Fleet::Stats> before = {{"a", five, {}}, {"c", eight, {}}};
  std::vector<Fleet::Stats> now = {{"a", eight, {}}, {"b", eight, {}}, {"c", five, {}}};
  set_growth(now, before);
  EXPECT_EQ(now[0].period.query_count, 3u);
  EXPECT_EQ(now[1].period.query_count, 8u);
  EXPECT_EQ(now[2].period.query_count, 0u);

  std::vector<Fleet::Stats> later = {{"b", {}, {}}, {"z", {}, {}}};
  copy_growth(later, now);
  EXPECT_EQ(later[0].period.query_count, 8u);
  EXPECT_EQ(later[1].period.query_count, 0u);
}

TEST(Stats, AveragesDivideByTheRightThing) {
  Counters growth{10, 20, 40, 60, 80, 2000, 2000, 500, 2, 4, 6, 8};
  Counters average = averages(growth, 2 * kSecond);
  Counters expected{5, 10, 20, 30, 40, 100, 50, 50, 1, 2, 3, 4};
  for (auto counter : kCounters) EXPECT_EQ(average.*counter, expected.*counter);
}

TEST(Stats, AveragesOfNothingAndOfVeryMuch) {
  Counters growth;
  growth.query_time = 7;
  EXPECT_EQ(averages(growth, 0).query_time, 0u);
  growth.received = 1'000'000'000'000'000;
  EXPECT_EQ(averages(growth, 100 * kSecond).received, 10'000'000'000'000u);
}

}  // namespace
}  // namespace pgf::observe
