#include "pool/hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

namespace pgf::pool {
namespace {

using config::LoadBalance;
using config::TargetSession;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr Random::Seed kSeed{1, 2, 3, 4};
const Usec kNow = 1000 * kSecond;

std::vector<Load> plain(std::size_t n) {
  std::vector<Load> loads;
  for (std::size_t i = 0; i < n; ++i) loads.push_back({i});
  return loads;
}

TEST(Random, BelowIsUnbiased) {
  // A third of 2^32 does not come out even: without drawing again, n near 2^32 would show it at once.
  Random random(kSeed);
  constexpr std::uint32_t n = 3u << 30;
  int low = 0;
  constexpr int kDraws = 30'000;
  for (int i = 0; i < kDraws; ++i) low += random.below(n) < (1u << 30);
  EXPECT_NEAR(low, kDraws / 3, 400);  // taken modulo n it would be a half
  EXPECT_EQ(random.below(1), 0u);
}

TEST(Random, SeedOfZerosIsNoTrap) {
  Random random({});
  std::set<std::uint64_t> seen;
  for (int i = 0; i < 100; ++i) seen.insert(random.next());
  EXPECT_GT(seen.size(), 90u);
  EXPECT_NE(Random::strong().next(), Random::strong().next());
}

double chi_square(const std::map<std::vector<std::size_t>, int>& counts, double expected) {
  double sum = 0;
  for (const auto& [key, n] : counts) sum += (n - expected) * (n - expected) / expected;
  return sum;
}

// 23 degrees of freedom: 49.7 is passed once in a thousand. The seed is fixed, so it passes always or never.
TEST(Order, RandomIsEveryPermutationOfFourAlike) {
  Random random(kSeed);
  constexpr int kRounds = 48'000;
  std::map<std::vector<std::size_t>, int> counts;
  for (int i = 0; i < kRounds; ++i) ++counts[order(LoadBalance::random, plain(4), 0, random)];
  ASSERT_EQ(counts.size(), 24u);
  EXPECT_LT(chi_square(counts, kRounds / 24.0), 49.7);
}

// The test can fail: the usual mistake, swapping with any place instead of those left, is seen.
TEST(Order, TheSameTestSeesABiasedShuffle) {
  Random random(kSeed);
  constexpr int kRounds = 48'000;
  std::map<std::vector<std::size_t>, int> counts;
  for (int i = 0; i < kRounds; ++i) {
    std::vector<std::size_t> items{0, 1, 2, 3};
    for (std::size_t& item : items) std::swap(item, items[random.below(4)]);
    ++counts[items];
  }
  EXPECT_GT(chi_square(counts, kRounds / 24.0), 1000);
}

TEST(Order, DisableAndRoundRobin) {
  Random random(kSeed);
  EXPECT_THAT(order(LoadBalance::disable, plain(3), 2, random), ElementsAre(0, 1, 2));
  EXPECT_THAT(order(LoadBalance::round_robin, plain(3), 0, random), ElementsAre(0, 1, 2));
  EXPECT_THAT(order(LoadBalance::round_robin, plain(3), 5, random), ElementsAre(2, 0, 1));
  EXPECT_THAT(order(LoadBalance::round_robin, {}, 5, random), IsEmpty());
}

TEST(Order, LeastConnections) {
  Random random(kSeed);
  // Host 0 is listed twice: 5 open are 2.5 each.
  std::vector<Load> loads{{0, 5}, {1, 3}, {0, 5}, {3, 2}};
  EXPECT_THAT(order(LoadBalance::least_conn, loads, 0, random), ElementsAre(3, 0, 1));
  loads = {{0, 4, 3}, {1, 4, 1}, {2, 4, 2}};
  EXPECT_THAT(order(LoadBalance::least_conn, loads, 0, random), ElementsAre(1, 2, 0));
  // Equals take turns.
  std::set<std::size_t> first;
  for (int i = 0; i < 100; ++i) first.insert(order(LoadBalance::least_conn, plain(3), 0, random)[0]);
  EXPECT_EQ(first.size(), 3u);
}

// What a policy does to the spread, when connections only come.
TEST(Order, HostListedTwiceGetsTwice) {
  for (LoadBalance policy : {LoadBalance::random, LoadBalance::round_robin, LoadBalance::least_conn}) {
    Random random(kSeed);
    std::vector<Load> loads{{0}, {1}, {0}};
    for (std::uint32_t i = 0; i < 3000; ++i) {
      std::size_t host = loads[order(policy, loads, i, random)[0]].same_as;
      for (Load& load : loads) load.open += load.same_as == host;
    }
    EXPECT_NEAR(loads[0].open, 2000, 80) << config::to_text(policy);
    EXPECT_NEAR(loads[1].open, 1000, 80) << config::to_text(policy);
  }
}

TEST(TargetSession, IsWhatLibpqSays) {
  using enum TargetSession;
  const std::optional<bool> yes = true, no = false, unknown;
  struct {
    TargetSession target;
    std::optional<bool> standby, read_only;
    const char* misfit;
    bool can_tell;
  } cases[] = {
      {any, unknown, unknown, "", true},
      {read_write, no, no, "", true},
      {read_write, no, yes, "session is read-only", true},
      {read_write, yes, no, "session is read-only", true},
      {read_write, yes, unknown, "session is read-only", true},
      {read_write, no, unknown, "", false},
      {read_only, no, no, "session is not read-only", true},
      {read_only, no, yes, "", true},
      {read_only, yes, unknown, "", true},
      {read_only, unknown, unknown, "", false},
      {primary, no, yes, "", true},
      {primary, yes, yes, "server is in hot standby mode", true},
      {primary, unknown, no, "", false},
      {standby, yes, unknown, "", true},
      {standby, no, unknown, "server is not in hot standby mode", true},
      {prefer_standby, no, no, "server is not in hot standby mode", true},
      {prefer_standby, unknown, no, "", false},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(misfit(c.target, {c.standby, c.read_only}), c.misfit);
    EXPECT_EQ(can_tell(c.target, {c.standby, c.read_only}), c.can_tell);
  }
}

struct Health : ::testing::Test {
  Hosts hosts{2, Random(kSeed)};
  Writer writer;
  const std::shared_ptr<Address> a_ = hosts.address("127.0.0.1:5432"), b_ = hosts.address("127.0.0.2:5432");
  Address &a = *a_, &b = *b_;
};

TEST_F(Health, FailureTakesOutAndBacksOff) {
  EXPECT_EQ(hosts.admit(a, kNow), Hosts::Admit::yes);
  Usec before = 0;
  for (int i = 0; i < 10; ++i) {
    hosts.failed(a, kNow, "Connection refused");
    EXPECT_EQ(hosts.admit(a, kNow), Hosts::Admit::out);
    Usec wait = std::min(Hosts::kFirstBackoff << i, Hosts::kLastBackoff);
    EXPECT_EQ(hosts.due(kNow + wait - 1), nullptr) << i;
    EXPECT_EQ(hosts.due(kNow + wait + wait / 4), a_) << i;
    EXPECT_EQ(hosts.due(kNow + wait + wait / 4), nullptr) << "one asks at a time";
    EXPECT_GE(wait, before);
    before = wait;
  }
  EXPECT_EQ(hosts.admit(b, kNow), Hosts::Admit::yes);  // nobody else's business
}

TEST_F(Health, NobodyAsksForWhatNobodyWants) {
  hosts.failed(a, kNow, "x");
  EXPECT_EQ(hosts.due(kNow + 2 * kSecond), nullptr);  // it was a list of one: its own attempts will tell
  hosts.admit(a, kNow);
  EXPECT_EQ(hosts.due(kNow + Hosts::kWanted + 1), nullptr);
  EXPECT_EQ(hosts.due(kNow + Hosts::kWanted), a_);
}

TEST_F(Health, ReturnIsSlow) {
  hosts.failed(a, kNow, "x");
  hosts.answered(a, kNow, kMillisecond);
  int admitted = 0;
  for (Usec t = 0; t < Hosts::kReturnTime; t += 10 * kMillisecond) {
    Hosts::Admit answer = hosts.admit(a, kNow + t);
    admitted += answer == Hosts::Admit::yes;
    EXPECT_THAT(answer, AnyOf(Hosts::Admit::yes, Hosts::Admit::returning));
  }
  EXPECT_EQ(admitted, Hosts::kReturnTime / Hosts::kAdmitStep);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(hosts.admit(a, kNow + Hosts::kReturnTime), Hosts::Admit::yes);
  // A first answer is no return.
  hosts.answered(b, kNow, kMillisecond);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(hosts.admit(b, kNow), Hosts::Admit::yes);
}

TEST_F(Health, SilenceIsAskedAboutAtOnceAndGivenMoreTime) {
  EXPECT_EQ(hosts.patience(a), Hosts::kPatience);
  hosts.admit(a, kNow);
  hosts.silent(a, kNow, "timeout expired");
  EXPECT_EQ(hosts.due(kNow), a_);
  EXPECT_EQ(hosts.patience(a), 2 * Hosts::kPatience);
  hosts.silent(a, kNow, "timeout expired");  // it is known to be out: that says nothing new about its speed
  EXPECT_EQ(hosts.patience(a), 2 * Hosts::kPatience);
  // It answers a probe, and logins take too long still: each time there is more patience.
  for (int i = 0; i < 40; ++i) {
    hosts.probed(a, kNow, kMillisecond);
    Usec before = hosts.patience(a);
    hosts.silent(a, kNow, "timeout expired");
    EXPECT_GE(hosts.patience(a), std::min(2 * before, Hosts::kLastBackoff));
  }
  EXPECT_EQ(hosts.patience(a), Hosts::kLastBackoff);
  hosts.answered(a, kNow, kSecond);  // that slow
  EXPECT_EQ(hosts.patience(a), 4 * kSecond);
  hosts.probed(b, kNow, 2 * kSecond);
  EXPECT_EQ(hosts.patience(b), 8 * kSecond);
}

TEST_F(Health, KnownMisfitsGoLast) {
  std::vector<Place*> places;
  for (const char* name : {"a", "b", "c"}) places.push_back(hosts.place("db", name, 1).get());
  hosts.resolved(*places[0], {a_});
  hosts.resolved(*places[1], {b_});
  a.role = Role::standby;
  b.role = Role::primary;
  auto sorted = [&](TargetSession target) {
    std::vector<std::size_t> order{0, 1, 2};
    hosts.likely_first(order, places, target, writer);
    return order;
  };
  EXPECT_THAT(sorted(TargetSession::read_write), ElementsAre(1, 2, 0));
  EXPECT_THAT(sorted(TargetSession::prefer_standby), ElementsAre(0, 2, 1));
  EXPECT_THAT(sorted(TargetSession::any), ElementsAre(0, 1, 2));
}

TEST_F(Health, Rows) {
  Place& place = *hosts.place("db", "name", 5432);
  EXPECT_EQ(&place, hosts.place("db", "name", 5432).get());
  EXPECT_NE(&place, hosts.place("other", "name", 5432).get());
  EXPECT_THAT(hosts.rows("db", "name", 5432, kNow), IsEmpty());
  hosts.resolved(place, {b_, a_});
  hosts.failed(b, kNow, "Connection refused");
  a.role = Role::standby;
  auto rows = hosts.rows("db", "name", 5432, kNow);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].address, "127.0.0.1:5432");
  EXPECT_EQ(rows[0].role, Role::standby);
  EXPECT_FALSE(rows[0].known || rows[0].out);
  EXPECT_TRUE(rows[1].known && rows[1].out);
  EXPECT_EQ(rows[1].failures, 1u);
  EXPECT_EQ(rows[1].last_error, "Connection refused");
  EXPECT_TRUE(place.claim_role_check(kNow, kSecond));
  EXPECT_FALSE(place.claim_role_check(kNow + 1, kSecond));
  EXPECT_TRUE(place.claim_role_check(kNow + kSecond, kSecond));
}

TEST_F(Health, DeadHostsTurnIsSharedByAll) {
  std::vector<Place*> places;
  for (const char* name : {"a", "b", "c", "d"}) places.push_back(hosts.place("db", name, 1).get());
  hosts.resolved(*places[1], {a_});
  hosts.failed(a, kNow, "x");
  std::map<std::size_t, int> first;
  for (std::uint32_t turn = 0; turn < 12; ++turn) {
    auto order = hosts.order(LoadBalance::round_robin, places, turn, kNow);
    ++first[order[0]];
    EXPECT_EQ(order.size(), 4u);
    EXPECT_EQ(order[3], 1u);
  }
  EXPECT_THAT(first, ElementsAre(std::pair(0, 4), std::pair(2, 4), std::pair(3, 4)));
  // One of its addresses is enough.
  hosts.resolved(*places[1], {a_, b_});
  EXPECT_THAT(hosts.order(LoadBalance::disable, places, 0, kNow), ElementsAre(0, 1, 2, 3));
}

TEST_F(Health, ConnectionsMoveToAHostThatIsBack) {
  Place &one = *hosts.place("db", "one", 1), &two = *hosts.place("db", "two", 1);
  hosts.resolved(one, {a_});
  hosts.resolved(two, {b_});
  std::vector<Place*> places{&one, &two};
  one.open = 4;
  auto full = [&](Usec now, TargetSession target = TargetSession::any) {
    return hosts.too_full(places, target, writer, now);
  };
  EXPECT_EQ(full(kNow), nullptr);  // nobody was away: it is as the policy made it
  hosts.failed(b, kNow, "x");
  EXPECT_EQ(full(kNow), nullptr);
  hosts.probed(b, kNow, 1);
  EXPECT_EQ(full(kNow), &one);
  b.role = Role::standby;
  EXPECT_EQ(full(kNow, TargetSession::primary), nullptr);
  two.open = 3;
  EXPECT_EQ(full(kNow), nullptr);
  places.push_back(&two);  // twice the weight
  EXPECT_EQ(full(kNow), &one);
  EXPECT_EQ(full(kNow + Hosts::kSettle), nullptr);
  EXPECT_TRUE(one.claim_move(kNow, kSecond));
  EXPECT_FALSE(one.claim_move(kNow, kSecond));
}

TEST_F(Health, OneWrites) {
  Place &one = *hosts.place("db", "one", 1), &two = *hosts.place("db", "two", 1);
  hosts.resolved(one, {a_});
  hosts.resolved(two, {b_});
  std::vector<Place*> places{&one, &two};
  auto sorted = [&](TargetSession target) {
    std::vector<std::size_t> order{0, 1};
    hosts.likely_first(order, places, target, writer);
    return order;
  };
  EXPECT_FALSE(writer.is_other(&a));
  a.role = Role::primary;
  EXPECT_TRUE(hosts.claim(writer, places, a_).granted);
  EXPECT_TRUE(hosts.claim(writer, places, a_).granted);
  EXPECT_FALSE(writer.is_other(&a));
  EXPECT_TRUE(writer.is_other(&b));

  // Who was never asked is asked; who also writes is told of once, and comes last from then on.
  EXPECT_THAT(sorted(TargetSession::primary), ElementsAre(0, 1));
  b.role = Role::primary;
  auto claim = hosts.claim(writer, places, b_);
  EXPECT_FALSE(claim.granted);
  EXPECT_EQ(claim.writes, a.text);
  EXPECT_EQ(claim.rival, b.text);
  EXPECT_EQ(hosts.claim(writer, places, b_).rival, "");
  one.open = 4;
  hosts.failed(b, kNow, "x");
  hosts.probed(b, kNow, 1);
  EXPECT_EQ(b.role, Role::unknown);  // it may be something else now
  EXPECT_EQ(hosts.too_full(places, TargetSession::read_write, writer, kNow), &one);
  b.role = Role::primary;
  EXPECT_EQ(hosts.too_full(places, TargetSession::read_write, writer, kNow), nullptr);
  EXPECT_EQ(hosts.too_full(places, TargetSession::any, writer, kNow), &one);

  // It is down: the other is it, and stays so when the first is back.
  hosts.failed(a, kNow, "x");
  EXPECT_TRUE(hosts.claim(writer, places, b_).granted);
  EXPECT_TRUE(writer.is_other(&a));
  hosts.probed(a, kNow, 1);
  EXPECT_EQ(hosts.claim(writer, places, a_).rival, a.text);
  a.role = Role::primary;
  EXPECT_THAT(sorted(TargetSession::read_write), ElementsAre(1, 0));
  EXPECT_THAT(sorted(TargetSession::prefer_standby), ElementsAre(0, 1));

  // It is a standby, or says that it is about to end, or is in the list no more.
  b.role = Role::standby;
  EXPECT_TRUE(hosts.claim(writer, places, a_).granted);
  hosts.resign(writer, b);
  EXPECT_TRUE(writer.is_other(&b));
  hosts.resign(writer, a);
  EXPECT_FALSE(writer.is_other(&b));
  b.role = Role::primary;
  EXPECT_TRUE(hosts.claim(writer, places, b_).granted);
  places.pop_back();
  EXPECT_TRUE(hosts.claim(writer, places, a_).granted);
}

TEST_F(Health, PreferStandbyLeavesThePrimary) {
  Place &one = *hosts.place("db", "one", 1), &two = *hosts.place("db", "two", 1);
  hosts.resolved(one, {a_});
  hosts.resolved(two, {b_});
  std::vector<Place*> places{&one, &two};
  one.open = two.open = 1;
  a.role = Role::primary;
  EXPECT_EQ(hosts.too_full(places, TargetSession::prefer_standby, writer, kNow), nullptr);
  b.role = Role::standby;
  EXPECT_EQ(hosts.too_full(places, TargetSession::prefer_standby, writer, kNow), &one);
  EXPECT_EQ(hosts.too_full(places, TargetSession::any, writer, kNow), nullptr);
  b.out = true;
  EXPECT_EQ(hosts.too_full(places, TargetSession::prefer_standby, writer, kNow), nullptr);
}

TEST_F(Health, NameThatMeansNothingGoesLast) {
  Place &one = *hosts.place("db", "one", 1), &two = *hosts.place("db", "two", 1);
  std::vector<Place*> places{&one, &two};
  hosts.unresolved(one, kNow, "no such name");
  EXPECT_THAT(hosts.order(LoadBalance::disable, places, 0, kNow), ElementsAre(1, 0));
  auto rows = hosts.rows("db", "one", 1, kNow);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_TRUE(rows[0].out && rows[0].address.empty());
  EXPECT_EQ(rows[0].last_error, "no such name");
  EXPECT_THAT(hosts.order(LoadBalance::disable, places, 0, kNow + Hosts::kUnresolved), ElementsAre(0, 1));
  hosts.unresolved(one, kNow, "no such name");
  hosts.resolved(one, {a_});
  EXPECT_THAT(hosts.order(LoadBalance::disable, places, 0, kNow), ElementsAre(0, 1));
}

TEST_F(Health, LeastConnectionsCountsOverAllWorkers) {
  Place &one = *hosts.place("db", "one", 1), &two = *hosts.place("db", "two", 1);
  one.open = two.open = 2;
  one.add_active(0, 1);
  one.add_active(1, 1);
  two.add_active(1, 1);
  std::vector<Place*> places{&one, &two};
  for (int i = 0; i < 20; ++i) EXPECT_THAT(hosts.order(LoadBalance::least_conn, places, 0, kNow), ElementsAre(1, 0));
  one.add_active(0, -1);
  one.add_active(1, -1);
  for (int i = 0; i < 20; ++i) EXPECT_THAT(hosts.order(LoadBalance::least_conn, places, 0, kNow), ElementsAre(0, 1));
}

TEST_F(Health, AddressesThatNobodyUsesAreForgotten) {
  Place& place = *hosts.place("db", "churn.example", 1);
  std::shared_ptr<Address> in_use;
  for (int i = 0; i < 10'000; ++i) {  // a name that means something else each time
    auto address = hosts.address("10.0.0.1:" + std::to_string(i));
    hosts.resolved(place, {address});
    if (i == 17) in_use = address;  // a connection goes there
    if (i % 100 == 0) hosts.failed(*address, kNow, "x");
    hosts.due(kNow + i * kSecond);
    EXPECT_LE(hosts.remembered().addresses, 64u) << i;
  }
  Usec now = kNow + 20'000 * kSecond;
  hosts.due(now);
  EXPECT_EQ(hosts.remembered().addresses, 4u);  // a, b, the one in use and the last
  EXPECT_EQ(hosts.address(in_use->text), in_use);
  EXPECT_EQ(hosts.rows("db", "churn.example", 1, now).at(0).address, "10.0.0.1:9999");
  in_use.reset();
  hosts.due(now + Hosts::kTidyPeriod);
  EXPECT_EQ(hosts.remembered().addresses, 3u);
}

TEST_F(Health, PlacesThatNoListHasAreForgotten) {
  config::Config config;
  auto list = [&](std::vector<std::string> names, std::vector<int> ports) {
    config::Database& db = config.databases["db"];
    db.name = "db";
    db.hosts = std::move(names);
    db.ports = std::move(ports);
  };
  auto now = kNow;
  auto places = [&] {
    hosts.keep(config);
    hosts.due(now += Hosts::kTidyPeriod);
    return hosts.remembered().places;
  };
  for (int i = 0; i < 100; ++i) {  // an operator writes the file anew, again and again
    std::string name = "host" + std::to_string(i);
    list({"stays", name}, {1, 2});
    hosts.place("db", "stays", 1)->open = i;
    hosts.place("db", name, 2);
    EXPECT_EQ(places(), 2u);
  }
  EXPECT_EQ(hosts.place("db", "stays", 1)->open, 99);
  auto serves = hosts.place("db", "host99", 2);
  list({"stays"}, {1});
  EXPECT_EQ(places(), 2u);  // somebody is connected there still
  list({"stays", "host99"}, {1, 2});
  EXPECT_EQ(places(), 2u);
  EXPECT_EQ(hosts.place("db", "host99", 2), serves);  // and it is the same when the host comes back
  serves.reset();
  list({"stays", "host99"}, {1});
  EXPECT_EQ(places(), 1u);  // it was port 2
  list({}, {5432});
  config.settings.unix_socket_dir = "/run/x";
  hosts.place("db", "/run/x", 5432);
  EXPECT_EQ(places(), 1u);
  config.databases.clear();
  EXPECT_EQ(places(), 0u);
}

}  // namespace
}  // namespace pgf::pool
