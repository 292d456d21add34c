#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/test_files.h"

namespace pgf::config {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

std::vector<std::string> errors_of(const std::string& ini) {
  LoadResult r = load_text(ini);
  EXPECT_EQ(r.config == nullptr, !r.errors.empty());
  return r.errors;
}
std::shared_ptr<const Config> good(const std::string& ini) {
  LoadResult r = load_text(ini);
  EXPECT_THAT(r.errors, IsEmpty());
  return r.config ? r.config : std::make_shared<Config>();
}

TEST(Load, WholeFile) {
  auto c = good(
      "; a comment\n"
      "[databases]\n"
      "foo = host=a port=1\n"
      "* = host=b\n"
      "'my db' = dbname=x\n"
      "empty =\n"
      "[users]\n"
      "bob = pool_mode=transaction\n"
      "[peers]\n"
      "2 = host=p\n"
      "[pgbouncer]\n"
      "\tlisten_port\t=\t7000  \r\n"
      "# pool_mode = statement\n"
      "pool_mode=transaction\n"
      "logfile =\n");
  EXPECT_EQ(c->settings.listen_port, 7000);
  EXPECT_EQ(c->settings.pool_mode, PoolMode::transaction);
  EXPECT_EQ(c->settings.conffile, "f.ini");
  EXPECT_THAT(c->given, ElementsAre("listen_port", "logfile", "pool_mode"));
  EXPECT_EQ(c->databases.size(), 3u);
  EXPECT_EQ(c->databases.at("my db").dbname, "x");
  EXPECT_FALSE(c->databases.contains("*"));
  ASSERT_TRUE(c->wildcard);
  EXPECT_EQ(c->wildcard->host, "b");
  EXPECT_EQ(c->users.at("bob").pool_mode, PoolMode::transaction);
  EXPECT_EQ(c->peers.at(2).host, "p");
}

TEST(Load, CommentCharactersLaterAreData) {
  auto c = good("[pgbouncer]\nserver_reset_query = DISCARD ALL; SELECT 1 # x\n");
  EXPECT_EQ(c->settings.server_reset_query, "DISCARD ALL; SELECT 1 # x");
}

TEST(Load, SectionsRepeatAndLaterEntriesWin) {
  auto c = good("[databases]\na = pool_size=1 host=x\nb =\n[pgbouncer]\n[databases]\na = pool_size=2\n");
  EXPECT_EQ(c->databases.at("a").pool_size, 2);
  EXPECT_EQ(c->databases.at("a").host, "");
  EXPECT_TRUE(c->databases.contains("b"));
}

TEST(Load, SecondMainHeaderResets) {
  auto c = good("[pgbouncer]\nlisten_port=1\nauth_user=au\n[users]\n[pgbouncer]\npool_mode=statement\n");
  EXPECT_EQ(c->settings.listen_port, 6432);
  EXPECT_EQ(c->settings.auth_user, "au");  // NULL default: not reset
  EXPECT_THAT(c->given, ElementsAre("auth_user", "pool_mode"));
}

TEST(Load, TextBehindAHeaderIsReadToo) {
  EXPECT_EQ(good("[pgbouncer] ; main\nlisten_port=1")->settings.listen_port, 1);
  EXPECT_EQ(good("[users] [pgbouncer] listen_port=2")->settings.listen_port, 2);
}

TEST(Load, BareKeyCharacters) {
  EXPECT_TRUE(good("[pgbouncer]\n[databases]\na.B-9_* =\n")->databases.contains("a.B-9_*"));
}

TEST(Load, SyntaxErrors) {
  for (std::string bad : {"listen_port", "listen port = 1", "= 1", "[x", "[pgbouncer", "'open = 1", "'' = 1", "%inc x",
                          "%include", "%include ", "%includex", "a:b = 1", "]", "[pgbouncer] x"})
    EXPECT_THAT(errors_of("[pgbouncer]\n" + bad + "\n"),
                ElementsAre("syntax error in configuration (f.ini:2), stopping loading"))
        << bad;
  EXPECT_THAT(errors_of(std::string("[pgbouncer]\nlogfile = a\0b\n", 26)),
              ElementsAre("syntax error in configuration (f.ini:2), stopping loading"));
}

TEST(Load, SyntaxErrorsWithAReason) {
  EXPECT_THAT(
      errors_of("[databases]\n\"my db\" = host=a\n"),
      ElementsAre("syntax error in configuration (f.ini:2), stopping loading: use single quotes around a name"));
  EXPECT_THAT(errors_of("listen_port = 1\n"),
              ElementsAre("syntax error in configuration (f.ini:1), stopping loading: a key before any [section]"));
}

TEST(Load, UnknownThings) {
  EXPECT_THAT(errors_of("[pgbouncer]\n\nmax_clients_conn = 1\n"),
              ElementsAre("unknown parameter: pgbouncer/max_clients_conn in configuration (f.ini:3), did you mean "
                          "\"max_client_conn\"?"));
  EXPECT_THAT(errors_of("[pgbouncer]\nservice_name = x\n"),
              ElementsAre("unknown parameter: pgbouncer/service_name in configuration (f.ini:2)"));
  EXPECT_THAT(errors_of("[Databases]\n"),
              ElementsAre("unknown section: Databases in configuration (f.ini:1), did you mean \"databases\"?"));
}

TEST(Load, InvalidValues) {
  EXPECT_THAT(errors_of("[pgbouncer]\nlisten_port = x\nnonsense\n"),
              ElementsAre("invalid value \"x\" for parameter listen_port in configuration (f.ini:2): expected a whole "
                          "number"));
  EXPECT_THAT(errors_of("[pgbouncer]\nauth_dbname = pgbouncer\n").size(), 1u);
  EXPECT_THAT(errors_of("[databases]\nd = hots=a\n"),
              ElementsAre("unrecognized connection parameter: hots, did you mean \"host\"? (f.ini:2)",
                          "invalid value \"hots=a\" for parameter d in configuration (f.ini:2)"));
  EXPECT_THAT(errors_of("[databases]\nd = password=secret port=0\n"),
              ElementsAre("invalid port: 0 (f.ini:2)",
                          "invalid value \"(not shown)\" for parameter d in configuration (f.ini:2)"));
  EXPECT_EQ(errors_of("[users]\nu = host=a\n").size(), 2u);
  EXPECT_EQ(errors_of("[peers]\n0 = host=a\n").size(), 2u);
}

TEST(Load, MainSectionIsMandatory) {
  EXPECT_THAT(errors_of("[databases]\na=\n"), ElementsAre("no [pgbouncer] section in configuration (f.ini)"));
  EXPECT_THAT(errors_of(""), ElementsAre("no [pgbouncer] section in configuration (f.ini)"));
}

TEST(Load, MissingFile) {
  TestFiles none;
  LoadResult r = load("x.ini", none);
  EXPECT_EQ(r.config, nullptr);
  EXPECT_THAT(r.errors, ElementsAre("could not load file x.ini: No such file or directory"));
}

TEST(Include, SectionCarriesOverBothWays) {
  TestFiles files{{{"f.ini", "[pgbouncer]\n%include dir/a b.ini  \nc = host=x\n"},
                   {"dir/a b.ini", "listen_port = 9\n[databases]\n"}}};
  LoadResult r = load("f.ini", files);
  ASSERT_TRUE(r.config) << r.errors[0];
  EXPECT_EQ(r.config->settings.listen_port, 9);
  EXPECT_TRUE(r.config->databases.contains("c"));
}

TEST(Include, ErrorsNameTheIncludedFile) {
  TestFiles files{{{"f.ini", "[pgbouncer]\n%include a.ini\n"}, {"a.ini", "\n\nbad\n"}}};
  EXPECT_THAT(load("f.ini", files).errors, ElementsAre("syntax error in configuration (a.ini:3), stopping loading"));
  files.files.erase("a.ini");
  EXPECT_THAT(load("f.ini", files).errors,
              ElementsAre("could not load file a.ini: No such file or directory (f.ini:2)"));
}

TEST(Include, TenLevels) {
  auto chain = [](int levels) {
    TestFiles files;
    files.files["0"] = "[pgbouncer]\n%include 1\n";
    for (int i = 1; i < levels; ++i) files.files[std::to_string(i)] = "%include " + std::to_string(i + 1) + "\n";
    files.files[std::to_string(levels)] = "listen_port = 5\n";
    return load("0", files);
  };
  ASSERT_TRUE(chain(10).config);
  EXPECT_EQ(chain(10).config->settings.listen_port, 5);
  EXPECT_THAT(chain(11).errors, ElementsAre("include nesting is deeper than 10 levels (10:1)"));
}

TEST(Include, ManyTimesManyEnds) {
  TestFiles files{{{"f.ini", "[pgbouncer]\n%include 1\n"}, {"9", "\n"}}};
  for (int i = 1; i < 9; ++i)
    for (int n = 0; n < 10; ++n) files.files[std::to_string(i)] += "%include " + std::to_string(i + 1) + "\n";
  LoadResult r = load("f.ini", files);
  EXPECT_EQ(r.config, nullptr);
  EXPECT_LE(files.reads, 10'000);
}

TEST(AuthFileLoading, ReadUnlessNotNeeded) {
  for (std::string type : {"trust", "plain", "md5", "cert", "hba", "ldap", "scram-sha-256", "any", "pam"}) {
    TestFiles files{{{"f.ini", "[pgbouncer]\nauth_file = u.txt\nauth_type = " + type}, {"u.txt", "\"a\" \"b\"\n"}}};
    LoadResult r = load("f.ini", files);
    ASSERT_TRUE(r.config) << type;
    EXPECT_EQ(r.config->passwords.size(), type == "any" || type == "pam" ? 0u : 1u) << type;
  }
}

TEST(AuthFileLoading, MissingIsAWarning) {
  auto c = good("[pgbouncer]\nauth_file = u.txt\n");
  EXPECT_THAT(c->warnings, ElementsAre("could not open auth_file u.txt: No such file or directory"));
  EXPECT_TRUE(c->auth_file_broken);
}

TEST(AuthFileLoading, BrokenIsAWarningAndKeepsTheStart) {
  TestFiles files{{{"f.ini", "[pgbouncer]\nauth_file = u.txt\n"}, {"u.txt", "\"a\" \"b\"\nbad\n"}}};
  LoadResult r = load("f.ini", files);
  ASSERT_TRUE(r.config);
  EXPECT_EQ(r.config->passwords.size(), 1u);
  EXPECT_TRUE(r.config->auth_file_broken);
  EXPECT_THAT(r.config->warnings, ElementsAre("u.txt: broken auth file (line 2)"));
}

TEST(Load, WarnsOfWhatHasNoEffect) {
  EXPECT_THAT(good("[pgbouncer]\npkt_buf = 8192\nclient_tls_key_file = k\nserver_tls_sslmode=require\n"
                   "peer_id = 0\n[peers]\n1 = host=a\n")
                  ->warnings,
              UnorderedElementsAre("pkt_buf is accepted, but has no effect in this version",
                                   "[peers] has no effect without peer_id: cancel requests are not forwarded"));
  EXPECT_THAT(good("[pgbouncer]\npeer_id = 7\n[peers]\n1 = host=a\n* = host=b\n")->warnings, IsEmpty());
}

}  // namespace
}  // namespace pgf::config
