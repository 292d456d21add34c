#include "pool/shared.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <random>
#include <thread>

namespace pgf::pool {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

constexpr int kThreads = 8, kOperations = 100'000;

// Runs `work(thread)` on all threads at once and `sample` on this one until they are done.
template <class Work, class Sample>
void race(Work work, Sample sample) {
  std::barrier start(kThreads + 1);
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      start.arrive_and_wait();
      work(t);
      --running;
    });
  start.arrive_and_wait();
  while (running) {
    sample();
    std::this_thread::yield();
  }
  for (std::thread& t : threads) t.join();
}

// The test's own account of who holds what, raised after a take and lowered before a put: it can only be too low, so
// passing the limit here means that the limit was passed.
struct Held {
  std::atomic<int> now{0}, most{0};
  void enter() {
    int mine = now.fetch_add(1) + 1, seen = most.load();
    while (mine > seen && !most.compare_exchange_weak(seen, mine)) {
    }
  }
  void leave() { now.fetch_sub(1); }
};

TEST(Hunger, TheOldestIsNextAndOnePlaceIsGivenUp) {
  Hunger h;
  EXPECT_FALSE(h.claim(9 * kSecond, 1));
  EXPECT_FALSE(h.yields(9 * kSecond, 1));
  h.raise(5 * kSecond, 7);
  h.raise(6 * kSecond, 8);
  EXPECT_FALSE(h.yields(9 * kSecond, 7)) << "not to itself";
  EXPECT_TRUE(h.yields(9 * kSecond, 8));
  EXPECT_TRUE(h.yields(9 * kSecond, 1));
  EXPECT_FALSE(h.yields(4 * kSecond, 1)) << "whoever waits longer yields to nobody";
  EXPECT_FALSE(h.claim(4 * kSecond, 1));
  EXPECT_FALSE(h.claim(9 * kSecond, 7));
  EXPECT_TRUE(h.claim(9 * kSecond, 1));
  EXPECT_FALSE(h.claim(9 * kSecond, 2)) << "once";
  EXPECT_TRUE(h.yields(9 * kSecond, 2)) << "the place is still to be taken";
  h.settle(8);
  EXPECT_TRUE(h.yields(9 * kSecond, 2));
  h.settle(7);
  EXPECT_FALSE(h.yields(9 * kSecond, 2));
  h.raise(6 * kSecond, 8);
  h.left(5 * kSecond, 8);
  h.left(6 * kSecond, 7);
  EXPECT_TRUE(h.yields(9 * kSecond, 1));
  EXPECT_TRUE(h.claim(9 * kSecond, 1));
  h.left(6 * kSecond, 8);
  EXPECT_FALSE(h.yields(9 * kSecond, 1));
  h.raise(6 * kSecond, 0);  // pool number 0 is one, too
  EXPECT_TRUE(h.claim(9 * kSecond, 1));
  h.raise(5 * kSecond, 3);
  EXPECT_TRUE(h.claim(9 * kSecond, 1)) << "an older one needs a place of its own";
}

TEST(Hunger, OneOfManyClaims) {
  Hunger h;
  std::atomic<int> claims{0}, raised{0};
  race(
      [&](int t) {
        for (int i = 0; i < 2000; ++i) {
          if (t == 0) {
            h.raise(kSecond, 1);
            ++raised;
            h.settle(1);
          } else {
            claims += h.claim(9 * kSecond, 2);
          }
        }
      },
      [] {});
  EXPECT_LE(claims, raised);
  EXPECT_FALSE(h.yields(9 * kSecond, 2));
}

TEST(Counter, Limits) {
  Counter c;
  EXPECT_TRUE(c.take(2));
  EXPECT_TRUE(c.take(2));
  EXPECT_FALSE(c.take(2));
  EXPECT_EQ(c.value(), 2);
  EXPECT_FALSE(c.take(1));  // lowered by RELOAD
  EXPECT_TRUE(c.take(3));
  EXPECT_TRUE(c.take(0));  // unlimited
  EXPECT_TRUE(c.take(-1));
  EXPECT_EQ(c.value(), 5);
  for (int i = 0; i < 5; ++i) c.put();
  EXPECT_EQ(c.value(), 0);
}

TEST(Counter, ExactUnderThreads) {
  constexpr int kLimit = 5;
  Counter c;
  Held held;
  std::atomic<std::int64_t> taken{0};
  int most_sampled = 0;
  race(
      [&](int) {
        std::int64_t mine = 0;
        for (int i = 0; i < kOperations; ++i) {
          if (!c.take(kLimit)) continue;
          ++mine;
          held.enter();
          if (i % 16 == 0) std::this_thread::yield();  // hold it over a switch of threads now and then
          held.leave();
          c.put();
        }
        taken += mine;
      },
      [&] { most_sampled = std::max(most_sampled, c.value()); });
  EXPECT_LE(most_sampled, kLimit);
  EXPECT_LE(held.most, kLimit);
  EXPECT_GT(taken, 0);
  EXPECT_EQ(c.value(), 0);
}

TEST(Counter, NothingIsLostWithoutALimit) {
  Counter c;
  race(
      [&](int) {
        for (int i = 0; i < kOperations; ++i) c.take(0);
      },
      [] {});
  EXPECT_EQ(c.value(), kThreads * kOperations);
}

config::PoolPolicy policy(int database_limit, int user_limit) {
  config::PoolPolicy p{};
  p.max_db_connections = database_limit;
  p.max_user_connections = user_limit;
  return p;
}

class PermitTest : public testing::Test {
 protected:
  Permit take(PoolShared& pool, int limit, const config::PoolPolicy& p, bool check_shared = true) {
    return Permit::take(pool, limit, p, check_shared, why);
  }
  void expect(int pool, int database, int user) {
    EXPECT_EQ(a.servers.value(), pool);
    EXPECT_EQ(a.database.servers.value(), database);
    EXPECT_EQ(a.user.servers.value(), user);
  }
  Directory directory{4};
  PoolShared& a = directory.pool("db", "bob");
  PoolShared& other_user = directory.pool("db", "eve");
  PoolShared& other_database = directory.pool("db2", "bob");
  Permit::Refused why = Permit::Refused::none;
};

TEST_F(PermitTest, CountsEverywhereAndGivesBack) {
  {
    Permit p = take(a, 1, policy(0, 0));
    EXPECT_TRUE(p);
    EXPECT_EQ(why, Permit::Refused::none);
    expect(1, 1, 1);
    EXPECT_EQ(other_user.servers.value(), 0);
  }
  expect(0, 0, 0);
}

TEST_F(PermitTest, SaysWhoRefusedAndLeavesNoTrace) {
  Permit p = take(a, 1, policy(0, 0));
  EXPECT_FALSE(take(a, 1, policy(0, 0)));
  EXPECT_EQ(why, Permit::Refused::pool);
  EXPECT_FALSE(take(other_user, 9, policy(1, 9)));
  EXPECT_EQ(why, Permit::Refused::database);
  EXPECT_EQ(other_user.servers.value(), 0);
  EXPECT_FALSE(take(other_database, 9, policy(9, 1)));
  EXPECT_EQ(why, Permit::Refused::user);
  EXPECT_EQ(other_database.servers.value(), 0);
  EXPECT_EQ(other_database.database.servers.value(), 0);
  expect(1, 1, 1);
  EXPECT_TRUE(take(a, 2, policy(2, 2)));
  EXPECT_EQ(why, Permit::Refused::none);
}

TEST_F(PermitTest, CancelsPassTheSharedLimitsButCount) {
  Permit p = take(a, 1, policy(1, 1)), cancel = take(a, 2, policy(1, 1), false);
  EXPECT_TRUE(cancel);
  expect(2, 2, 2);
  EXPECT_FALSE(take(a, 2, policy(1, 1), false));
  EXPECT_EQ(why, Permit::Refused::pool);
}

TEST_F(PermitTest, MovesWithoutCountingTwice) {
  Permit p = take(a, 0, policy(0, 0));
  Permit q = std::move(p);
  EXPECT_FALSE(p);
  EXPECT_TRUE(q);
  expect(1, 1, 1);
  Permit r = take(a, 0, policy(0, 0));
  expect(2, 2, 2);
  r = std::move(q);  // gives back its own first
  expect(1, 1, 1);
  r.reset();
  r.reset();
  expect(0, 0, 0);
}

TEST_F(PermitTest, ExactUnderThreads) {
  constexpr int kPool = 3, kDatabase = 4, kUser = 5;
  PoolShared* pools[] = {&a, &other_user, &other_database};
  Held in_pool[3], in_db, in_bob;
  std::atomic<std::int64_t> taken{0};
  int most_pool = 0;
  race(
      [&](int t) {
        std::mt19937 random(static_cast<unsigned>(t));
        std::int64_t mine = 0;
        for (int i = 0; i < kOperations; ++i) {
          std::size_t n = random() % 3;
          Permit::Refused refused;
          Permit p = Permit::take(*pools[n], kPool, policy(kDatabase, kUser), true, refused);
          if (static_cast<bool>(p) != (refused == Permit::Refused::none)) std::abort();
          if (!p) continue;
          ++mine;
          bool db = n != 2, bob = n != 1;
          in_pool[n].enter();
          if (db) in_db.enter();
          if (bob) in_bob.enter();
          if (i % 16 == 0) std::this_thread::yield();
          in_pool[n].leave();
          if (db) in_db.leave();
          if (bob) in_bob.leave();
        }
        taken += mine;
      },
      [&] {
        for (PoolShared* p : pools) most_pool = std::max(most_pool, p->servers.value());
        EXPECT_LE(a.database.servers.value(), kDatabase);
        EXPECT_LE(a.user.servers.value(), kUser);
      });
  EXPECT_LE(most_pool, kPool);
  for (const Held& h : in_pool) EXPECT_LE(h.most, kPool);
  EXPECT_LE(in_db.most, kDatabase);
  EXPECT_LE(in_bob.most, kUser);
  EXPECT_GT(taken, 0);
  for (PoolShared* p : pools) {
    EXPECT_EQ(p->servers.value(), 0);
    EXPECT_EQ(p->database.servers.value(), 0);
    EXPECT_EQ(p->user.servers.value(), 0);
  }
}

TEST(Directory, SameNamesSameObjects) {
  Directory d(3);
  PoolShared& p = d.pool("db", "bob");
  EXPECT_EQ(&d.pool("db", "bob"), &p);
  EXPECT_EQ(&p.database, &d.database("db"));
  EXPECT_EQ(&p.user, &d.user("bob"));
  EXPECT_EQ(p.database.name, "db");
  EXPECT_EQ(p.user.name, "bob");
  EXPECT_EQ(p.workers(), 3);
  PoolShared &eve = d.pool("db", "eve"), &second = d.pool("db2", "bob");
  EXPECT_EQ(&eve.database, &p.database);
  EXPECT_NE(&eve.user, &p.user);
  EXPECT_EQ(&second.user, &p.user);
  EXPECT_THAT(d.pools(), UnorderedElementsAre(&p, &eve, &second));
}

// Two names must not be able to run into each other: "a" + "bc" is not "ab" + "c".
TEST(Directory, NamesAreKeptApart) {
  Directory d(1);
  EXPECT_NE(&d.pool("a", "bc"), &d.pool("ab", "c"));
  EXPECT_NE(&d.pool("", "a"), &d.pool("a", ""));
  EXPECT_EQ(d.pools().size(), 4u);
}

TEST(Directory, PoolsAreNumberedFromOne) {
  Directory d(1);
  EXPECT_EQ(d.pool("a", "x").number, 1u);
  EXPECT_EQ(d.pool("b", "x").number, 2u);
  EXPECT_EQ(d.pool("a", "x").number, 1u);
  EXPECT_EQ(d.pool("c", "x").number, 3u);
}

TEST(Directory, FindDoesNotCreate) {
  Directory d(1);
  EXPECT_EQ(d.find_database("db"), nullptr);
  EXPECT_TRUE(d.databases().empty());
  DatabaseShared& db = d.database("db");
  EXPECT_EQ(d.find_database("db"), &db);
  EXPECT_THAT(d.databases(), ElementsAre(&db));
  UserShared& user = d.user("u");
  EXPECT_THAT(d.users(), ElementsAre(&user));
  EXPECT_TRUE(d.pools().empty());
}

TEST(Directory, OnePoolWhoeverAsksFirst) {
  Directory d(kThreads);
  constexpr int kPools = 200;
  std::vector<std::vector<PoolShared*>> seen(kThreads);
  race(
      [&](int t) {
        for (int i = 0; i < kPools; ++i)
          seen[static_cast<std::size_t>(t)].push_back(&d.pool("db" + std::to_string(i), "bob"));
      },
      [&] {
        for (PoolShared* p : d.pools()) EXPECT_EQ(p->user.name, "bob");
      });
  for (int t = 1; t < kThreads; ++t) EXPECT_EQ(seen[static_cast<std::size_t>(t)], seen[0]);
  EXPECT_EQ(d.pools().size(), static_cast<std::size_t>(kPools));
  EXPECT_EQ(d.users().size(), 1u);
}

TEST(PoolShared, WelcomeAndLoginError) {
  Directory d(2);
  PoolShared& p = d.pool("db", "bob");
  EXPECT_FALSE(p.welcome());
  EXPECT_EQ(p.login_error().text, "");
  auto welcome = std::make_shared<const Welcome>(Welcome{"S...", wire::ParamSet(5)});
  p.set_welcome(welcome);
  EXPECT_EQ(p.welcome(), welcome);
  p.set_login_error({"28P01", "no"});
  EXPECT_EQ(p.login_error().sqlstate, "28P01");
  EXPECT_EQ(p.login_error().text, "no");
  p.set_login_error({});
  EXPECT_EQ(p.login_error().sqlstate, "");
}

TEST(PoolShared, WelcomeIsReadWhileItIsReplaced) {
  Directory d(kThreads);
  PoolShared& p = d.pool("db", "bob");
  race(
      [&](int t) {
        for (int i = 0; i < 2000; ++i) {
          if (t == 0) p.set_welcome(std::make_shared<const Welcome>(Welcome{std::string(100, 'w'), wire::ParamSet(1)}));
          if (t == 1) p.set_login_error({"XX000", std::string(100, 'e')});
          if (auto w = p.welcome(); w && w->untracked.size() != 100) std::abort();
          if (auto e = p.login_error(); !e.text.empty() && e.text.size() != 100) std::abort();
        }
      },
      [] {});
}

TEST(PoolShared, WorkersHaveTheirOwnCacheLine) {
  Directory d(4);
  PoolShared& p = d.pool("db", "bob");
  for (int w = 0; w < 4; ++w) {
    EXPECT_EQ(p.idle(w).count, 0);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(&p.idle(w)) % 64, 0u);
  }
  EXPECT_GE(reinterpret_cast<const char*>(&p.front(1)) - reinterpret_cast<const char*>(&p.front(0)), 64);
}

}  // namespace
}  // namespace pgf::pool
