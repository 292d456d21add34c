#include "config/value.h"

#include <gtest/gtest.h>

#include <limits>

namespace pgf::config {
namespace {

TEST(Value, IntIsBaseZero) {
  EXPECT_EQ(parse_int("42"), 42);
  EXPECT_EQ(parse_int("-1"), -1);
  EXPECT_EQ(parse_int("0x1F"), 31);
  EXPECT_EQ(parse_int("0777"), 511);
}

TEST(Value, IntMustMatchWhole) {
  for (const char* bad : {"", " ", "x", "5x", "5 ", "08", "0x", "1.5", "99999999999999999999"})
    EXPECT_FALSE(parse_int(bad)) << bad;
  EXPECT_FALSE(parse_int(std::string_view("1\0", 2)));
}

TEST(Value, SecondsTakeAFraction) {
  EXPECT_EQ(parse_seconds("15"), 15 * kSecond);
  EXPECT_EQ(parse_seconds("0.5"), kSecond / 2);
  EXPECT_EQ(parse_seconds(".25"), kSecond / 4);
  EXPECT_EQ(parse_seconds("+2"), 2 * kSecond);
  EXPECT_EQ(parse_seconds("1e3"), 1000 * kSecond);
  EXPECT_EQ(parse_seconds("0.0000001"), 0);
}

TEST(Value, SecondsRefuse) {
  for (const char* bad : {"", "-1", "-0.5", "+-1", "1s", "1 2", "nan", "inf", "abc", "1e999"})
    EXPECT_FALSE(parse_seconds(bad)) << bad;
}

TEST(Value, HugeSecondsCanBeAddedToAClock) {
  auto time = parse_seconds("1e300");
  ASSERT_TRUE(time);
  EXPECT_LT(*time, std::numeric_limits<Usec>::max() / 2);
}

TEST(Value, SecondsShowLikePercentG) {
  EXPECT_EQ(show_seconds(3600 * kSecond), "3600");
  EXPECT_EQ(show_seconds(kSecond / 2), "0.5");
  EXPECT_EQ(show_seconds(0), "0");
  EXPECT_EQ(show_seconds(1'234'567 * kSecond), "1.23457e+06");
}

TEST(Value, LenientIntIsAtoi) {
  EXPECT_EQ(lenient_int("12abc"), 12);
  EXPECT_EQ(lenient_int(" -7"), -7);
  EXPECT_EQ(lenient_int("+3"), 3);
  EXPECT_EQ(lenient_int("abc"), 0);
  EXPECT_EQ(lenient_int(""), 0);
  EXPECT_EQ(lenient_int("0x10"), 0);
  EXPECT_EQ(lenient_int("99999999999999999999999"), std::numeric_limits<int>::max());
  EXPECT_EQ(lenient_int("-99999999999999999999999"), -std::numeric_limits<int>::max());
}

std::string endpoint(std::string_view text) {
  auto e = parse_endpoint(text);
  return e ? e->host + " " + std::to_string(e->port) : "none";
}

TEST(Value, Endpoints) {
  EXPECT_EQ(endpoint("127.0.0.1:9127"), "127.0.0.1 9127");
  EXPECT_EQ(endpoint("[::1]:1"), "::1 1");
  EXPECT_EQ(endpoint("*:65535"), "* 65535");
  EXPECT_EQ(endpoint("localhost:80"), "localhost 80");
  for (const char* bad : {"", "9127", ":9127", "h:", "h:0", "h:65536", "h:1x", "h:-1", "::1:80", "[::1]", "[h]:80",
                          "[::1:80", "a b:80", "[]:80"})
    EXPECT_EQ(endpoint(bad), "none") << bad;
}

TEST(Value, Trim) {
  EXPECT_EQ(trim(" \t a b\r\n"), "a b");
  EXPECT_EQ(trim(" \t "), "");
  EXPECT_EQ(trim(""), "");
}

}  // namespace
}  // namespace pgf::config
