#include "wire/params.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

// This test program counts what it allocates: per thread, for what must not allocate at all, and over all, for what
// must give back what it took (prepared_test.cc).
thread_local std::size_t t_allocations = 0;
std::atomic<std::ptrdiff_t> g_live_allocations{0};

[[gnu::noinline]] void* operator new(std::size_t n) {
  ++t_allocations;
  g_live_allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(n ? n : 1)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept {
  if (p) g_live_allocations.fetch_sub(1, std::memory_order_relaxed);
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { operator delete(p); }

namespace pgf::wire {
namespace {

enum : int { kDateStyle, kEncoding, kTimeZone, kStrings, kAppName, kExtra };

TEST(ParamNames, BuiltIn) {
  ParamNames names("");
  ASSERT_EQ(names.size(), 5);
  EXPECT_EQ(names.name(kDateStyle), "DateStyle");
  EXPECT_EQ(names.name(kEncoding), "client_encoding");
  EXPECT_EQ(names.name(kTimeZone), "TimeZone");
  EXPECT_EQ(names.name(kStrings), "standard_conforming_strings");
  EXPECT_EQ(names.name(kAppName), "application_name");
}

TEST(ParamNames, FindIgnoresCase) {
  ParamNames names("IntervalStyle");
  EXPECT_EQ(names.find("datestyle"), kDateStyle);
  EXPECT_EQ(names.find("CLIENT_ENCODING"), kEncoding);
  EXPECT_EQ(names.find("intervalstyle"), kExtra);
  EXPECT_EQ(names.find(""), -1);
  EXPECT_EQ(names.find("date"), -1);
  EXPECT_EQ(names.find("datestylex"), -1);
  EXPECT_EQ(names.find("client-encoding"), -1);
}

TEST(ParamNames, ExtraList) {
  ParamNames names(" IntervalStyle ,\tsearch_path,, ,timezone,INTERVALSTYLE,lc_monetary, ");
  ASSERT_EQ(names.size(), 8);
  EXPECT_EQ(names.name(5), "IntervalStyle");  // the spelling given first
  EXPECT_EQ(names.name(6), "search_path");
  EXPECT_EQ(names.name(7), "lc_monetary");
  EXPECT_EQ(ParamNames(",").size(), 5);
  EXPECT_EQ(ParamNames("  ").size(), 5);
}

TEST(ParamSet, SetKeepsTheOldPointerOfAnEqualValue) {
  ParamSet set(2);
  EXPECT_FALSE(set.get(0));
  set.set(0, std::string_view("a"));
  ParamSet::Value before = set.get(0);
  set.set(0, std::string_view("a"));
  EXPECT_EQ(set.get(0), before);
  set.set(0, std::string_view("A"));
  EXPECT_NE(set.get(0), before);
  EXPECT_EQ(*set.get(0), "A");
  EXPECT_EQ(*before, "a");  // values never change in place
  EXPECT_FALSE(set.get(1));
}

TEST(ParamSet, FillFromTakesOnlyWhatIsUnknown) {
  ParamSet set(3), defaults(3);
  set.set(0, std::string_view("mine"));
  set.set(1, std::string_view(""));  // empty is known
  for (int i = 0; i < 3; ++i) defaults.set(i, std::string_view("default"));
  set.fill_from(defaults);
  EXPECT_EQ(*set.get(0), "mine");
  EXPECT_EQ(*set.get(1), "");
  EXPECT_EQ(set.get(2), defaults.get(2));
}

TEST(ParamsMatch, UnknownSidesMatch) {
  ParamSet client(2), server(2);
  EXPECT_TRUE(params_match(client, server));
  client.set(0, std::string_view("x"));
  server.set(1, std::string_view("y"));
  EXPECT_TRUE(params_match(client, server));
  EXPECT_FALSE(server.get(0));
  EXPECT_FALSE(client.get(1));
}

TEST(ParamsMatch, EqualValuesBecomeOnePointer) {
  ParamSet client(2), server(2);
  client.set(0, std::string_view("UTC"));
  server.set(0, std::string_view("UTC"));
  client.set(1, std::string_view("iso, mdy"));
  server.set(1, std::string_view("ISO, MDY"));
  ASSERT_NE(client.get(0), server.get(0));
  EXPECT_TRUE(params_match(client, server));
  EXPECT_EQ(client.get(0), server.get(0));
  EXPECT_EQ(*server.get(1), "ISO, MDY");  // the server's spelling is what it really has
  EXPECT_EQ(*client.get(1), "iso, mdy");
}

TEST(ParamsMatch, Difference) {
  ParamSet client(1), server(1);
  client.set(0, std::string_view("a"));
  server.set(0, std::string_view("b"));
  EXPECT_FALSE(params_match(client, server));
  server.set(0, std::string_view("ab"));
  EXPECT_FALSE(params_match(client, server));
  server.set(0, std::string_view(""));
  EXPECT_FALSE(params_match(client, server));
}

TEST(ParamsMatch, DoesNotAllocate) {
  ParamSet client(6), server(6), other(6);
  const std::string text = "a value too long for any small string";
  for (int i = 0; i < 6; ++i) {
    client.set(i, std::string_view(text));
    server.set(i, std::string_view(text));
    other.set(i, std::string_view("something else"));
  }
  std::size_t before = t_allocations;
  bool first = params_match(client, server), second = params_match(client, server), third = params_match(client, other);
  EXPECT_EQ(t_allocations, before);
  EXPECT_TRUE(first);
  EXPECT_TRUE(second);
  EXPECT_FALSE(third);
}

class DiffSql : public testing::Test {
 protected:
  std::string sql(std::string_view name, std::string_view wanted, std::string_view has = "?") {
    ParamSet client(names.size()), server(names.size());
    client.set(names.find(name), wanted);
    server.set(names.find(name), has);
    return params_diff_sql(names, client, server);
  }
  ParamNames names{"search_path"};
};

TEST_F(DiffSql, Quoting) {
  EXPECT_EQ(sql("application_name", "psql"), "SET application_name='psql';");
  EXPECT_EQ(sql("application_name", ""), "SET application_name='';");
  EXPECT_EQ(sql("application_name", "it's"), "SET application_name='it''s';");
  EXPECT_EQ(sql("application_name", "x'; DROP TABLE t;--"), "SET application_name='x''; DROP TABLE t;--';");
  EXPECT_EQ(sql("application_name", "''"), "SET application_name='''''';");
  EXPECT_EQ(sql("application_name", R"(a\b)"), R"(SET application_name=E'a\\b';)");
  // Whatever standard_conforming_strings is, a backslash cannot open the literal.
  EXPECT_EQ(sql("application_name", R"(\'; DROP TABLE t;--)"), R"(SET application_name=E'\\''; DROP TABLE t;--';)");
  EXPECT_EQ(sql("application_name", R"(\)"), R"(SET application_name=E'\\';)");
  EXPECT_EQ(sql("timezone", "Europe/Vienna"), "SET TimeZone='Europe/Vienna';");
}

// A doubled backslash would be torn apart where it is the second byte of a character (SJIS, BIG5, GBK).
TEST_F(DiffSql, BackslashesAreLeftAloneWhereTheyMeanNothing) {
  ParamSet client(names.size()), server(names.size());
  client.set(names.find("application_name"), std::string_view("\x83\\'"));
  server.set(names.find("application_name"), std::string_view(""));
  server.set(names.find("standard_conforming_strings"), std::string_view("on"));
  EXPECT_EQ(params_diff_sql(names, client, server), "SET application_name='\x83\\''';");
  server.set(names.find("standard_conforming_strings"), std::string_view("off"));
  EXPECT_EQ(params_diff_sql(names, client, server), "SET application_name=E'\x83\\\\''';");
}

TEST_F(DiffSql, CaseIsPartOfANameOnly) {
  EXPECT_EQ(sql("TimeZone", "utc", "UTC"), "");
  EXPECT_EQ(sql("application_name", "Report", "REPORT"), "SET application_name='Report';");
  EXPECT_EQ(sql("search_path", R"("A")", R"("a")"), R"(SELECT pg_catalog.set_config('search_path','"A"',false);)");
}

TEST_F(DiffSql, SearchPathIsAListAlready) {
  EXPECT_EQ(sql("search_path", R"("$user", public)"),
            R"(SELECT pg_catalog.set_config('search_path','"$user", public',false);)");
  EXPECT_EQ(sql("search_path", R"("")"), "SELECT pg_catalog.set_config('search_path','',false);");
  EXPECT_EQ(sql("search_path", ""), "SELECT pg_catalog.set_config('search_path','',false);");
  EXPECT_EQ(sql("search_path", "a; DROP TABLE t; --"),
            "SELECT pg_catalog.set_config('search_path','a; DROP TABLE t; --',false);");
}

TEST_F(DiffSql, LongValuesAreApplied) {
  std::string longer(5000, 'x');
  EXPECT_EQ(sql("application_name", longer), "SET application_name='" + longer + "';");
}

TEST_F(DiffSql, OnlyWhatIsKnownOnBothSidesAndDifferent) {
  EXPECT_EQ(sql("datestyle", "iso, MDY", "ISO, mdy"), "");
  ParamSet client(names.size()), server(names.size());
  client.set(kTimeZone, std::string_view("UTC"));
  server.set(kEncoding, std::string_view("UTF8"));
  EXPECT_EQ(params_diff_sql(names, client, server), "");
  client.set(kEncoding, std::string_view("LATIN1"));
  server.set(kTimeZone, std::string_view("GMT"));
  EXPECT_EQ(params_diff_sql(names, client, server), "SET client_encoding='LATIN1';SET TimeZone='UTC';");
  client = server;
  EXPECT_EQ(params_diff_sql(names, client, server), "");
}

// What params_match calls equal must need no SET, and the other way round: otherwise a client waits for an answer to
// nothing, or runs with another's value.
TEST_F(DiffSql, AgreesWithMatch) {
  const std::string_view values[] = {"", "a", "A", "b", "'", "\\", "a ", "\xc3\xa4", "\xc3\x84"};
  for (std::string_view c : values)
    for (std::string_view s : values) {
      ParamSet client(names.size()), server(names.size());
      client.set(0, c);
      server.set(0, s);
      bool match = params_match(client, server);
      EXPECT_EQ(params_diff_sql(names, client, server).empty(), match) << c << " / " << s;
    }
}

}  // namespace
}  // namespace pgf::wire
