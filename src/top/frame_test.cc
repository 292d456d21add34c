#include "top/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pgf::top {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Sample sample(Usec at, double transactions) {
  Sample s;
  s.at = at;
  s.tables["POOLS"] = {{"database", "user", "cl_active", "cl_waiting", "sv_active", "sv_idle", "sv_used", "maxwait",
                        "maxwait_us", "pool_mode"},
                       {{"a", "u", "3", "0", "1", "2", "1", "0", "0", "session"},
                        {"b", "u", "5", "2", "4", "0", "0", "1", "500000", "transaction"}}};
  s.tables["LATENCY"] = {{"database", "user", "what", "p50_us", "p99_us"},
                         {{"b", "u", "wait", "0", "1500000"}, {"b", "u", "query", "900", "25000"}}};
  s.tables["WORKERS"] = {{"worker", "transactions", "busy", "waiting", "clients"},
                         {{"0", std::to_string(transactions), "0.05", "0", "4"}, {"1", "0", "0.95", "2", "6"}}};
  s.tables["STATS_TOTALS"] = {{"database", "xact_count", "query_count"}, {{"b", std::to_string(transactions), "0"}}};
  s.tables["HOSTS"] = {{"database", "host", "state"}, {{"a", "h", "up"}, {"b", "h", "out"}}};
  s.tables["LISTS"] = {{"list", "items"}, {{"used_clients", "10"}, {"used_servers", "8"}}};
  s.tables["STATE"] = {{"key", "value"}, {{"active", "no"}, {"paused", "yes"}, {"suspended", "no"}}};
  return s;
}

std::vector<std::string> column(const Sheet& sheet, std::string_view title) {
  std::vector<std::string> all;
  for (std::size_t i = 0; i < sheet.columns.size(); ++i)
    if (sheet.columns[i].title == title)
      for (const auto& row : sheet.rows) all.push_back(row[i].text);
  return all;
}

TEST(Sheet, Pools) {
  Sheet s = make_sheet(View::pools, sample(kSecond, 0), nullptr);
  EXPECT_THAT(column(s, "DATABASE"), ElementsAre("a", "b"));
  EXPECT_THAT(column(s, "CLIENTS"), ElementsAre("3", "7"));
  EXPECT_THAT(column(s, "IDLE"), ElementsAre("3", "0"));
  EXPECT_THAT(column(s, "MAXWAIT"), ElementsAre("0", "1.5s"));
  EXPECT_THAT(column(s, "WAIT p99"), ElementsAre("-", "1.5s"));
  EXPECT_THAT(column(s, "QUERY p50"), ElementsAre("-", "900us"));
  sort(s, usual_order(View::pools));
  EXPECT_THAT(column(s, "DATABASE"), ElementsAre("b", "a"));  // who waits is first
  EXPECT_EQ(s.rows[0][4].mood, Mood::bad);
}

TEST(Sheet, RatesNeedTwoLooks) {
  const Sample first = sample(kSecond, 1000), second = sample(3 * kSecond, 5000);
  EXPECT_THAT(column(make_sheet(View::workers, second, nullptr), "XACT/s"), ElementsAre("-", "-"));
  EXPECT_THAT(column(make_sheet(View::workers, second, &first), "XACT/s"), ElementsAre("2.0k", "0"));
  EXPECT_THAT(head_lines(second, nullptr)[1], HasSubstr("- transactions/s"));
  EXPECT_THAT(head_lines(second, &first)[1], HasSubstr("2.0k transactions/s"));
  const Sample again = sample(4 * kSecond, 0);
  EXPECT_THAT(head_lines(again, &second)[1], ::testing::StartsWith("0 transactions/s"));  // it was started again
}

TEST(Sheet, Head) {
  auto lines = head_lines(sample(kSecond, 0), nullptr);
  EXPECT_EQ(lines[0], "10 clients, 2 wait, longest 1.5s   8 servers, 5 active   1 of 2 hosts out  paused");
  EXPECT_THAT(lines[1], HasSubstr("2 workers, busy 5% 95%"));
}

TEST(Sheet, NothingKnownIsNoReasonToFail) {
  for (View view : {View::pools, View::clients, View::workers, View::hosts}) {
    EXPECT_TRUE(make_sheet(view, {}, nullptr).rows.empty());
    Sheet sheet = make_sheet(view, {}, nullptr);
    sort(sheet, {99, true});
    EXPECT_LT(usual_order(view).column, sheet.columns.size());
  }
  EXPECT_EQ(head_lines({}, nullptr).size(), 2u);
}

TEST(Sheet, SortsNumbersAsNumbers) {
  Sheet s{{{"N", true}, {"T"}}, {{{"9", 9}, {"b"}}, {{"10", 10}, {"a"}}, {{"1.2k", 1200}, {"c"}}}};
  sort(s, {0, true});
  EXPECT_THAT(column(s, "N"), ElementsAre("1.2k", "10", "9"));
  sort(s, {1, false});
  EXPECT_THAT(column(s, "T"), ElementsAre("a", "b", "c"));
}

TEST(Sheet, ShortTexts) {
  EXPECT_EQ(short_number(0), "0");
  EXPECT_EQ(short_number(999), "999");
  EXPECT_EQ(short_number(1000), "1.0k");
  EXPECT_EQ(short_number(15'300), "15k");
  EXPECT_EQ(short_number(2.5e9), "2.5G");
  EXPECT_EQ(short_time(0), "0");
  EXPECT_EQ(short_time(850), "850us");
  EXPECT_EQ(short_time(1500), "1.5ms");
  EXPECT_EQ(short_time(250'000), "250ms");
  EXPECT_EQ(short_time(2'500'000), "2.5s");
  EXPECT_EQ(short_time(600e6), "10min");
}

TEST(Frame, HarmlessText) {
  EXPECT_EQ(harmless("abc", 3), "abc");
  EXPECT_EQ(harmless("abcd", 3), "ab…");
  EXPECT_EQ(harmless("приве́т", 4), "при…");
  EXPECT_EQ(harmless("a\x1b[2J\n\xff\xc2\x9b", 20), "a?[2J???");
  EXPECT_EQ(harmless("abc", 0), "");
  EXPECT_EQ(harmless("", 5), "");
  EXPECT_EQ(width_of("при…"), 4u);
}

TEST(Frame, FitsTheTerminal) {
  Sheet s = make_sheet(View::pools, sample(kSecond, 0), nullptr);
  for (int i = 0; i < 100; ++i) s.rows.push_back(s.rows[0]);
  Picture p{"title\x1b[2J", {"one", std::string(500, 'x')}, View::pools, {3, true}, ""};
  for (std::size_t width : {1u, 7u, 40u, 80u, 300u})
    for (std::size_t height : {1u, 4u, 5u, 24u}) {
      Look look{width, height, false, 0};
      auto lines = draw(p, s, look);
      EXPECT_EQ(lines.size(), height);
      for (const std::string& line : lines) {
        EXPECT_LE(width_of(line), width);
        EXPECT_THAT(line, Not(HasSubstr("\x1b")));
      }
    }
}

TEST(Frame, Lines) {
  Sheet s = make_sheet(View::pools, sample(kSecond, 0), nullptr);
  Picture p{"title", {"one", "two"}, View::pools, {3, true}, ""};
  auto lines = draw(p, s, {200, 0, false, 0});
  ASSERT_EQ(lines.size(), 7u);
  EXPECT_EQ(lines[0], "title");
  EXPECT_THAT(lines[3], HasSubstr("q quit"));
  EXPECT_THAT(lines[4], HasSubstr("WAITv"));
  EXPECT_THAT(lines[6], ::testing::StartsWith("b "));
  EXPECT_EQ(draw(p, s, {200, 0, false, 1}).size(), 6u);  // scrolled
  p.notice = "no answer";
  EXPECT_EQ(draw(p, s, {200, 0, false, 0})[3], "no answer");
  EXPECT_THAT(draw(p, s, {200, 0, true, 0})[3], HasSubstr("\x1b[31mno answer"));
}

}  // namespace
}  // namespace pgf::top
