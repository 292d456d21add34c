#include "wire/owed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <random>

namespace pgf::wire {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr Ask kAsks[] = {Ask::query,    Ask::function_call, Ask::sync,  Ask::parse,   Ask::bind,
                         Ask::describe, Ask::execute,       Ask::close, Ask::copy_end};

Owed owed(std::initializer_list<Ask> asks) {
  Owed o;
  for (Ask ask : asks) o.push(ask);
  return o;
}

std::vector<Ask> drain(Owed& o) {
  std::vector<Ask> asks;
  while (!o.empty()) asks.push_back(o.pop().ask);
  return asks;
}

StatementPtr statement(std::uint64_t id) {
  return std::make_shared<const Statement>(Statement{id, "PGBOUNCER_" + std::to_string(id), "q"});
}

TEST(Owed, FirstInFirstOut) {
  Owed o;
  EXPECT_TRUE(o.empty());
  o.push(Ask::parse, Give::skip, statement(1), "s1");
  o.push(Ask::sync);
  EXPECT_EQ(o.size(), 2u);
  Owed::Entry e = o.pop();
  EXPECT_EQ(e.ask, Ask::parse);
  EXPECT_EQ(e.give, Give::skip);
  EXPECT_EQ(e.statement->id, 1u);
  EXPECT_EQ(e.name, "s1");
  EXPECT_EQ(o.front().ask, Ask::sync);
  EXPECT_EQ(o.front().give, Give::forward);
  EXPECT_EQ(o.drop_front(), Give::forward);
  EXPECT_TRUE(o.empty());
}

// The Parse that comes next is in the queue when the one that failed is undone.
TEST(Owed, FindsAnUnnamedParse) {
  Owed o = owed({Ask::bind, Ask::sync, Ask::parse});
  EXPECT_TRUE(o.holds_unnamed_parse());
  o = owed({Ask::bind, Ask::sync});
  o.push(Ask::parse, Give::forward, statement(1), "s1");
  EXPECT_FALSE(o.holds_unnamed_parse());
}

// CopyDone is noted before it is known whether there is a COPY. In one that ended well, the Sync behind it is owed
// still.
TEST(Owed, EndOfCopyAheadOfItsCopy) {
  Owed o = owed({Ask::execute, Ask::sync, Ask::copy_end, Ask::sync, Ask::query});
  EXPECT_TRUE(o.leave_copy());
  EXPECT_THAT(drain(o), ElementsAre(Ask::sync, Ask::query));

  o = owed({Ask::copy_end, Ask::copy_end, Ask::sync, Ask::copy_end});  // no COPY at all
  o.drop_copy_ends();
  EXPECT_THAT(drain(o), ElementsAre(Ask::sync, Ask::copy_end));
}

// behaviour.md section 10, as a table of every server message against every entry.
TEST(Owed, WhichMessageCompletesWhat) {
  auto completed_by = [](Ask ask) -> std::string_view {
    switch (ask) {
      case Ask::query:
      case Ask::function_call:
      case Ask::sync:
        return "Z";
      case Ask::parse:
        return "1";
      case Ask::bind:
        return "2";
      case Ask::describe:
        return "Tn";
      case Ask::execute:
        return "CIs";
      case Ask::close:
        return "3";
      case Ask::copy_end:
        return "";
    }
    return "";
  };
  for (Ask ask : kAsks)
    for (int type = 1; type < 256; ++type) {
      Owed o = owed({ask});
      EXPECT_EQ(o.completes_front(static_cast<std::uint8_t>(type)), completed_by(ask).contains(static_cast<char>(type)))
          << static_cast<int>(ask) << " " << type;
    }
  Owed nothing;
  for (int type = 0; type < 256; ++type) EXPECT_FALSE(nothing.completes_front(static_cast<std::uint8_t>(type)));
}

TEST(Owed, DroppedEntriesLetGoOfTheirStatement) {
  Owed o;
  StatementPtr s = statement(1);
  o.push(Ask::parse, Give::skip, s);
  o.push(Ask::parse, Give::fake, s, "name");
  o.push(Ask::close, Give::skip, s);
  EXPECT_EQ(s.use_count(), 4);
  EXPECT_EQ(o.drop_front(), Give::skip);
  EXPECT_EQ(s.use_count(), 3);
  EXPECT_EQ(o.drop_front(), Give::fake);
  EXPECT_EQ(s.use_count(), 2);
  o.clear();
  EXPECT_EQ(s.use_count(), 1);
  EXPECT_TRUE(o.empty());
}

TEST(Owed, ReusedSlotsAreClean) {
  Owed o;
  for (int i = 0; i < 8; ++i) o.push(Ask::parse, Give::skip, statement(1), "a name");
  for (int i = 0; i < 4; ++i) o.drop_front();
  for (int i = 0; i < 4; ++i) o.pop();
  for (int i = 0; i < 8; ++i) o.push(Ask::query);
  while (!o.empty()) {
    Owed::Entry e = o.pop();
    EXPECT_FALSE(e.statement);
    EXPECT_EQ(e.name, "");
    EXPECT_EQ(e.give, Give::forward);
  }
}

TEST(Owed, GrowsWithItsHeadAnywhere) {
  for (int start = 0; start < 20; ++start) {
    Owed o;
    for (int i = 0; i < start; ++i) {
      o.push(Ask::sync);
      o.pop();
    }
    for (std::uint64_t i = 0; i < 1000; ++i) o.push(Ask::parse, Give::forward, statement(i), std::to_string(i));
    EXPECT_EQ(o.size(), 1000u);
    for (std::uint64_t i = 0; i < 1000; ++i) {
      Owed::Entry e = o.pop();
      ASSERT_EQ(e.statement->id, i);
      ASSERT_EQ(e.name, std::to_string(i));
    }
  }
}

TEST(Owed, BehavesLikeADeque) {
  std::mt19937 random(1);
  Owed o;
  std::deque<std::pair<Ask, std::uint64_t>> model;
  for (std::uint64_t i = 0; i < 50000; ++i) {
    // Waves of growing and shrinking, so that the ring wraps and grows at every offset.
    bool push = random() % 100 < (i / 500 % 2 ? 30u : 70u);
    if (push) {
      Ask ask = kAsks[random() % std::size(kAsks)];
      o.push(ask, Give::forward, statement(i));
      model.emplace_back(ask, i);
    } else if (!model.empty()) {
      Owed::Entry e = o.pop();
      ASSERT_EQ(e.ask, model.front().first);
      ASSERT_EQ(e.statement->id, model.front().second);
      model.pop_front();
    }
    ASSERT_EQ(o.size(), model.size());
    ASSERT_EQ(o.empty(), model.empty());
  }
}

std::vector<Ask> ready(Owed& o) {
  std::vector<Ask> undone;
  o.drop_through_ready([&](Owed::Entry& e) { undone.push_back(e.ask); });
  return undone;
}

TEST(OwedReady, FrontThatMatchesIsAllThatGoes) {
  for (Ask ask : {Ask::sync, Ask::query, Ask::function_call}) {
    Owed o = owed({ask, Ask::parse, Ask::sync});
    EXPECT_THAT(ready(o), IsEmpty());
    EXPECT_THAT(drain(o), ElementsAre(Ask::parse, Ask::sync));
  }
}

TEST(OwedReady, DropsThroughTheNextSyncOnly) {
  Owed o = owed({Ask::bind, Ask::execute, Ask::sync, Ask::parse, Ask::sync});
  EXPECT_THAT(ready(o), ElementsAre(Ask::execute, Ask::bind));
  EXPECT_THAT(drain(o), ElementsAre(Ask::parse, Ask::sync));
}

// PostgreSQL skips simple queries and function calls as well until it sees the Sync: they get no ReadyForQuery.
TEST(OwedReady, QueriesInAFailedPipelineNeverRan) {
  Owed o = owed({Ask::parse, Ask::query, Ask::function_call, Ask::sync, Ask::query});
  EXPECT_THAT(ready(o), ElementsAre(Ask::function_call, Ask::query, Ask::parse));
  EXPECT_THAT(drain(o), ElementsAre(Ask::query));
}

TEST(OwedReady, WithoutASyncEverythingGoes) {
  Owed o = owed({Ask::bind, Ask::execute});
  EXPECT_THAT(ready(o), ElementsAre(Ask::execute, Ask::bind));
  EXPECT_TRUE(o.empty());
  EXPECT_THAT(ready(o), IsEmpty());
}

std::vector<Ask> error(Owed& o) {
  std::vector<Ask> undone;
  o.skip_after_error([&](Owed::Entry& e) { undone.push_back(e.ask); });
  return undone;
}

TEST(OwedError, WhatIsSkippedIsKnownIfTheSyncIs) {
  Owed o = owed({Ask::bind, Ask::execute, Ask::sync, Ask::parse, Ask::sync});
  EXPECT_FALSE(o.skips_what_comes());
  EXPECT_THAT(error(o), ElementsAre(Ask::execute, Ask::bind));
  EXPECT_FALSE(o.skips_what_comes());
  EXPECT_THAT(error(o), IsEmpty());
  EXPECT_THAT(ready(o), IsEmpty());
  EXPECT_THAT(drain(o), ElementsAre(Ask::parse, Ask::sync));
}

TEST(OwedError, WithoutASyncItIsKnownAtTheReadyForQuery) {
  Owed o = owed({Ask::parse, Ask::bind});
  EXPECT_TRUE(o.skips_what_comes());
  EXPECT_THAT(error(o), IsEmpty());
  o.push(Ask::execute);
  o.push(Ask::sync);
  EXPECT_FALSE(o.skips_what_comes());
  EXPECT_THAT(ready(o), ElementsAre(Ask::execute, Ask::bind, Ask::parse));
  EXPECT_TRUE(o.empty());
}

TEST(OwedError, OfAQueryNothingIsSkipped) {
  for (Ask ask : {Ask::sync, Ask::query, Ask::function_call}) {
    Owed o = owed({ask, Ask::parse, Ask::sync});
    EXPECT_FALSE(o.skips_what_comes());
    EXPECT_THAT(error(o), IsEmpty());
    EXPECT_THAT(drain(o), ElementsAre(ask, Ask::parse, Ask::sync));
  }
}

TEST(OwedReady, UndoSeesStatementAndName) {
  Owed o;
  StatementPtr a = statement(1), b = statement(2);
  o.push(Ask::execute);
  o.push(Ask::parse, Give::fake, a, "client name");
  o.push(Ask::close, Give::skip, b);
  o.push(Ask::sync);
  std::vector<std::string> undone;
  o.drop_through_ready([&](Owed::Entry& e) {
    if (e.statement) undone.push_back(e.name + "/" + e.statement->server_name);
  });
  EXPECT_THAT(undone, ElementsAre("/PGBOUNCER_2", "client name/PGBOUNCER_1"));
  EXPECT_EQ(a.use_count(), 1);
  EXPECT_EQ(b.use_count(), 1);
}

// Two CopyDone for one copy: the second answers nothing and must not take a later query with it.
TEST(OwedReady, StrayEndOfCopy) {
  Owed o = owed({Ask::copy_end, Ask::copy_end, Ask::query, Ask::query});
  EXPECT_THAT(ready(o), IsEmpty());
  EXPECT_THAT(drain(o), ElementsAre(Ask::query));
}

TEST(OwedCopy, SimpleQueryStays) {
  Owed o = owed({Ask::query, Ask::copy_end});
  EXPECT_TRUE(o.leave_copy());
  EXPECT_THAT(drain(o), ElementsAre(Ask::query));
}

TEST(OwedCopy, SimpleQueryStaysBeforeWhatWasPipelined) {
  Owed o = owed({Ask::query, Ask::sync, Ask::copy_end, Ask::query, Ask::parse, Ask::sync});
  EXPECT_TRUE(o.leave_copy());
  EXPECT_THAT(drain(o), ElementsAre(Ask::query, Ask::query, Ask::parse, Ask::sync));
}

TEST(OwedCopy, TwoCopiesInOneQuery) {
  Owed o = owed({Ask::query, Ask::copy_end, Ask::copy_end});
  EXPECT_TRUE(o.leave_copy());
  EXPECT_TRUE(o.leave_copy());
  EXPECT_FALSE(o.leave_copy());
  EXPECT_THAT(drain(o), ElementsAre(Ask::query));
}

TEST(OwedCopy, ExtendedWell) {
  // CommandComplete has popped the Execute; the first Sync was sent before CopyInResponse and ignored by the server.
  Owed o = owed({Ask::sync, Ask::copy_end, Ask::sync});
  EXPECT_TRUE(o.leave_copy());
  EXPECT_THAT(drain(o), ElementsAre(Ask::sync));
}

TEST(OwedCopy, ExtendedError) {
  Owed o = owed({Ask::execute, Ask::sync, Ask::copy_end, Ask::sync});
  EXPECT_TRUE(o.leave_copy());
  EXPECT_THAT(drain(o), ElementsAre(Ask::sync));
}

TEST(OwedCopy, ErrorBeforeTheClientEndedItsCopy) {
  Owed o = owed({Ask::execute, Ask::sync});
  EXPECT_FALSE(o.leave_copy());
  EXPECT_TRUE(o.empty());
  Owed nothing;
  EXPECT_FALSE(nothing.leave_copy());
}

// Execute turned out to be a COPY and the client had pipelined on. Nothing of that is lost: the next batch is still to
// be answered, and the Parse that never ran is undone at ReadyForQuery.
TEST(OwedCopy, ErrorWithBatchesBehind) {
  Owed o;
  o.push(Ask::execute);
  o.push(Ask::parse, Give::forward, statement(7), "s");
  o.push(Ask::sync);
  o.push(Ask::bind);
  o.push(Ask::sync);
  EXPECT_FALSE(o.leave_copy());
  EXPECT_EQ(o.size(), 4u);
  EXPECT_EQ(o.front().statement->id, 7u);
  EXPECT_THAT(ready(o), ElementsAre(Ask::parse));
  EXPECT_THAT(drain(o), ElementsAre(Ask::bind, Ask::sync));
}

TEST(Owed, KnowsWhichAnswersSettleAStatement) {
  Owed o;
  StatementPtr s = statement(3), t = statement(4);
  const std::uint32_t first = o.batch();
  o.push(Ask::parse, Give::skip, s);
  o.push(Ask::close, Give::fake, t, "t");
  o.push(Ask::bind, Give::forward, t);
  EXPECT_TRUE(o.settles(Ask::parse, *s));
  EXPECT_FALSE(o.settles(Ask::close, *s));
  EXPECT_FALSE(o.settles(Ask::close, *t)) << "the server hears nothing of it";
  EXPECT_FALSE(o.settles(Ask::parse, *t));
  EXPECT_EQ(o.batch(), first);
  o.push(Ask::sync);
  EXPECT_NE(o.batch(), first);
  o.push(Ask::close, Give::skip, t);
  EXPECT_TRUE(o.settles(Ask::close, *t));
  o.clear();
  EXPECT_FALSE(o.settles(Ask::parse, *s));
}

TEST(OwedCopy, WhatFollowsKeepsItsStatement) {
  Owed o;
  StatementPtr s = statement(3);
  o.push(Ask::query);
  o.push(Ask::copy_end);
  o.push(Ask::parse, Give::skip, s, "n");
  EXPECT_TRUE(o.leave_copy());
  o.pop();
  Owed::Entry e = o.pop();
  EXPECT_EQ(e.statement, s);
  EXPECT_EQ(e.give, Give::skip);
  EXPECT_EQ(e.name, "n");
}

}  // namespace
}  // namespace pgf::wire
