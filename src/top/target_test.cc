#include "top/target.h"

#include <gtest/gtest.h>

#include <map>

namespace pgf::top {
namespace {

class TargetTest : public testing::Test {
 protected:
  std::expected<Target, std::string> parse(const std::string& argument) {
    return parse_target(argument, {[this](const char* name) { return environment[name]; },
                                   [this](const std::string& path) {
                                     struct : config::FileReader {
                                       std::optional<std::string> read(const std::string& name,
                                                                       std::string& e) override {
                                         auto it = all->find(name);
                                         if (it != all->end()) return it->second;
                                         e = "No such file or directory";
                                         return std::nullopt;
                                       }
                                       std::map<std::string, std::string>* all;
                                     } reader;
                                     reader.all = &files;
                                     return config::load(path, reader);
                                   },
                                   [this](const std::string& path) { return path == ours; }, "me"});
  }
  std::map<std::string, std::string> environment, files;
  std::string ours;
};

TEST_F(TargetTest, NothingSaid) {
  auto t = parse("");
  ASSERT_TRUE(t) << t.error();
  EXPECT_EQ(t->socket_path(), "/tmp/.s.PGSQL.6432");
  EXPECT_EQ(t->user, "me");
  ours = "/tmp/.s.PGSQL.6432";
  EXPECT_EQ(parse("")->user, "pgbouncer");
}

TEST_F(TargetTest, Environment) {
  environment = {{"PGHOST", "h"}, {"PGPORT", "7"}, {"PGUSER", "u"}, {"PGPASSWORD", "p w"}, {"PGSSLMODE", "require"}};
  auto t = parse("");
  ASSERT_TRUE(t);
  EXPECT_EQ(t->host + std::to_string(t->port) + t->user + t->password, "h7up w");
  EXPECT_EQ(t->tls, Tls::require);
  EXPECT_EQ(parse("user=other")->user, "other");
  environment["PGPORT"] = "x";
  EXPECT_EQ(parse("").error(), "PGPORT: bad port: x");
}

TEST_F(TargetTest, KeywordsAndValues) {
  auto t = parse("host=::1 port=6000 user='a b' password=x dbname=pgbouncer sslmode=verify-full sslrootcert=/ca");
  ASSERT_TRUE(t) << t.error();
  EXPECT_FALSE(t->is_unix());
  EXPECT_EQ(t->host, "::1");
  EXPECT_EQ(t->user, "a b");
  EXPECT_EQ(t->tls, Tls::verify_full);
  EXPECT_EQ(t->root_cert, "/ca");
  EXPECT_TRUE(parse("host=@abstract")->is_unix());
  EXPECT_EQ(parse("dbname=p0").error(), "dbname: the console's name is pgbouncer");
  EXPECT_EQ(parse("hots=x").error(), "unknown keyword: hots");
  EXPECT_EQ(parse("port=0").error(), "bad port: 0");
  EXPECT_EQ(parse("sslmode=on").error(), "bad sslmode: on");
  EXPECT_FALSE(parse("host='x"));
}

TEST_F(TargetTest, Uri) {
  auto t = parse("postgresql://al%20ice:p%40w@[::1]:6000/pgbouncer?sslmode=disable");
  ASSERT_TRUE(t) << t.error();
  EXPECT_EQ(t->host, "::1");
  EXPECT_EQ(t->port, 6000);
  EXPECT_EQ(t->user, "al ice");
  EXPECT_EQ(t->password, "p@w");
  EXPECT_EQ(t->tls, Tls::disable);
  EXPECT_EQ(parse("postgres://example.com")->host, "example.com");
  EXPECT_EQ(parse("postgres://%2Frun%2Fpg:6000")->host, "/run/pg");
  EXPECT_EQ(parse("postgres://[::1]")->host, "::1");
  EXPECT_EQ(parse("postgres://u@:6000")->port, 6000);
  for (const char* bad : {"postgres://a%zz", "postgres://h?x", "postgres://h/p0", "postgres://h:x"})
    EXPECT_FALSE(parse(bad)) << bad;
}

TEST_F(TargetTest, Ini) {
  files = {{"p.ini",
            "[pgbouncer]\nlisten_port = 6000\nunix_socket_dir = /run/p\nadmin_users = root\n"
            "stats_users = eye, other\nauth_file = users\n"},
           {"users", "\"eye\" \"secret\"\n\"root\" \"md5abcdef\"\n"}};
  auto t = parse("p.ini");
  ASSERT_TRUE(t) << t.error();
  EXPECT_EQ(t->socket_path(), "/run/p/.s.PGSQL.6000");
  EXPECT_EQ(t->user, "eye");
  EXPECT_EQ(t->password, "secret");
  ours = "/run/p/.s.PGSQL.6000";
  EXPECT_EQ(parse("p.ini")->user, "pgbouncer");
  environment["PGUSER"] = "root";
  EXPECT_EQ(parse("p.ini")->user, "root");
  EXPECT_TRUE(parse("no.ini").error().starts_with("no.ini is no connection string and no ini that could be read"));
}

TEST_F(TargetTest, IniWithoutAUnixSocket) {
  files = {{"p.ini", "[pgbouncer]\nlisten_addr = *\nunix_socket_dir =\nadmin_users = root\n"}};
  auto t = parse("p.ini");
  ASSERT_TRUE(t) << t.error();
  EXPECT_EQ(t->host, "127.0.0.1");
  EXPECT_EQ(t->user, "root");
}

}  // namespace
}  // namespace pgf::top
