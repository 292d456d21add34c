#include "base/json.h"

#include <gtest/gtest.h>

namespace pgf {
namespace {

std::string json(std::string_view text) {
  std::string out;
  append_json(out, text);
  return out;
}

TEST(Json, PlainText) {
  EXPECT_EQ(json(""), "\"\"");
  EXPECT_EQ(json("abc /~"), "\"abc /~\"");
  EXPECT_EQ(json("пароль €😀"), "\"пароль €😀\"");
}

TEST(Json, Escapes) {
  EXPECT_EQ(json("a\"b\\c"), R"("a\"b\\c")");
  EXPECT_EQ(json("a\nb\tc\rd"), R"("a\nb\tc\u000dd")");
  EXPECT_EQ(json(std::string_view("\0\x1b[2J\x7f", 6)), R"("\u0000\u001b[2J\u007f")");
  EXPECT_EQ(json("\xc2\x9b"), R"("\u009b")");  // CSI in one character
  EXPECT_EQ(json("\xc2\xa0"), "\"\xc2\xa0\"");
}

TEST(Json, WhatIsNotUtf8IsReplaced) {
  EXPECT_EQ(json("a\xff"
                 "b"),
            "\"a\ufffdb\"");
  EXPECT_EQ(json("\xc3"), "\"\ufffd\"");                                // cut
  EXPECT_EQ(json("\xc3\""), "\"\ufffd\\\"\"");                          // the quote is not swallowed
  EXPECT_EQ(json("\xc0\xa2"), "\"\ufffd\ufffd\"");                      // a quote in too long a form
  EXPECT_EQ(json("\xe0\x80\xa2"), "\"\ufffd\ufffd\ufffd\"");            // likewise
  EXPECT_EQ(json("\xed\xa0\x80"), "\"\ufffd\ufffd\ufffd\"");            // half of a surrogate pair
  EXPECT_EQ(json("\xf4\x90\x80\x80"), "\"\ufffd\ufffd\ufffd\ufffd\"");  // beyond Unicode
  EXPECT_EQ(json("\xed\x9f\xbf\xf4\x8f\xbf\xbf"), "\"\xed\x9f\xbf\xf4\x8f\xbf\xbf\"");
}

}  // namespace
}  // namespace pgf
