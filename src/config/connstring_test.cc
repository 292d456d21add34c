#include "config/connstring.h"

#include <gtest/gtest.h>

namespace pgf::config {
namespace {

// Back to text in one canonical form: [k|v][k|v], or ERROR.
std::string parsed(std::string_view text) {
  auto pairs = parse_connstring(text);
  if (!pairs) return "ERROR";
  std::string all;
  for (const Pair& pair : *pairs) all += "[" + pair.key + "|" + pair.value + "]";
  return all;
}

TEST(ConnString, Pairs) {
  EXPECT_EQ(parsed(""), "");
  EXPECT_EQ(parsed("   "), "");
  EXPECT_EQ(parsed("host=a"), "[host|a]");
  EXPECT_EQ(parsed("  host=a   port=1  "), "[host|a][port|1]");
  EXPECT_EQ(parsed("host = a port  =1"), "[host|a][port|1]");
  EXPECT_EQ(parsed("a=b=c"), "[a|b=c]");
}

TEST(ConnString, OnlyTheSpaceSeparates) { EXPECT_EQ(parsed("host=a\tport=1"), "[host|a\tport=1]"); }

TEST(ConnString, Quotes) {
  EXPECT_EQ(parsed("q='select 1' x=2"), "[q|select 1][x|2]");
  EXPECT_EQ(parsed("q='it''s'"), "[q|it's]");
  EXPECT_EQ(parsed("q=''''"), "[q|']");
  EXPECT_EQ(parsed("q='a\\' x=1"), "[q|a\\][x|1]");
  EXPECT_EQ(parsed("q=a'b"), "[q|a'b]");
}

TEST(ConnString, SyntaxErrors) {
  for (const char* bad : {"host", "host=", "host=''", "=a", "host=a port", "q='open", "q='a'b=c", "host= ", "q='''"})
    EXPECT_EQ(parsed(bad), "ERROR") << bad;
}

TEST(ConnString, PasswordsAreNotLogged) {
  EXPECT_EQ(without_secrets("host=a"), "host=a");
  EXPECT_EQ(without_secrets("host=a PassWord=x"), "(not shown)");
  EXPECT_EQ(without_secrets("passwrd=x"), "(not shown)");
}

}  // namespace
}  // namespace pgf::config
