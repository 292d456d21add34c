#include "observe/glance.h"

#include <gmock/gmock.h>

#include "observe/json.h"

namespace pgf::observe {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(Json, IsWrittenAndEscaped) {
  Json out;
  out.open('{').member("a", 1).key("b").open('[').value(true).null().value(0.5).open('{').close('}').close(']');
  out.member("c", "x\"\\\n\x01</script>&\xe2\x80\xa8").member("caf\xc3\xa9", "\xff").close('}');
  EXPECT_EQ(out.take(),
            R"({"a":1,"b":[true,null,0.5,{}],"c":"x\"\\\u000a\u0001\u003c/script\u003e\u0026\u2028","café":"\\xff"})");
}

std::shared_ptr<Fleet> fleet(int pools, std::uint64_t queries = 0) {
  auto f = std::make_shared<Fleet>();
  for (int i = 0; i < pools; ++i) {
    PoolRow p;
    p.database = fmt::format("db{:05}", i);
    p.user = i % 2 ? "odd" : "Even";
    p.counters.query_count = queries * static_cast<std::uint64_t>(i);
    f->pools.push_back(std::move(p));
  }
  f->workers.resize(1);
  f->settings = {{"workers", "2", "auto", false, false, false}, {"user", "", "", true, true, true}};
  return f;
}

std::string shown(const Glance& glance, Choice choice = {}) {
  std::uint64_t settings = 0;
  return glance.json(choice, settings);
}

// The databases of a page.
std::vector<std::string> rows(const std::string& json) {
  std::vector<std::string> found;
  const std::size_t begin = json.find("\"rows\":["), end = json.find(']', begin);
  for (std::size_t at = begin; (at = json.find("\"database\":\"", at)) < end; ++at)
    found.push_back(json.substr(at + 12, json.find('"', at + 12) - at - 12));
  return found;
}

TEST(Glance, RatesAreOfTheTimeBetweenTwoReports) {
  Glance glance;
  EXPECT_FALSE(glance.is_fresh(0));
  glance.update(fleet(3, 10), 100 * kSecond, 0);
  EXPECT_THAT(shown(glance), AllOf(Not(HasSubstr("\"received\"")), HasSubstr("\"queries\":0")));
  EXPECT_TRUE(glance.is_fresh(101 * kSecond));
  EXPECT_FALSE(glance.is_fresh(102 * kSecond));
  glance.update(fleet(3, 30), 102 * kSecond, 0);
  EXPECT_THAT(shown(glance), HasSubstr("\"queries\":30"));          // 3 times 20 in 2 s
  EXPECT_THAT(shown(glance), HasSubstr("\"queries\":20,\"trans"));  // the last pool
  glance.update(fleet(3, 1000), 200 * kSecond, 0);                  // nobody had looked for long
  EXPECT_THAT(shown(glance), Not(HasSubstr("\"received\"")));
  glance.update(fleet(4, 1000), 201 * kSecond, 0);  // a pool that was not there before
  EXPECT_THAT(shown(glance), HasSubstr("\"queries\":3000"));
  glance.update(fleet(4, 10), 202 * kSecond, 0);  // begun anew under the same name
  EXPECT_THAT(shown(glance), HasSubstr("\"queries\":0,\"received\""));
}

TEST(Glance, LatenciesOfTheLastSecondAndMinute) {
  Glance glance;
  auto at = [&, f = fleet(0)](Usec seconds, Usec query) mutable {
    f->workers[0].latencies.query.record(query);
    glance.update(std::make_shared<Fleet>(*f), seconds * kSecond, 0);
    const std::string json = shown(glance);
    const std::size_t begin = json.find("\"query\":{");
    return json.substr(begin, json.find("}}", begin) - begin);
  };
  EXPECT_THAT(at(1, 5), AllOf(Not(HasSubstr("minute")), HasSubstr(R"("start":{"count":1,"p50":5)")));
  EXPECT_THAT(at(2, 6), AllOf(HasSubstr(R"("second":{"count":1,"p50":6)"), HasSubstr(R"("minute":{"count":1)")));
  for (Usec s = 3; s <= 150; ++s) at(s, 7);
  const std::string last = at(151, 3);
  EXPECT_THAT(last, HasSubstr(R"("second":{"count":1,"p50":3)"));
  EXPECT_THAT(last, HasSubstr(R"("start":{"count":151)"));
  const int minute = std::atoi(last.c_str() + last.find("\"minute\":{\"count\":") + 18);
  EXPECT_GE(minute, 60);
  EXPECT_LE(minute, 66);
}

TEST(Glance, PagesOfPools) {
  Glance glance;
  glance.update(fleet(10'000, 0), kSecond, 0);
  glance.update(fleet(10'000, 1), 2 * kSecond, 0);
  using Order = Choice::Order;
  EXPECT_EQ(rows(shown(glance, {.order = Order::name})).size(), Glance::kRows);
  EXPECT_EQ(rows(shown(glance, {.order = Order::name, .from = 9975})).back(), "db09999");
  EXPECT_EQ(rows(shown(glance, {.order = Order::name, .from = ~std::size_t{0}})).front(), "db09975");
  EXPECT_EQ(rows(shown(glance, {.order = Order::rate})).front(), "db09999");
  EXPECT_EQ(rows(shown(glance, {.order = Order::rate, .from = 25})).front(), "db09974");
  EXPECT_THAT(rows(shown(glance, {.order = Order::name, .find = "DB0123"})).size(), 10u);
  EXPECT_THAT(rows(shown(glance, {.order = Order::name, .find = "even"})).at(1), "db00002");
  EXPECT_THAT(rows(shown(glance, {.find = "no such"})), testing::IsEmpty());
  EXPECT_THAT(shown(glance, {.find = "no such", .database = "db00007", .user = "odd"}),
              HasSubstr(R"("chosen":{"database":"db00007")"));
  EXPECT_LT(shown(glance).size(), 100'000u);
}

TEST(Glance, WhoWaitsComesFirst) {
  Glance glance;
  auto f = fleet(100);
  f->pools[7].cl_waiting = 1;
  f->pools[3].cl_active = 5;
  f->pools[50].sv_idle = 9;
  glance.update(f, kSecond, 0);
  EXPECT_EQ(rows(shown(glance))[0], "db00007");
  EXPECT_EQ(rows(shown(glance))[1], "db00003");
  EXPECT_EQ(rows(shown(glance, {.order = Choice::Order::servers}))[0], "db00050");
}

TEST(Glance, SettingsOnceAndWhenTheyChange) {
  Glance glance;
  std::uint64_t seen = 0, other = 0;
  auto f = fleet(1);
  glance.update(f, kSecond, 0);
  EXPECT_THAT(glance.json({}, seen),
              HasSubstr(R"("settings":[{"key":"workers","live":false,"value":"2","default":"auto"},)"
                        R"({"key":"user","live":true,"value":null,"default":null}])"));
  glance.update(fleet(1), 2 * kSecond, 0);
  EXPECT_THAT(glance.json({}, seen), Not(HasSubstr("settings")));
  EXPECT_THAT(glance.json({}, other), HasSubstr("settings"));
  f = fleet(1);
  f->settings[0].value = "3";
  glance.update(f, 3 * kSecond, 0);
  EXPECT_THAT(glance.json({}, seen), HasSubstr(R"("value":"3")"));
}

TEST(Glance, HostsThatAreOutComeFirst) {
  Glance glance;
  auto f = fleet(0);
  for (int i = 0; i < 1000; ++i) {
    HostRow h;
    h.database = "d", h.address = fmt::format("h{}", i), h.state = i == 900 ? "out" : "up";
    f->hosts.push_back(h);
  }
  glance.update(f, kSecond, 0);
  const std::string json = shown(glance);
  EXPECT_THAT(json,
              HasSubstr(R"("hosts":{"total":1000,"rows":[{"database":"d","host":"","port":5432,"address":"h900")"));
  EXPECT_THAT(json, Not(HasSubstr("\"h64\"")));
}

}  // namespace
}  // namespace pgf::observe
