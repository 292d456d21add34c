#include "pool/ledger.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "pool/shared.h"

namespace pgf::pool {
namespace {

struct Rung final : Ledger::Bells {
  void ring(std::uint32_t whom) override { mask |= whom; }
  std::uint32_t mask = 0;
};

// One table, and what each of several processes would have.
class Fleet {
 public:
  explicit Fleet(int members) {
    void* memory = ::mmap(nullptr, sizeof(ledger::Table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    table = static_cast<ledger::Table*>(memory);
    ledger::format(*table);
    for (int i = 0; i < members; ++i) {
      bells.push_back(std::make_unique<Rung>());
      ledgers.push_back(std::make_unique<Ledger>(*table, i, *bells.back()));
      ledgers.back()->members = members;
      ledgers.back()->rank = i;
      ledgers.back()->others = ((std::uint32_t{1} << members) - 1) & ~ledgers.back()->bit();
      stakes.push_back(std::make_unique<Stake>(*ledgers.back(), "x"));
    }
  }
  ~Fleet() { ::munmap(table, sizeof(ledger::Table)); }
  Stake& operator[](std::size_t i) { return *stakes[i]; }
  void pass(std::int64_t ms) {
    for (auto& l : ledgers) l->now += ms;
  }
  int sum(ledger::Row& row) {
    int n = 0;
    for (int m = 0; m < ledger::kMembers; ++m) n += ledger::held(row, m);
    return n;
  }

  ledger::Table* table;
  std::vector<std::unique_ptr<Rung>> bells;
  std::vector<std::unique_ptr<Ledger>> ledgers;
  std::vector<std::unique_ptr<Stake>> stakes;
};

void take(Stake& stake, int count) {
  for (int i = 0; i < count; ++i) ASSERT_TRUE(stake.take(0, true, 1));
}

TEST(Ledger, AllTogetherNeverPassTheLimit) {
  Fleet f(3);
  EXPECT_TRUE(f[0].take(3, true, 1));
  EXPECT_TRUE(f[1].take(3, true, 1));
  EXPECT_TRUE(f[1].take(3, true, 1));
  EXPECT_FALSE(f[2].take(3, true, 1));
  EXPECT_TRUE(f[2].take(0, true, 1)) << "no limit";
  EXPECT_EQ(f[0].total(), 4);
  EXPECT_EQ(f[1].here(), 2);
  f[1].put();
  EXPECT_FALSE(f[0].take(3, true, 1)) << "still three";
  f[1].put();
  EXPECT_TRUE(f[0].take(3, true, 1));
  f[1].put();
  EXPECT_EQ(f[1].here(), 0) << "it had nothing to give back";
  EXPECT_EQ(f[0].total(), 3);
}

TEST(Ledger, OneNameOneRow) {
  Fleet f(2);
  EXPECT_EQ(f.ledgers[0]->row("a"), f.ledgers[1]->row("a"));
  EXPECT_NE(f.ledgers[0]->row("a"), f.ledgers[0]->row("b"));
}

TEST(Ledger, AFullTableRefusesWhatIsLimited) {
  Fleet f(1);
  for (auto& key : f.table->keys) key = 7;
  Stake late(*f.ledgers[0], "late");
  EXPECT_TRUE(f.ledgers[0]->full);
  EXPECT_FALSE(late.take(5, true, 1));
  EXPECT_TRUE(late.take(0, true, 1));
  late.put();
  late.want(5, 0);
  EXPECT_EQ(late.asked(), Stake::Ask::nothing);
}

// ---- death ----

// Each half of an operation is done, or not, when its process dies.
TEST(Ledger, WhoDiesBetweenTheHalvesLeavesNothingBehind) {
  Fleet f(2);
  ledger::Row& row = *f.ledgers[0]->row("x");
  for (bool takes : {true, false})
    for (int others = 0; others < 3; ++others) {
      SCOPED_TRACE(takes);
      take(f[1], 2);
      const pid_t child = ::fork();
      if (child == 0) {
        ledger::begin(row, 1, takes, 0);  // and not ledger::note()
        ::kill(::getpid(), SIGKILL);
      }
      int status = 0;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      ASSERT_TRUE(WIFSIGNALED(status));
      for (int i = 0; i < others; ++i) EXPECT_TRUE(f[0].take(10, true, 1));
      EXPECT_EQ(f[1].total(), (takes ? 3 : 1) + others);
      EXPECT_EQ(f[1].here(), takes ? 3 : 1) << "whoever came next has noted it";
      f.ledgers[0]->reclaim(1);
      EXPECT_EQ(f[0].total(), others);
      EXPECT_EQ(f[0].here(), others);
      for (int i = 0; i < others; ++i) f[0].put();
      EXPECT_EQ(f[0].total(), 0);
    }
}

TEST(Ledger, WhoReclaimsMayDieInItToo) {
  Fleet f(3);
  ledger::Row& row = *f.ledgers[0]->row("x");
  take(f[2], 5);
  take(f[0], 1);
  const pid_t child = ::fork();
  if (child == 0) {
    for (int i = 0; i < 2; ++i) ledger::note(row, ledger::begin(row, 2, false, 0).total);
    ledger::begin(row, 2, false, 0);
    ::kill(::getpid(), SIGKILL);
  }
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(f[0].total(), 3);
  f.ledgers[1]->reclaim(2);
  EXPECT_EQ(f[0].total(), 1);
  f.ledgers[0]->reclaim(2);
  EXPECT_EQ(f[0].total(), 1) << "twice is once";
}

// Processes take and give back as fast as they can and are killed wherever they are. The count of who is in is kept by
// each in its byte of one word, raised after a take and lowered before a put: so at any instant it can only be too low.
TEST(Ledger, KilledAnywhere) {
  constexpr int kLimit = 5, kChildren = 4, kRounds = 60;
  Fleet f(kChildren + 1);
  ledger::Row& row = *f.ledgers[0]->row("x");
  struct Inside {
    std::atomic<std::uint64_t> of;
    std::atomic<int> most, operations;
  };
  auto shift = [](int n) { return static_cast<unsigned>(8 * n); };
  void* memory = ::mmap(nullptr, sizeof(Inside), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* inside = static_cast<Inside*>(memory);
  std::mt19937 random(7);
  pid_t children[kChildren]{};
  auto launch = [&](int n) {
    children[n] = ::fork();
    if (children[n]) return;
    Stake& mine = f[static_cast<std::size_t>(n + 1)];
    std::mt19937 own(static_cast<unsigned>(::getpid()));
    for (;;) {
      if (own() % 2 ? mine.take(kLimit, true, 1) : false) {
        const std::uint64_t one = std::uint64_t{1} << shift(n), now = inside->of.fetch_add(one) + one;
        int sum = 0;
        for (int child = 0; child < kChildren; ++child) sum += static_cast<int>(now >> shift(child) & 0xff);
        int most = inside->most;
        while (sum > most && !inside->most.compare_exchange_weak(most, sum)) {
        }
        ++inside->operations;
      } else if (inside->of >> shift(n) & 0xff) {
        inside->of -= std::uint64_t{1} << shift(n);
        mine.put();
      }
    }
  };
  for (int n = 0; n < kChildren; ++n) launch(n);
  for (int round = 0; round < kRounds; ++round) {
    const int before = inside->operations, n = static_cast<int>(random() % kChildren);
    while (inside->operations - before < 500) std::this_thread::yield();
    ::kill(children[n], SIGKILL);
    ::waitpid(children[n], nullptr, 0);
    inside->of &= ~(std::uint64_t{0xff} << shift(n));  // its connections end …
    f.ledgers[0]->reclaim(n + 1);                      // … and then their places are free
    launch(n);
  }
  for (int n = 0; n < kChildren; ++n) {
    ::kill(children[n], SIGKILL);
    ::waitpid(children[n], nullptr, 0);
  }
  EXPECT_LE(inside->most, kLimit);
  EXPECT_EQ(f.sum(row), f[0].total());
  for (int n = 0; n < kChildren; ++n) f.ledgers[0]->reclaim(n + 1);
  EXPECT_EQ(f[0].total(), 0);
  ::munmap(memory, sizeof(Inside));
}

TEST(Ledger, ThreadsOfManyMembersAtOnce) {
  constexpr int kLimit = 7;
  Fleet f(8);
  std::atomic<int> now{0}, most{0};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 8; ++i)
    threads.emplace_back([&, i] {
      for (int n = 0; n < 30'000; ++n) {
        if (!f[i].take(kLimit, true, 1)) continue;
        int mine = now.fetch_add(1) + 1, seen = most.load();
        while (mine > seen && !most.compare_exchange_weak(seen, mine)) {
        }
        now.fetch_sub(1);
        f[i].put();
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_LE(most, kLimit);
  EXPECT_EQ(f[0].total(), 0);
  EXPECT_EQ(f.sum(*f.ledgers[0]->row("x")), 0);
}

// ---- whose turn it is ----

TEST(Ledger, WhoWaitsIsWokenByWhoFrees) {
  Fleet f(2);
  take(f[0], 2);
  EXPECT_FALSE(f[1].take(2, true, 1));
  f[1].want(2, 0);
  f.bells[0]->mask = 0;
  f[0].put();
  EXPECT_EQ(f.bells[0]->mask, 2u);
  EXPECT_TRUE(f[1].take(2, true, 1));
  f.bells[0]->mask = 0;
  f[0].put();
  EXPECT_EQ(f.bells[0]->mask, 0u) << "nobody waits any more";
}

TEST(Ledger, WhoHasLessThanItsShareComesFirst) {
  Fleet f(2);
  take(f[0], 4);
  f[1].want(4, 0);
  EXPECT_EQ(f.bells[1]->mask, 1u) << "the other one is told at once";
  EXPECT_EQ(f[0].asked(), Stake::Ask::any);
  EXPECT_EQ(f[1].asked(), Stake::Ask::nothing);
  f[0].owe(f[0].asked());
  EXPECT_TRUE(f[0].owes());
  EXPECT_TRUE(f[0].claim());
  EXPECT_FALSE(f[0].owes());
  EXPECT_FALSE(f[0].claim()) << "one place for one that waits";
  EXPECT_EQ(f[0].asked(), Stake::Ask::nothing);
  f[0].put();
  EXPECT_FALSE(f[0].take(4, true, 1)) << "not for who gave it up";
  EXPECT_TRUE(f[0].take(5, false, 1)) << "a cancel does not wait";
  f[0].put();
  EXPECT_TRUE(f[1].take(4, true, 1));
  f[1].want(4, 0);  // one more
  EXPECT_EQ(f[0].asked(), Stake::Ask::any);
  f[0].owe(f[0].asked());
  EXPECT_TRUE(f[0].claim());
  f[0].put();
  EXPECT_TRUE(f[1].take(4, true, 1));
  f[1].want(4, 0);  // more than its share is not due to it
  EXPECT_EQ(f[0].asked(), Stake::Ask::idle) << "but what nobody uses";
}

TEST(Ledger, OfManyThatHaveTooMuchOneGives) {
  Fleet f(3);
  take(f[0], 3);
  take(f[1], 3);
  f[2].want(6, 0);
  for (std::size_t i : {0u, 1u}) {
    EXPECT_EQ(f[i].asked(), Stake::Ask::any);
    f[i].owe(f[i].asked());
  }
  EXPECT_NE(f[0].claim(), f[1].claim());
}

TEST(Ledger, AMarkThatNobodyRenewsIsVoid) {
  Fleet f(3);
  take(f[0], 4);
  f[1].want(4, 0);
  f[2].want(4, 0);
  f[0].put();
  EXPECT_FALSE(f[2].take(4, true, 1)) << "one after the other";
  f.pass(5000);  // it has died, or hangs
  EXPECT_TRUE(f[2].take(4, true, 1));
}

TEST(Ledger, AskedAgainIfWhoClaimedDoesNotGive) {
  Fleet f(2);
  take(f[0], 4);
  f[1].want(4, 0);
  f[0].owe(f[0].asked());
  EXPECT_TRUE(f[0].claim());
  f.pass(800);
  f[1].want(4, 0);
  EXPECT_EQ(f[0].asked(), Stake::Ask::nothing);
  f.pass(800);
  f[1].want(4, 0);
  EXPECT_EQ(f[0].asked(), Stake::Ask::any);
}

TEST(Ledger, FewerPlacesThanMembersGoRound) {
  Fleet f(2);
  f.pass(10'000);
  take(f[0], 1);
  f[1].want(1, kFamine / 2);
  EXPECT_EQ(f[0].asked(), Stake::Ask::idle) << "not before it has waited for a while";
  f[1].want(1, kFamine);
  EXPECT_EQ(f[0].asked(), Stake::Ask::any);
  f[0].put();
  EXPECT_TRUE(f[1].take(1, true, 1));
  f[0].want(1, kFamine);
  EXPECT_EQ(f[1].asked(), Stake::Ask::idle) << "and who has got one has it for a while";
  f.pass(kFamine / kMillisecond);
  f[0].want(1, kFamine);
  EXPECT_EQ(f[1].asked(), Stake::Ask::any);
}

TEST(Ledger, ThreeTakeTurns) {
  Fleet f(3);
  std::vector<std::size_t> turns;
  std::size_t has = 0;
  take(f[0], 1);
  for (int step = 0; step < 200; ++step) {
    f.pass(100);
    for (std::size_t i : {2u, 0u, 1u})  // who asks first is always the same
      if (i != has) f[i].want(1, kSecond);
    if (f[has].asked() != Stake::Ask::any) continue;
    f[has].owe(f[has].asked());
    ASSERT_TRUE(f[has].claim());
    f[has].put();
    for (std::size_t i : {2u, 0u, 1u})
      if (i != has && f[i].take(1, true, 1)) {
        turns.push_back(has = i);
        break;
      }
  }
  ASSERT_GE(turns.size(), 9u);
  for (std::size_t i = 2; i < turns.size(); ++i) EXPECT_NE(turns[i], turns[i - 2]) << i;
}

TEST(Ledger, ASmallerLimitOfOneDoesNotStarveIt) {
  Fleet f(2);
  f[0].set_limit(8);
  take(f[0], 8);
  f[1].want(4, 0);
  EXPECT_EQ(f[0].asked(), Stake::Ask::any);
  for (int held = 8; held > 3; --held) {
    EXPECT_EQ(f[0].asked(), Stake::Ask::any) << held;
    f[0].owe(f[0].asked());
    EXPECT_TRUE(f[0].claim());
    EXPECT_EQ(f[0].asked(), Stake::Ask::nothing);
    EXPECT_FALSE(f[1].take(4, true, 1));
    f[0].put();
    if (held > 4) f[1].want(4, 0);  // not enough yet
  }
  EXPECT_TRUE(f[1].take(4, true, 1));
  f[1].want(4, 0);
  EXPECT_EQ(f[0].asked(), Stake::Ask::any) << "three are more than half of four";
}

TEST(Ledger, IdlePlacesAreAskedForOnlyWhereAllAreTaken) {
  Fleet f(2);
  f[0].set_limit(4);
  take(f[0], 2);
  take(f[1], 2);
  f[1].want(4, 0);
  EXPECT_EQ(f[0].asked(), Stake::Ask::idle);
  f[1].put();
  EXPECT_EQ(f[0].asked(), Stake::Ask::nothing);
}

TEST(Ledger, TheDeadDoNotWait) {
  Fleet f(3);
  take(f[0], 3);
  f[1].want(3, 0);
  f[2].want(3, 0);
  f.ledgers[0]->reclaim(1);
  EXPECT_EQ(f[0].waiting(), 4u);
  EXPECT_EQ(f[0].asked(), Stake::Ask::idle);
  f[2].want(3, 0);
  EXPECT_EQ(f[0].asked(), Stake::Ask::any) << "the next one";
}

TEST(Ledger, WhatWasTheProcessesBeforeCountsOnce) {
  Fleet f(2);
  take(f[0], 2);
  f.ledgers[1]->predecessor = 0;
  EXPECT_TRUE(f[1].take(0, true, 1));
  f[1].inherited();
  EXPECT_EQ(f[1].total(), 2);
  EXPECT_EQ(f[0].here(), 1);
  f.ledgers[1]->reclaim(0);
  EXPECT_EQ(f[1].total(), 1);
}

TEST(Ledger, WhoEndsKeepsItsPlacesUntilItIsGone) {
  Fleet f(2);
  take(f[0], 2);
  f.ledgers[0]->leaving = true;
  f[0].put();
  EXPECT_EQ(f[1].total(), 2);
}

TEST(Ledger, AMinimumIsDivided) {
  Fleet f(3);
  int sum = 0;
  for (auto& l : f.ledgers) sum += l->part(4);
  EXPECT_EQ(sum, 4);
}

// Any bytes at all: nothing crashes or hangs.
TEST(Ledger, Garbage) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    Fleet f(2);
    ledger::Row& row = *f.ledgers[0]->row("x");
    auto* words = reinterpret_cast<std::atomic<std::uint64_t>*>(&row);
    for (std::size_t i = 0; i < sizeof row / 8; ++i) words[i] = random();
    for (std::size_t i : {0u, 1u}) {
      f[i].take(3, true, 1);
      f[i].want(3, kFamine);
      f[i].owe(f[i].asked());
      f[i].claim();
      f[i].put();
    }
    row.held[1] = random() % 1000 << 32;
    row.total = random() % 1000 << 6;
    f.ledgers[0]->reclaim(1);
    EXPECT_EQ(ledger::held(row, 1), 0);
  }
}

TEST(Ledger, GarbageIsNotCountedDown) {
  std::mt19937_64 random(4);
  Fleet f(2);
  for (auto& key : f.table->keys) key = 7;
  for (ledger::Row& row : f.table->table) {  // millions of places in each
    row.held[1] = random() | std::uint64_t{1} << 63;
    row.total = random() & ~std::uint64_t{0x3f};
  }
  f.ledgers[0]->reclaim(1);
  for (ledger::Row& row : f.table->table) EXPECT_EQ(ledger::held(row, 1), 0);
}

TEST(Ledger, WithoutItsFileEachHasItsPart) {
  Fleet f(2);
  f.ledgers[1]->lost = true;
  for (int here = 1; here <= 5; ++here) EXPECT_EQ(f[1].take(5, true, here), here <= 2);
  EXPECT_TRUE(f[1].take(0, true, 9));
}

// ---- as the directory has it ----

TEST(Ledger, CountersOfTwoProcesses) {
  Fleet f(2);
  Directory one(1, f.ledgers[0].get()), two(1, f.ledgers[1].get());
  config::PoolPolicy policy{};
  policy.max_db_connections = 3;
  std::vector<Permit> permits;
  Permit::Refused why;
  for (Directory* d : {&one, &two})
    for (const char* user : {"u", "v"}) {
      Permit p = Permit::take(d->pool("d", user), 2, policy, true, why);
      if (p) permits.push_back(std::move(p));
    }
  EXPECT_EQ(permits.size(), 3u);
  EXPECT_EQ(why, Permit::Refused::database);
  EXPECT_EQ(two.pool("d", "v").servers.total(), 1) << "what was refused in the end holds nothing";
  EXPECT_EQ(one.database("d").servers.value(), 2);
  EXPECT_EQ(one.database("d").servers.total(), 3);
  permits.clear();
  EXPECT_EQ(one.database("d").servers.total(), 0);
  EXPECT_EQ(one.user("u").servers.total(), 0);
  EXPECT_EQ(one.database("pgbouncer").clients.stake(), nullptr) << "the console is each one's own";
}

}  // namespace
}  // namespace pgf::pool
