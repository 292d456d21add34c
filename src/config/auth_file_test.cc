#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/config.h"

namespace pgf::config {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

TEST(AuthFile, Lines) {
  AuthFile f = parse_auth_file("\"a\" \"x\"\n\n  \"b\"\t\"y\" trailing \"junk\"\r\n\"c\"\"z\n");
  EXPECT_THAT(f.passwords, ElementsAre(Pair("a", "x"), Pair("b", "y")));
  EXPECT_THAT(f.errors, ElementsAre("broken auth file (line 4)"));
}

TEST(AuthFile, NoNewlineAtTheEnd) {
  EXPECT_THAT(parse_auth_file("\"a\" \"x\"").passwords, ElementsAre(Pair("a", "x")));
  EXPECT_THAT(parse_auth_file("").passwords, IsEmpty());
}

TEST(AuthFile, DoubledQuotes) {
  EXPECT_THAT(parse_auth_file("\"a\"\"b\" \"\"\"\"").passwords, ElementsAre(Pair("a\"b", "\"")));
}

TEST(AuthFile, Comments) {
  AuthFile f = parse_auth_file("; hello\n ;again\n\"a\" \";\"\n# no\n\"b\" \"\"\n");
  EXPECT_THAT(f.passwords, ElementsAre(Pair("a", ";")));
  EXPECT_THAT(f.errors, ElementsAre("broken auth file (line 4)"));
}

TEST(AuthFile, SecretsStayAsWritten) {
  std::string scram = "SCRAM-SHA-256$4096:c2FsdA==$c3RvcmVk:c2VydmVy";
  AuthFile f = parse_auth_file("\"a\" \"md5abc\"\n\"b\" \"" + scram + "\"\n\"c\" \"\"\n");
  EXPECT_THAT(f.passwords, ElementsAre(Pair("a", "md5abc"), Pair("b", scram), Pair("c", "")));
}

TEST(AuthFile, LastOfDuplicatesWins) {
  EXPECT_THAT(parse_auth_file("\"a\" \"1\"\n\"a\" \"2\"\n").passwords, ElementsAre(Pair("a", "2")));
}

TEST(AuthFile, BrokenLinesStopIt) {
  for (std::string bad : {"a b", "\"a\"", "\"a\" b", "\"a\" \"b", "\"a", "\"a\" \"b\"\"", "x\"a\" \"b\""}) {
    AuthFile f = parse_auth_file("\"first\" \"1\"\n" + bad + "\n\"last\" \"2\"\n");
    EXPECT_THAT(f.passwords, ElementsAre(Pair("first", "1"))) << bad;
    EXPECT_THAT(f.errors, ElementsAre("broken auth file (line 2)")) << bad;
  }
  EXPECT_THAT(parse_auth_file(std::string_view("\"a\0\" \"b\"", 8)).errors, ElementsAre("broken auth file (line 1)"));
}

TEST(AuthFile, Lengths) {
  auto line = [](std::size_t user, std::size_t password) {
    return "\"" + std::string(user, 'u') + "\" \"" + std::string(password, 'p') + "\"\n";
  };
  EXPECT_THAT(parse_auth_file(line(127, 65530)).errors, IsEmpty());
  EXPECT_THAT(parse_auth_file(line(128, 1)).errors, ElementsAre("username too long in auth file (line 1)"));
  EXPECT_THAT(parse_auth_file(line(1, 65531)).errors, ElementsAre("password too long in auth file (line 1)"));
}

}  // namespace
}  // namespace pgf::config
