#include "pool/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace pgf::pool {
namespace {

using config::Placement::adaptive;
using config::Placement::kernel;
using config::Placement::shuffle;
using config::Placement::spread;

// A program whose clients all talk: each costs its worker `cost` of a core. `asleep` says nothing, but is connected.
struct Program {
  explicit Program(std::vector<int> active, double cost_ = 0, std::vector<int> asleep_ = {}, int cores = 64)
      : clients(std::move(active)),
        asleep(std::move(asleep_)),
        cost(cost_),
        placement(static_cast<int>(clients.size()), cores) {
    asleep.resize(clients.size());
  }
  std::vector<int> clients, asleep;
  double cost;
  Placement placement;
  Usec now = kSecond;
  int moved = 0;
  std::vector<MoveReason> reasons;

  std::vector<Placement::Move> look(config::Placement policy = adaptive) {
    std::vector<Placement::Load> loads;
    for (std::size_t w = 0; w < clients.size(); ++w)
      loads.push_back({clients[w] + asleep[w], clients[w], std::min(1.0, clients[w] * cost)});
    now += kSecond / 3;
    auto moves = placement.plan(policy, loads, now);
    for (const auto& m : moves) {
      auto from = static_cast<std::size_t>(m.from), to = static_cast<std::size_t>(m.to);
      EXPECT_NE(from, to);
      EXPECT_GT(m.count, 0);
      EXPECT_LE(m.count, clients[from] + asleep[from]);
      int talking = std::min(m.count, clients[from]);
      clients[from] -= talking;
      clients[to] += talking;
      asleep[from] -= m.count - talking;
      asleep[to] += m.count - talking;
      moved += m.count;
      reasons.push_back(m.reason);
    }
    return moves;
  }
  void look_for(Usec time, config::Placement policy = adaptive) {
    for (Usec end = now + time; now < end;) look(policy);
  }
  int in_use() const { return static_cast<int>(clients.size()) - static_cast<int>(std::ranges::count(clients, 0)); }
  int fullest() const { return *std::ranges::max_element(clients); }
};

TEST(Placement, QuietClientsComeTogether) {
  for (int n : {1, 2, 8}) {
    for (int workers : {2, 4, 8, 16}) {
      std::vector<int> spread_out(static_cast<std::size_t>(workers));
      for (int i = 0; i < n; ++i) ++spread_out[static_cast<std::size_t>(i % workers)];
      Program p(spread_out, 0.05);
      p.look_for(2 * kSecond);
      EXPECT_EQ(p.in_use(), 1) << n << " clients, " << workers << " workers";
      EXPECT_LE(p.moved, n - 1) << "nobody moves twice, and those who are there stay";
      int before = p.moved;
      p.look_for(600 * kSecond);
      EXPECT_EQ(p.moved, before);
    }
  }
}

TEST(Placement, AsManyWorkersAsTheWorkNeeds) {
  Program p(std::vector<int>(16, 1), 0.06);  // 0.96 of a core
  p.look_for(2 * kSecond);
  EXPECT_EQ(p.in_use(), 2);
  p.cost = 0.028;  // 0.45: one could do that, but not with much to spare
  p.look_for(10 * kSecond);
  EXPECT_EQ(p.in_use(), 2);
  p.cost = 0.02;
  p.look_for(10 * kSecond);
  EXPECT_EQ(p.in_use(), 1);
}

TEST(Placement, WhoSaysNothingStays) {
  Program p({1, 1, 0, 0}, 0.1, {3, 3, 3, 3});
  p.look_for(60 * kSecond);
  EXPECT_EQ(p.in_use(), 1);
  EXPECT_THAT(p.asleep, testing::Each(3));
  EXPECT_THAT(p.placement.why(1), testing::StartsWith("gather: 1 to worker 0"));
  EXPECT_EQ(p.placement.why(2), "");
}

TEST(Placement, NoMoreWorkersThanCores) {
  for (double cost : {0.001, 0.02, 0.1}) {  // of next to nothing, half a core, and all that there is
    Program p(std::vector<int>(16, 2), cost, std::vector<int>(16, 3), 2);
    p.look_for(30 * kSecond);
    EXPECT_EQ(p.clients[0] + p.clients[1], 32) << cost;
    EXPECT_EQ(p.asleep, std::vector<int>(16, 3)) << "who says nothing costs nothing";
    int before = p.moved;
    p.look_for(600 * kSecond);
    EXPECT_EQ(p.moved, before);
  }
  Program one({5, 5, 5}, 0.3, {}, 1);
  one.look_for(30 * kSecond);
  EXPECT_EQ(one.clients, (std::vector<int>{15, 0, 0}));
}

TEST(Placement, BusyClientsAreLeftAlone) {
  Program p({4, 4, 4, 4}, 0.1);
  p.look_for(600 * kSecond);
  EXPECT_EQ(p.moved, 0);
}

TEST(Placement, AwayFromAHotWorker) {
  Program p({64, 0, 0, 0}, 0.015);
  p.look_for(kSecond);
  EXPECT_EQ(p.reasons.front(), MoveReason::relieve);
  p.look_for(30 * kSecond);
  EXPECT_LE(p.fullest(), 33);
  p.cost = 0.05;  // 3.2 cores
  p.look_for(30 * kSecond);
  EXPECT_LE(p.fullest(), 21) << "1.25 times the mean, and one";
}

TEST(Placement, OneClientsWorkIsNotDivided) {
  Program p({1, 0}, 0.95, {5, 5});
  p.look_for(60 * kSecond);
  EXPECT_EQ(p.moved, 0);
}

// Whatever the load, clients that were apart and come together must not go apart again for nothing, over and over.
TEST(Placement, NothingSwings) {
  for (int workers : {2, 4, 16}) {
    for (int percent = 1; percent <= 400; percent += 3) {
      std::vector<int> start(static_cast<std::size_t>(workers), 64 / workers);
      Program p(start, percent / 100.0 / 64);
      p.look_for(30 * kSecond);
      int before = p.moved;
      p.look_for(600 * kSecond);
      EXPECT_EQ(p.moved, before) << workers << " workers, " << percent << " % of a core";
      EXPECT_LE(p.moved, 128) << workers << " workers, " << percent << " % of a core";
    }
  }
}

// Load that comes and goes: each time they come together in vain, it takes twice as long until the next time.
TEST(Placement, VainMovesBecomeRare) {
  Program p({32, 32, 0, 0}, 0.001);
  int returns = 0;
  for (int i = 0; i < 100; ++i) {
    p.cost = 0.001;
    p.look_for(3 * kSecond);
    returns += p.in_use() == 1;
    p.cost = 0.02;
    p.look_for(3 * kSecond);
  }
  EXPECT_GE(returns, 1);
  EXPECT_LE(returns, 20);
}

TEST(Placement, LevelsWhatIsUnevenUnderLoad) {
  Program p({16, 2, 2, 2, 2, 2, 2, 4}, 0.045);
  p.look_for(30 * kSecond);
  EXPECT_LE(p.fullest(), 6);
  EXPECT_THAT(p.reasons, testing::Contains(MoveReason::level));
}

TEST(Placement, OtherPoliciesDoNothingLater) {
  for (auto policy : {kernel, spread}) {
    Program p({64, 0, 0, 1}, 0.01);
    p.look_for(60 * kSecond, policy);
    EXPECT_EQ(p.moved, 0);
  }
  Program alone({64}, 0.01);
  alone.look_for(60 * kSecond);
  EXPECT_EQ(alone.moved, 0);
}

TEST(Placement, ShuffleNeverRests) {
  Program p({1, 2, 3}, 0.01);
  EXPECT_EQ(p.look(shuffle).size(), 3u);
  EXPECT_EQ(p.look(shuffle).size(), 3u);
  p.look_for(10 * kSecond);
  EXPECT_EQ(p.in_use(), 1) << "back to adaptive";
}

}  // namespace
}  // namespace pgf::pool
