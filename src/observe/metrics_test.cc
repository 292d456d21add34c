#include "observe/metrics.h"

#include <gmock/gmock.h>

namespace pgf::observe {
namespace {

using testing::HasSubstr;
using testing::Not;

Fleet fleet_with(std::vector<std::string> databases) {
  Fleet fleet;
  std::uint64_t n = 0;
  for (std::string& name : databases) {
    PoolRow pool;
    pool.database = std::move(name);
    pool.user = "u";
    pool.cl_active = 2;
    pool.counters.xact_count = ++n;
    pool.latencies.query.record(100);
    fleet.pools.push_back(std::move(pool));
  }
  return fleet;
}

std::string page(const Fleet& fleet, Exposition exposition = Exposition::prometheus, std::size_t limit = 200) {
  Foremost foremost(limit);
  return metrics(fleet, exposition, foremost);
}

TEST(Metrics, LabelsAreEscapedAndUtf8) {
  const std::string text = page(fleet_with({"a\"b\\c\nd", "caf\xc3\xa9", "bad\xff\xc3", "\xc0\xaf\xed\xa0\x80", ""}));
  EXPECT_THAT(text, HasSubstr(R"(pgbouncer_pools_client_active_connections{database="a\"b\\c\nd",user="u"} 2)"));
  EXPECT_THAT(text, HasSubstr("database=\"caf\xc3\xa9\""));
  EXPECT_THAT(text, HasSubstr(R"(database="bad\\xff\\xc3")"));  // no UTF-8, and told apart all the same
  EXPECT_THAT(text, HasSubstr(R"(database="\\xc0\\xaf\\xed\\xa0\\x80")"));
  EXPECT_THAT(text, HasSubstr("database=\"\",user=\"u\""));
}

TEST(Metrics, BucketsAreCumulative) {
  Fleet fleet = fleet_with({"d"});
  fleet.pools[0].latencies.query.record(127);
  fleet.pools[0].latencies.query.record(128);
  fleet.pools[0].latencies.query.record(kSecond);
  const std::string text = page(fleet);
  EXPECT_THAT(text, HasSubstr(R"(pgflotilla_query_seconds_bucket{database="d",user="u",le="6.4e-05"} 0)"));
  EXPECT_THAT(text, HasSubstr(R"(pgflotilla_query_seconds_bucket{database="d",user="u",le="0.000128"} 2)"));
  EXPECT_THAT(text, HasSubstr(R"(pgflotilla_query_seconds_bucket{database="d",user="u",le="0.000256"} 3)"));
  EXPECT_THAT(text, HasSubstr(R"(pgflotilla_query_seconds_bucket{database="d",user="u",le="+Inf"} 4)"));
  EXPECT_THAT(text, HasSubstr(R"(pgflotilla_query_seconds_sum{database="d",user="u"} 1.000355)"));
  EXPECT_THAT(text, HasSubstr(R"(pgflotilla_query_seconds_count{database="d",user="u"} 4)"));
  EXPECT_THAT(text, Not(HasSubstr("pgflotilla_wait_seconds_count")));  // nothing was recorded
}

TEST(Metrics, BeyondTheLimitTheRestIsSummed) {
  const std::string text = page(fleet_with({"a", "b", "c", "d"}), Exposition::prometheus, 2);
  EXPECT_THAT(text, HasSubstr(R"(pgbouncer_pools_client_active_connections{database="d",user="u"} 2)"));
  EXPECT_THAT(text, HasSubstr(R"(pgbouncer_pools_client_active_connections{database="c",user="u"} 2)"));
  EXPECT_THAT(text, HasSubstr(R"x(pgbouncer_pools_client_active_connections{database="(others)",user="(others)"} 4)x"));
  EXPECT_THAT(text, HasSubstr(R"x(pgflotilla_query_seconds_count{database="(others)",user="(others)"} 2)x"));
  EXPECT_THAT(text, Not(HasSubstr("database=\"a\"")));
}

TEST(Metrics, TheTwoExpositionsNameCountersDifferently) {
  Fleet fleet;
  fleet.workers.resize(1);
  fleet.workers[0].transactions = 7;
  const std::string old = page(fleet), open = page(fleet, Exposition::openmetrics);
  EXPECT_THAT(old, HasSubstr("# TYPE pgflotilla_worker_transactions_total counter\n"
                             "pgflotilla_worker_transactions_total{worker=\"0\"} 7\n"));
  EXPECT_THAT(open, HasSubstr("# TYPE pgflotilla_worker_transactions counter\n"
                              "pgflotilla_worker_transactions_total{worker=\"0\"} 7\n"));
  EXPECT_TRUE(open.ends_with("\n# EOF\n"));
  EXPECT_THAT(old, Not(HasSubstr("# EOF")));
}

TEST(Metrics, WhoHasSeriesKeepsThem) {
  Foremost foremost(2);
  Fleet fleet = fleet_with({"a", "b", "c", "d"});
  metrics(fleet, Exposition::prometheus, foremost);
  fleet.pools[0].counters.xact_count = 1000;  // a is busier than c and d now
  const std::string text = metrics(fleet, Exposition::prometheus, foremost);
  EXPECT_THAT(text, HasSubstr("database=\"c\""));
  EXPECT_THAT(text, HasSubstr("database=\"d\""));
  EXPECT_THAT(text, Not(HasSubstr("database=\"a\"")));
  fleet.pools.erase(fleet.pools.begin() + 2);  // c is gone: its place is free
  EXPECT_THAT(metrics(fleet, Exposition::prometheus, foremost), HasSubstr("database=\"a\""));
}

TEST(Metrics, WhoHasDoneNothingDoesNotTakeAPlace) {
  Fleet fleet = fleet_with({"a", "b", "c"});
  for (PoolRow& p : fleet.pools) p.cl_active = 0;
  fleet.pools[0].counters.xact_count = fleet.pools[1].counters.xact_count = 0;
  const std::string text = page(fleet, Exposition::prometheus, 2);
  EXPECT_THAT(text, HasSubstr("database=\"c\""));
  EXPECT_THAT(text, Not(HasSubstr("database=\"a\"")));
}

TEST(Metrics, APoolCalledAsTheSumIsPartOfIt) {
  Fleet fleet = fleet_with({"(others)", "b", "a"});
  fleet.pools[0].user = "(others)";
  const std::string text = page(fleet, Exposition::prometheus, 1);
  EXPECT_THAT(text, HasSubstr(R"(client_active_connections{database="a",user="u"} 2)"));
  EXPECT_THAT(text, HasSubstr(R"x(client_active_connections{database="(others)",user="(others)"} 4)x"));
}

TEST(Metrics, CancelsByOutcome) {
  Fleet fleet;
  fleet.workers.resize(2);
  ++fleet.workers[0].cancels[cancel_outcome("successfully sent cancel request")];
  ++fleet.workers[1].cancels[cancel_outcome("successfully sent cancel request")];
  ++fleet.workers[1].cancels[cancel_outcome("failed cancel request")];
  ++fleet.workers[1].cancels[cancel_outcome("connect failed")];
  const std::string text = page(fleet);
  EXPECT_THAT(text, HasSubstr("pgflotilla_cancels_total{outcome=\"sent\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("pgflotilla_cancels_total{outcome=\"unknown\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("pgflotilla_cancels_total{outcome=\"failed\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("pgflotilla_cancels_total{outcome=\"timeout\"} 0\n"));
}

TEST(Metrics, HostsAndTheirTimes) {
  Fleet fleet;
  HostRow& h = fleet.hosts.emplace_back();
  h.database = "d";
  h.host = "h";
  h.address = "1.2.3.4:5432";
  h.role = "primary";
  h.state = "out";
  h.open = 3;
  h.active = 2;
  h.failures = 7;
  fleet.databases.emplace_back().name = "d";
  HostTimesRow& times = fleet.host_times.emplace_back();
  times.address = h.address;
  times.query.record(100);
  const std::string text = page(fleet);
  EXPECT_THAT(text,
              HasSubstr(R"(pgflotilla_host_connections{database="d",host="h",port="5432",address="1.2.3.4:5432"} 3)"));
  EXPECT_THAT(text, HasSubstr(R"(address="1.2.3.4:5432",role="primary",state="out"} 1)"));
  EXPECT_THAT(
      text, HasSubstr(R"(pgflotilla_host_failures_total{database="d",host="h",port="5432",address="1.2.3.4:5432"} 7)"));
  EXPECT_THAT(text, HasSubstr(R"(pgflotilla_host_query_seconds_count{address="1.2.3.4:5432"} 1)"));
}

}  // namespace
}  // namespace pgf::observe
