#include "admin/parse.h"

#include <gtest/gtest.h>

namespace pgf::admin {
namespace {

std::string error_of(std::string_view text) {
  auto parsed = parse(text);
  if (!parsed) return parsed.error();
  return parsed->problem.empty() ? "parsed as " + parsed->tag() : std::string(parsed->problem);
}

std::string invalid(std::string_view text) { return "invalid command '" + std::string(text) + "', use SHOW HELP;"; }

Command good(std::string_view text) {
  auto parsed = parse(text);
  EXPECT_TRUE(parsed) << text << ": " << parsed.error();
  return parsed.value_or(Command{.verb = find_verb("SHOW")});
}

TEST(Parse, WordsInAnyCaseWithBlanksAndOneSemicolon) {
  for (std::string_view text : {"RELOAD", "reload", "ReLoad;", " \t\r\n\v\freload  ;  \n", "reload ;"})
    EXPECT_EQ(good(text).verb->action, Action::reload) << text;
}

TEST(Parse, Malformed) {
  using namespace std::string_view_literals;
  for (std::string_view text : {""sv,
                                ";"sv,
                                "  "sv,
                                "reload;;"sv,
                                "reload; reload"sv,
                                "reload pause"sv,
                                "nonsense"sv,
                                "pause a b"sv,
                                "pause a-b"sv,
                                "pause 'a'"sv,
                                "pause \"a"sv,
                                "pause\"a\""sv,
                                "pause \"\""sv,
                                "\"pause\""sv,
                                "pause=1"sv,
                                "-- x"sv,
                                "select 1"sv,
                                "show"sv,
                                "show;"sv,
                                "show nothing"sv,
                                "show pools x"sv,
                                "suspend x"sv,
                                "shutdown soon"sv,
                                "reload\0"sv,
                                "p\xc3\xa4use"sv})
    EXPECT_EQ(error_of(text), invalid(text));
}

TEST(Parse, DatabaseArgumentsKeepTheirCase) {
  EXPECT_EQ(good("pause").database, "");
  EXPECT_EQ(good("pause ;").database, "");
  EXPECT_EQ(good("pause MyDb;").database, "MyDb");
  EXPECT_EQ(good("KILL 1_a").database, "1_a");
  EXPECT_EQ(good("RESUME \"My-Db; \"").database, "My-Db; ");
  EXPECT_EQ(good("disable \"a\"\"b\"").database, "a\"b");
  EXPECT_EQ(good("enable \"\"\"\"").database, "\"");
  EXPECT_EQ(good("wait_close d").verb->action, Action::wait_close);
  EXPECT_EQ(good("reconnect d").verb->action, Action::reconnect);
}

TEST(Parse, ReconnectOfAHost) {
  struct {
    std::string_view text, database, host;
    int port;
  } cases[] = {
      {"reconnect", "", "", 0},
      {"RECONNECT d;", "d", "", 0},
      {"reconnect host", "host", "", 0},  // a database of that name
      {"reconnect \"a b\"", "a b", "", 0},
      {"reconnect host=pg1", "", "pg1", 0},
      {"reconnect d host=10.0.0.1;", "d", "10.0.0.1", 0},
      {"reconnect D HOST = fe80::1 PORT = 5433 ;", "D", "fe80::1", 5433},
      {"reconnect \"d\" host='/run/a b' port=1", "d", "/run/a b", 1},
      {"reconnect host host=\"host\"", "host", "host", 0},
  };
  for (const auto& c : cases) {
    Command command = good(c.text);
    EXPECT_EQ(command.verb->action, Action::reconnect);
    EXPECT_EQ(command.database, c.database) << c.text;
    EXPECT_EQ(command.host, c.host) << c.text;
    EXPECT_EQ(command.port, c.port) << c.text;
  }
  for (std::string_view text : {"reconnect a b", "reconnect a host", "reconnect host=", "reconnect host=''",
                                "reconnect host='x", "reconnect \"\"", "reconnect port=1", "reconnect a port=1 host=b",
                                "reconnect host=a b", "reconnect host=a host=b", "reconnect host=a where=b",
                                "reconnect host=a;b", "reconnect =a", "reconnect \"host\"=a", "reconnecthost=a"})
    EXPECT_EQ(error_of(text), invalid(text));
  for (std::string_view text : {"reconnect host=a port=0", "reconnect host=a port=65536", "reconnect host=a port=1x"})
    EXPECT_EQ(error_of(text), "bad arguments") << text;
  EXPECT_EQ(error_of("reconnect host=" + std::string(256, 'a')), "bad arguments");
}

TEST(Parse, DatabaseRequired) {
  EXPECT_EQ(error_of("DISABLE"), "a database is required");
  EXPECT_EQ(error_of("enable;"), "a database is required");
}

TEST(Parse, LengthLimits) {
  std::string a15(15, 'a'), a63(63, 'a'), a64(64, 'a');
  EXPECT_EQ(error_of(a15), invalid(a15));
  EXPECT_EQ(error_of(a15 + "a"), "bad arguments");
  EXPECT_EQ(good("pause " + a63).database, a63);
  EXPECT_EQ(error_of("pause " + a64), "bad arguments");
  EXPECT_EQ(good("pause \"" + a63 + "\"").database, a63);
  EXPECT_EQ(error_of("pause \"" + a64 + "\""), "bad arguments");
  EXPECT_EQ(error_of("set " + a64 + "=1"), "bad arguments");
  std::string v255(255, 'v');
  EXPECT_EQ(good("set a='" + v255 + "'").value, v255);
  EXPECT_EQ(error_of("set a='" + v255 + "v'"), "bad arguments");
  EXPECT_EQ(error_of("set a=" + v255 + "v"), "bad arguments");
}

TEST(Parse, ShowAndItsAlias) {
  EXPECT_EQ(good("show pools").view->name, "POOLS");
  EXPECT_EQ(good("SELECT Pools;").view->name, "POOLS");
  EXPECT_EQ(good("show \"stats\"").view->name, "STATS");
  EXPECT_EQ(good("select pools").tag(), "SHOW");
  EXPECT_TRUE(good("show help").help);
  EXPECT_FALSE(good("show pools").help);
  for (const observe::View& view : observe::views()) EXPECT_EQ(good("SHOW " + std::string(view.name)).view, &view);
}

TEST(Parse, ShowOfCompatibilityNames) {
  const std::pair<std::string, std::string_view> expected[] = {{"client_encoding", "UTF-8"},
                                                               {"default_transaction_isolation", "read committed"},
                                                               {"standard_conforming_strings", "on"},
                                                               {"DateStyle", "ISO"},
                                                               {"TimeZone", "GMT"}};
  for (const auto& [name, value] : expected) {
    Command command = good("show " + name);
    ASSERT_TRUE(command.parameter) << name;
    EXPECT_EQ(command.parameter->value, value);
    EXPECT_FALSE(command.needs_admin());
  }
}

TEST(Parse, Set) {
  struct Case {
    std::string_view text, key, value;
  };
  for (const Case& c : std::initializer_list<Case>{{"set a = 1", "a", "1"},
                                                   {"SET a=1;", "a", "1"},
                                                   {"set Abc TO Def", "Abc", "Def"},
                                                   {"set a to 'x y'", "a", "x y"},
                                                   {"set a to'x'", "a", "x"},
                                                   {"set a='it''s; -.' ;", "a", "it's; -."},
                                                   {"set a = ''", "a", ""},
                                                   {"set to to to", "to", "to"}}) {
    Command command = good(c.text);
    EXPECT_EQ(command.key, c.key) << c.text;
    EXPECT_EQ(command.value, c.value) << c.text;
    EXPECT_TRUE(command.needs_admin());
    EXPECT_EQ(command.tag(), "SET " + std::string(c.key) + "=" + std::string(c.value));
  }
}

TEST(Parse, SetMalformed) {
  for (std::string_view text : {"set", "set a", "set a =", "set a 1", "set a to", "set a tob", "set ato b", "set = 1",
                                "set a = 1-2", "set a = 1.5", "set a = 'x", "set a = 'x' y", "set a = \"x\"",
                                "set a == 1", "set \"a\" = 1", "seta=1", "set=1"})
    EXPECT_EQ(error_of(text), invalid(text));
}

TEST(Parse, SetOfCompatibilityNamesIsForEveryone) {
  Command command = good("SET datestyle = 'ISO, DMY'");
  ASSERT_TRUE(command.parameter);
  EXPECT_FALSE(command.needs_admin());
  EXPECT_EQ(command.tag(), "SET");
}

TEST(Parse, KillClient) {
  EXPECT_EQ(good("kill_client 42;").client_id, 42u);
  EXPECT_EQ(good("kill_client 18446744073709551615").client_id, ~std::uint64_t{0});
  for (std::string_view text : {"kill_client", "kill_client 0x10", "kill_client 1a", "kill_client \"-1\"",
                                "kill_client 18446744073709551616", "kill_client abc"})
    EXPECT_EQ(error_of(text), "invalid client pointer supplied") << text;
}

TEST(Parse, Shutdown) {
  EXPECT_EQ(good("shutdown").shutdown, ShutdownMode::now);
  EXPECT_EQ(good("SHUTDOWN wait_for_servers;").shutdown, ShutdownMode::wait_for_servers);
  EXPECT_EQ(good("SHUTDOWN WAIT_FOR_CLIENTS").shutdown, ShutdownMode::wait_for_clients);
}

TEST(Parse, WhoMay) {
  EXPECT_FALSE(good("show pools").needs_admin());
  EXPECT_FALSE(good("show help").needs_admin());
  for (std::string_view text : {"reload", "pause", "resume", "suspend", "disable a", "enable a", "kill",
                                "kill_client 1", "reconnect", "wait_close", "shutdown", "set a=1"})
    EXPECT_TRUE(good(text).needs_admin()) << text;
}

}  // namespace
}  // namespace pgf::admin
