#include "observe/findings.h"

#include <gmock/gmock.h>

namespace pgf::observe {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

PoolRow pool(std::string database, std::string user, int waiting, int active, int size) {
  PoolRow p;
  p.database = std::move(database), p.user = std::move(user);
  p.cl_waiting = waiting, p.sv_active = active, p.pool_size = size;
  p.maxwait = waiting ? 2 * kSecond : 0;
  p.pool_mode = config::PoolMode::transaction;
  return p;
}

HostRow host(std::string database, std::string address, std::string state = "up") {
  HostRow h;
  h.database = std::move(database), h.address = std::move(address), h.state = std::move(state);
  return h;
}

// Why the only pool that waits does.
std::string why(const Fleet& fleet, const std::vector<RecentPool>& recent = {},
                const std::vector<RecentHost>& hosts = {}) {
  for (const Finding& f : findings(fleet, recent, hosts))
    if (!f.database.empty()) return f.reason;
  return "";
}

TEST(Findings, NothingWhereNothingWaits) {
  Fleet fleet;
  fleet.pools = {pool("d", "u", 0, 5, 5)};
  fleet.hosts = {host("d", "1.2.3.4:5")};
  EXPECT_THAT(findings(fleet, {}, {{"1.2.3.4:5", 100, 10 * kSecond}}), IsEmpty());
  EXPECT_THAT(findings({}, {}, {}), IsEmpty());
}

TEST(Findings, PoolTooSmall) {
  Fleet fleet;
  fleet.pools = {pool("d", "u", 3, 5, 5)};
  const auto all = findings(fleet, {}, {});
  ASSERT_THAT(all, SizeIs(1));
  EXPECT_TRUE(all[0].bad);
  EXPECT_EQ(all[0].title, "3 clients of d / u wait, the first for 2.0 s");
  EXPECT_EQ(all[0].reason, "the pool is too small: all 5 servers are busy (pool_size = 5)");
  EXPECT_EQ(all[0].database + "/" + all[0].user, "d/u");
  EXPECT_THAT(why(fleet, {{0.2, 2}}), HasSubstr("no query running for 90 % of their time"));
  EXPECT_EQ(why(fleet, {{1.9, 2}}), all[0].reason);
  fleet.pools[0].pool_mode = config::PoolMode::session;
  EXPECT_THAT(why(fleet), HasSubstr("pool_mode = session"));
}

TEST(Findings, ShortWaitsAreNotBad) {
  Fleet fleet;
  fleet.pools = {pool("d", "u", 1, 1, 1)};
  fleet.pools[0].maxwait = 999'999;
  EXPECT_THAT(findings(fleet, {}, {}), ElementsAre(Field(&Finding::bad, false)));
}

TEST(Findings, WhatElseItWaitsFor) {
  Fleet fleet;
  fleet.pools = {pool("d", "u", 1, 2, 5), pool("d", "greedy", 0, 8, 10)};
  EXPECT_EQ(why(fleet), "they are about to be served");
  fleet.pools[0].sv_login = 1;
  EXPECT_EQ(why(fleet), "a server is being opened");
  fleet.budget = {{"max_client_conn", "", "", 9, 5, 1, 9, 2},
                  {"pool_size", "d", "other", 9, 5, 1, 9, 2},
                  {"pool_size", "d", "u", 5, 3, 2, 4, 2}};
  EXPECT_EQ(why(fleet), "a server is being opened");
  fleet.budget[2].held = 5;
  EXPECT_EQ(why(fleet), "pool_size = 5 is used up by 2 processes together, 2 of them here");
  fleet.budget.clear();
  fleet.users.resize(1);
  fleet.users[0].name = "u";
  fleet.users[0].max_user_connections = fleet.users[0].current_connections = 2;
  EXPECT_EQ(why(fleet), "max_user_connections = 2 is used up");
  fleet.databases.resize(1);
  fleet.databases[0].name = "d";
  fleet.databases[0].max_connections = fleet.databases[0].current_connections = 10;
  EXPECT_EQ(why(fleet), "max_db_connections = 10 is used up, user greedy holds 8 of them");
  fleet.hosts = {host("d", "a:1", "out"), host("d", "b:1")};
  EXPECT_THAT(why(fleet), HasSubstr("greedy"));  // one is enough
  fleet.hosts[1].state = "out";
  fleet.hosts[0].last_error = "refused";
  EXPECT_EQ(why(fleet), "no host can be reached: refused");
  fleet.databases[0].paused = true;
  EXPECT_EQ(why(fleet), "the database is paused");
  fleet.paused = true;
  EXPECT_EQ(why(fleet), "everything is paused");
}

TEST(Findings, SlowHost) {
  Fleet fleet;
  fleet.pools = {pool("d", "u", 1, 5, 5)};
  fleet.hosts = {host("d", "a:1"), host("d", "b:1"), host("d", "c:1")};
  EXPECT_EQ(why(fleet, {}, {{"a:1", 50, 1000}, {"b:1", 50, 300'000}, {"c:1", 2, 9 * kSecond}}),
            "host b:1 is slow: half of its queries take 300.0 ms or more, on a:1 it is 1.0 ms");
  EXPECT_THAT(why(fleet, {}, {{"a:1", 50, 200'000}, {"b:1", 50, 300'000}}), HasSubstr("too small"));
  EXPECT_THAT(why(fleet, {}, {{"a:1", 50, 10}, {"b:1", 50, 400}}), HasSubstr("too small"));  // quick enough
  EXPECT_THAT(why(fleet, {}, {{"b:1", 50, 300'000}}), HasSubstr("too small"));               // and whom else?
  fleet.pools[0].cl_waiting = 0;
  EXPECT_THAT(findings(fleet, {}, {{"a:1", 50, 1000}, {"b:1", 50, 300'000}}),
              ElementsAre(Field(&Finding::title, "d has a slow host")));
}

TEST(Findings, LimitsOfTheProgram) {
  Fleet fleet;
  fleet.workers.resize(2);
  fleet.workers[1].worker = 1;
  fleet.workers[1].busy = 0.97;
  fleet.workers[1].clients = 90;
  fleet.budget = {{"max_client_conn", "", "", 100, 100, 90, 90}};
  EXPECT_THAT(findings(fleet, {}, {}), ElementsAre(Field(&Finding::title, "90 of 100 clients are connected"),
                                                   Field(&Finding::title, "worker 1 has no time left")));
  fleet.budget[0].held = 89;
  EXPECT_THAT(findings(fleet, {}, {}), SizeIs(1));
  fleet.budget = {{"max_client_conn", "", "", 100, 25, 24, -1, 4}};  // fleet_size = 4
  EXPECT_THAT(findings(fleet, {}, {}), Contains(Field(&Finding::title, "24 of 25 clients are connected")));
}

TEST(Findings, AreNotMoreThanSomebodyReads) {
  Fleet fleet;
  for (int i = 0; i < 1000; ++i) {
    fleet.pools.push_back(pool("d" + std::to_string(i), "u", 1, 1, 1));
    fleet.pools.back().maxwait = i;
    fleet.hosts.push_back(host("d" + std::to_string(i), "h", "out"));
  }
  const auto all = findings(fleet, {}, {});
  ASSERT_THAT(all, SizeIs(kMaxFindings));
  EXPECT_EQ(all[0].database, "d999");  // who waits longest
  EXPECT_THAT(all, testing::Contains(Field(&Finding::title, "clients of 985 more pools wait")));
}

}  // namespace
}  // namespace pgf::observe
