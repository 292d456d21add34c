#include "wire/prepared.h"

#include <gtest/gtest.h>

#include <barrier>
#include <map>
#include <random>
#include <set>
#include <thread>

// Counted in params_test.cc.
extern thread_local std::size_t t_allocations;
extern std::atomic<std::ptrdiff_t> g_live_allocations;

namespace pgf::wire {
namespace {

using namespace std::string_literals;

TEST(StatementTable, OneStatementPerText) {
  StatementTable table;
  StatementPtr a = table.intern("select 1\0\0\0"s), b = table.intern("select 1\0\0\0"s);
  EXPECT_EQ(a, b);
  EXPECT_EQ(a->id, 1u);
  EXPECT_EQ(a->server_name, "PGBOUNCER_1");
  EXPECT_EQ(a->tail, "select 1\0\0\0"s);
  // The parameter types are part of the identity.
  StatementPtr c = table.intern("select 1\0\0\1\0\0\0\x17"s);
  EXPECT_NE(c, a);
  EXPECT_EQ(c->id, 2u);
  EXPECT_EQ(table.size(), 2u);
  EXPECT_EQ(table.bytes(), a->tail.size() + c->tail.size());
}

TEST(StatementTable, FreedAtTheLastUserAndNumberedAnew) {
  StatementTable table;
  StatementPtr a = table.intern("q");
  std::weak_ptr<const Statement> watch = a;
  StatementPtr second = a;
  a.reset();
  EXPECT_EQ(table.size(), 1u);
  EXPECT_EQ(table.intern("q"), second);
  second.reset();
  EXPECT_TRUE(watch.expired());
  EXPECT_EQ(table.size(), 0u);
  EXPECT_EQ(table.bytes(), 0u);
  EXPECT_EQ(table.intern("q")->id, 2u);
}

TEST(ClientStatements, ForgetsWhatWasNotUsedForLongest) {
  StatementTable table;
  ClientStatements mine;
  for (const char* name : {"a", "b", "c"}) ASSERT_TRUE(mine.add(name, table.intern(name)));
  EXPECT_EQ(table.bytes(), 3u);
  EXPECT_TRUE(mine.find("a"));
  EXPECT_TRUE(mine.forget_oldest());
  EXPECT_FALSE(mine.find("b"));
  EXPECT_EQ(table.bytes(), 2u);
  EXPECT_TRUE(mine.remove("c"));
  EXPECT_FALSE(mine.forget_oldest());  // the last one stays
  EXPECT_TRUE(mine.find("a"));
  mine.clear();
  EXPECT_FALSE(mine.forget_oldest());
  EXPECT_EQ(table.bytes(), 0u);
}

TEST(ServerStatements, PlansOfAnEarlierEpochAreNotReady) {
  StatementTable table;
  ServerStatements server;
  StatementPtr a = table.intern("a");
  server.add(a, 1);
  EXPECT_TRUE(server.ready(*a, 1));
  EXPECT_FALSE(server.ready(*a, 2));
  EXPECT_TRUE(server.has(*a));
  server.add(a, 2);
  EXPECT_TRUE(server.ready(*a, 2));
  EXPECT_EQ(server.size(), 1u);
}

TEST(ServerStatements, AnUnansweredParseCountsInItsBatchOnly) {
  StatementTable table;
  ServerStatements server;
  StatementPtr a = table.intern("a");
  server.confirm(*a);  // nobody knows it any more
  EXPECT_FALSE(server.has(*a));
  server.add(a, 1, 7);
  EXPECT_TRUE(server.ready(*a, 1, 7));
  EXPECT_TRUE(server.use(*a, 1, 7));
  EXPECT_FALSE(server.ready(*a, 1, 8)) << "an error in batch 7 would take it away";
  EXPECT_FALSE(server.use(*a, 1, 8));
  EXPECT_TRUE(server.has(*a)) << "and without one its name is taken";
  server.confirm(*a);
  EXPECT_TRUE(server.ready(*a, 1, 8));
  EXPECT_TRUE(server.use(*a, 1, 9));
  EXPECT_FALSE(server.ready(*a, 2, 9));
  server.add(a, 2, 9);  // a new plan is being made: with or without it, there is one
  EXPECT_TRUE(server.ready(*a, 2, 10));
  server.remove(*a);
  server.add(a, 2);
  EXPECT_FALSE(server.ready(*a, 2, 10)) << "what came back by an error is not sure";
}

TEST(Deallocate, NamesAsPostgresqlFoldsThem) {
  EXPECT_EQ(forgotten_by("DEALLOCATE s").name, "s");
  EXPECT_EQ(forgotten_by("deallocate S_1$x ;").name, "s_1$x");
  EXPECT_EQ(forgotten_by("\n Deallocate\tPREPARE\r\n \"Mixed \"\"Case\" ; ").name, "Mixed \"Case");
  EXPECT_EQ(forgotten_by("DEALLOCATE \"_pg3_0\"").name, "_pg3_0");
  EXPECT_EQ(forgotten_by("DEALLOCATE prepare").name, "prepare");
  EXPECT_EQ(forgotten_by("DEALLOCATE \"all\"").name, "all");
  EXPECT_EQ(forgotten_by("DEALLOCATE caf\xc3\xa9").name, "caf\xc3\xa9");
  for (const char* other : {"", "DEALLOCATE", "DEALLOCATE ALL", "deallocate prepare all", "DEALLOCATE s; select 1",
                            "DEALLOCATE \"s", "DEALLOCATE 1s", "DEALLOCATEs", "\"deallocate\" s", "DEALLOCATE s t",
                            "select 1", "DEALLOCATE \"\"", "DEALLOCATE /* s */ t"})
    EXPECT_EQ(forgotten_by(other).name, "") << other;
  EXPECT_EQ(forgotten_by("DEALLOCATE " + std::string(63, 'x')).name, std::string(63, 'x'));
  EXPECT_EQ(forgotten_by("DEALLOCATE " + std::string(64, 'x')).name, "");
}

TEST(Deallocate, All) {
  for (const char* all : {"DEALLOCATE ALL", "deallocate prepare all;", "DISCARD ALL", " discard\n All ; "}) {
    EXPECT_TRUE(forgotten_by(all).all) << all;
    EXPECT_EQ(forgotten_by(all).name, "") << all;
  }
  for (const char* other :
       {"DISCARD PLANS", "DISCARD TEMP", "DISCARD", "DEALLOCATE \"all\"", "DISCARD \"all\"", "DEALLOCATE s",
        "DISCARD ALL; select 1", "DEALLOCATE ALL x", "select 'DISCARD ALL'", "DISCARDALL"})
    EXPECT_FALSE(forgotten_by(other).all) << other;
}

TEST(StatementTable, ForgottenTextsLeaveNoMemoryBehind) {
  StatementTable table;
  auto round = [&](int from) {
    for (int i = from; i < from + 20000; ++i) table.intern("select " + std::to_string(i));
  };
  round(0);
  std::ptrdiff_t before = g_live_allocations;
  for (int i = 1; i < 5; ++i) round(i * 20000);
  EXPECT_EQ(table.size(), 0u);
  // What waits for the next sweep: at most 64 entries in each of 16 shards, three blocks each.
  EXPECT_LT(g_live_allocations - before, 16 * 64 * 3);
}

TEST(StatementTable, SweepsKeepTheLiving) {
  StatementTable table;
  std::vector<StatementPtr> kept;
  for (int i = 0; i < 20000; ++i) {
    StatementPtr s = table.intern("select " + std::to_string(i));
    if (i % 10 == 0) kept.push_back(std::move(s));
  }
  EXPECT_EQ(table.size(), kept.size());
  for (const StatementPtr& s : kept) EXPECT_EQ(table.intern(s->tail), s);
}

TEST(StatementTable, SharedBetweenThreads) {
  constexpr int kThreads = 8, kTexts = 97, kRounds = 20000;
  StatementTable table;
  std::vector<std::vector<StatementPtr>> held(kThreads, std::vector<StatementPtr>(16));
  std::barrier start(kThreads);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      std::vector<StatementPtr>& mine = held[static_cast<std::size_t>(t)];
      start.arrive_and_wait();
      for (int i = 0; i < kRounds; ++i) {
        std::string text = "select " + std::to_string(random() % kTexts);
        StatementPtr s = table.intern(text);
        if (s->tail != text || s->server_name != "PGBOUNCER_" + std::to_string(s->id)) ++wrong;
        if (table.intern(text) != s) ++wrong;  // still in use: still the same
        mine[random() % mine.size()] = random() % 3 ? std::move(s) : nullptr;
        if (i % 5000 == 0) table.size(), table.bytes();
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);

  std::map<std::string, StatementPtr> by_text;
  std::set<std::uint64_t> ids;
  for (const auto& mine : held)
    for (const StatementPtr& s : mine)
      if (s) {
        EXPECT_EQ(by_text.try_emplace(s->tail, s).first->second, s);
        ids.insert(s->id);
      }
  EXPECT_EQ(ids.size(), by_text.size());
  EXPECT_EQ(table.size(), by_text.size());
  by_text.clear();
  held.clear();
  EXPECT_EQ(table.size(), 0u);
}

TEST(ClientStatements, NamesAreTheClientsOwn) {
  StatementTable table;
  ClientStatements a, b;
  EXPECT_TRUE(a.add("s", table.intern("q1")));
  EXPECT_FALSE(a.add("s", table.intern("q2")));  // in use, even for another text
  EXPECT_TRUE(b.add("s", table.intern("q2")));
  EXPECT_EQ(a.find("s")->tail, "q1");
  EXPECT_EQ(b.find("s")->tail, "q2");
  EXPECT_FALSE(a.find("S"));
  EXPECT_FALSE(a.find(""));
  EXPECT_TRUE(a.remove("s"));
  EXPECT_FALSE(a.remove("s"));
  EXPECT_FALSE(a.find("s"));
  EXPECT_TRUE(a.add("s", table.intern("q3")));
  EXPECT_EQ(a.size(), 1u);
  a.clear();
  EXPECT_EQ(a.size(), 0u);
  EXPECT_EQ(table.size(), 1u);  // b's
}

TEST(ClientStatements, FindDoesNotAllocate) {
  StatementTable table;
  ClientStatements statements;
  const std::string name(200, 'n');
  statements.add(name, table.intern("q"));
  std::size_t before = t_allocations;
  StatementPtr found = statements.find(name), missing = statements.find("another name that fits no small string");
  EXPECT_EQ(t_allocations, before);
  EXPECT_TRUE(found);
  EXPECT_FALSE(missing);
}

class ServerStatementsTest : public testing::Test {
 protected:
  StatementPtr q(int i) { return table.intern("q" + std::to_string(i)); }
  StatementTable table;
  ServerStatements server;
};

TEST_F(ServerStatementsTest, EvictsTheLeastRecentlyUsed) {
  StatementPtr a = q(1), b = q(2), c = q(3);
  for (const StatementPtr& s : {a, b, c}) server.add(s);
  EXPECT_FALSE(server.evict(3));
  server.use(*a, 0);
  EXPECT_EQ(server.evict(2), b);
  EXPECT_FALSE(server.evict(2));
  EXPECT_FALSE(server.has(*b));
  EXPECT_TRUE(server.has(*a) && server.has(*c));
  EXPECT_EQ(server.evict(0), c);
  EXPECT_EQ(server.evict(0), a);
  EXPECT_FALSE(server.evict(0));
  EXPECT_EQ(server.size(), 0u);
}

TEST_F(ServerStatementsTest, AskingDoesNotRefresh) {
  StatementPtr a = q(1), b = q(2);
  server.add(a);
  server.add(b);
  EXPECT_TRUE(server.has(*a));  // a Parse hit
  EXPECT_EQ(server.evict(1), a);
}

TEST_F(ServerStatementsTest, AddingTwiceIsOnceAndRefreshes) {
  StatementPtr a = q(1), b = q(2);
  server.add(a);
  server.add(b);
  server.add(a);
  EXPECT_EQ(server.size(), 2u);
  EXPECT_EQ(server.evict(1), b);
}

TEST_F(ServerStatementsTest, RemoveAndClear) {
  StatementPtr a = q(1), b = q(2);
  server.add(a);
  server.add(b);
  EXPECT_TRUE(server.remove(*a));
  EXPECT_FALSE(server.remove(*a));
  EXPECT_EQ(a.use_count(), 1);
  server.use(*a, 0);  // of no effect
  EXPECT_EQ(server.size(), 1u);
  server.clear();
  EXPECT_EQ(server.size(), 0u);
  EXPECT_EQ(b.use_count(), 1);
}

TEST_F(ServerStatementsTest, KeepsTheTextAliveAfterTheClientLeft) {
  {
    ClientStatements client;
    StatementPtr a = q(1);
    client.add("s", a);
    server.add(a);
  }
  EXPECT_EQ(table.size(), 1u);
  EXPECT_TRUE(server.has(*q(1)));
  server.clear();
  EXPECT_EQ(table.size(), 0u);
}

TEST_F(ServerStatementsTest, FollowsAModel) {
  std::mt19937 random(1);
  std::vector<StatementPtr> all;
  for (int i = 0; i < 30; ++i) all.push_back(q(i));
  std::vector<StatementPtr> model;  // back = most recently used
  auto find = [&](const StatementPtr& s) { return std::find(model.begin(), model.end(), s); };
  for (int step = 0; step < 20000; ++step) {
    const StatementPtr& s = all[random() % all.size()];
    auto at = find(s);
    ASSERT_EQ(server.has(*s), at != model.end());
    switch (random() % 4) {
      case 0:
        server.use(*s, 0);
        if (at != model.end()) std::rotate(at, at + 1, model.end());
        break;
      case 1:
        if (at != model.end()) model.erase(at);
        model.push_back(s);
        server.add(s);
        break;
      case 2:
        ASSERT_EQ(server.remove(*s), at != model.end());
        if (at != model.end()) model.erase(at);
        break;
      default:
        while (StatementPtr victim = server.evict(10)) {
          ASSERT_EQ(victim, model.front());
          model.erase(model.begin());
        }
        ASSERT_LE(model.size(), 10u);
    }
    ASSERT_EQ(server.size(), model.size());
  }
}

}  // namespace
}  // namespace pgf::wire
