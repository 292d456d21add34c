#include "config/config.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/entries.h"
#include "config/test_files.h"

namespace pgf::config {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::shared_ptr<const Config> config_of(const std::string& ini) {
  LoadResult r = load_text(ini);
  EXPECT_THAT(r.errors, IsEmpty());
  return r.config ? r.config : std::make_shared<Config>();
}
Database db(std::string_view text) { return parse_database("d", text).value_or(Database{}); }

TEST(Lists, Split) {
  EXPECT_THAT(split_list("a, b c\t,,d\n"), ElementsAre("a", "b", "c", "d"));
  EXPECT_THAT(split_list(" ,"), IsEmpty());
  EXPECT_THAT(split_list(""), IsEmpty());
}

TEST(Lists, MembershipIsWholeToken) {
  EXPECT_TRUE(in_list("postgres, admin", "admin"));
  EXPECT_FALSE(in_list("postgres, admin", "adm"));
  EXPECT_FALSE(in_list("postgres, admin", "gres, adm"));
  EXPECT_FALSE(in_list("postgres, admin", "postgres, admin"));
  EXPECT_FALSE(in_list("postgres,,admin", ""));
  EXPECT_FALSE(in_list("", ""));
  EXPECT_FALSE(in_list("admin", "Admin"));
}

TEST(Resolve, Globals) {
  auto c = config_of("[pgbouncer]\npool_mode=transaction\nmax_db_connections=-1\nserver_connect_timeout=1.5\n");
  PoolPolicy p = resolve(*c, db(""), "u");
  EXPECT_EQ(p.pool_mode, PoolMode::transaction);
  EXPECT_EQ(p.pool_size, 20);
  EXPECT_EQ(p.max_db_connections, 0);
  EXPECT_EQ(p.connect_timeout, kSecond * 3 / 2);
  EXPECT_EQ(p.server_lifetime, 3600 * kSecond);
}

TEST(Resolve, UserBeatsDatabaseBeatsGlobal) {
  auto c = config_of(
      "[pgbouncer]\nmax_user_connections=50\nquery_timeout=9\n[users]\nu = pool_mode=statement pool_size=2 "
      "reserve_pool_size=3 max_user_connections=4 query_timeout=5 idle_transaction_timeout=6 transaction_timeout=7\n");
  Database d =
      db("pool_mode=transaction pool_size=8 reserve_pool_size=9 max_db_connections=10 server_lifetime=11 "
         "connect_timeout=12");
  PoolPolicy other = resolve(*c, d, "other");
  EXPECT_EQ(other.pool_mode, PoolMode::transaction);
  EXPECT_EQ(other.pool_size, 8);
  EXPECT_EQ(other.reserve_pool_size, 9);
  EXPECT_EQ(other.max_db_connections, 10);
  EXPECT_EQ(other.max_user_connections, 50);
  EXPECT_EQ(other.server_lifetime, 11 * kSecond);
  EXPECT_EQ(other.connect_timeout, 12 * kSecond);
  EXPECT_EQ(other.query_timeout, 9 * kSecond);
  PoolPolicy u = resolve(*c, d, "u");
  EXPECT_EQ(u.pool_mode, PoolMode::statement);
  EXPECT_EQ(u.pool_size, 2);
  EXPECT_EQ(u.reserve_pool_size, 3);
  EXPECT_EQ(u.max_user_connections, 4);
  EXPECT_EQ(u.query_timeout, 5 * kSecond);
  EXPECT_EQ(u.idle_transaction_timeout, 6 * kSecond);
  EXPECT_EQ(u.transaction_timeout, 7 * kSecond);
}

TEST(Resolve, MinimumIsCappedByThePoolSize) {
  auto c = config_of("[pgbouncer]\nmin_pool_size=30\n");
  EXPECT_EQ(resolve(*c, db(""), "u").min_pool_size, 20);
  EXPECT_EQ(resolve(*c, db("min_pool_size=5"), "u").min_pool_size, 5);
  EXPECT_EQ(resolve(*c, db("pool_size=0"), "u").min_pool_size, 30);
}

TEST(Resolve, Client) {
  auto c = config_of(
      "[pgbouncer]\nquery_wait_timeout=9\nmax_user_client_connections=8\n[users]\nu = query_wait_timeout=0 "
      "client_idle_timeout=3 max_user_client_connections=2\n");
  ClientPolicy other = resolve_client(*c, db("query_wait_timeout=4 max_db_client_connections=7"), "other");
  EXPECT_EQ(other.query_wait_timeout, 4 * kSecond);
  EXPECT_EQ(other.client_idle_timeout, 0);
  EXPECT_EQ(other.max_db_client_connections, 7);
  EXPECT_EQ(other.max_user_client_connections, 8);
  ClientPolicy u = resolve_client(*c, db("query_wait_timeout=4"), "u");
  EXPECT_EQ(u.query_wait_timeout, 0);
  EXPECT_EQ(u.client_idle_timeout, 3 * kSecond);
  EXPECT_EQ(u.max_user_client_connections, 2);
}

TEST(FindDatabase, NamedThenTemplate) {
  auto c = config_of("[pgbouncer]\n[databases]\na = host=x\nb = dbname=real\n* = host=y\n");
  EXPECT_EQ(find_database(*c, "a")->dbname, "a");
  EXPECT_FALSE(find_database(*c, "a")->is_auto);
  EXPECT_EQ(find_database(*c, "b")->dbname, "real");
  auto made = find_database(*c, "new");
  ASSERT_TRUE(made);
  EXPECT_EQ(made->name, "new");
  EXPECT_EQ(made->dbname, "new");
  EXPECT_EQ(made->host, "y");
  EXPECT_TRUE(made->is_auto);
  EXPECT_FALSE(find_database(*c, "pgbouncer"));
  EXPECT_FALSE(find_database(*c, ""));
  EXPECT_FALSE(find_database(*c, std::string(64, 'x')));
}

TEST(FindDatabase, TemplateWithFixedDbname) {
  auto c = config_of("[pgbouncer]\n[databases]\n* = dbname=one\n");
  EXPECT_EQ(find_database(*c, "new")->dbname, "one");
  EXPECT_FALSE(find_database(*config_of("[pgbouncer]\n"), "new"));
}

TEST(NeedsNewServers, OnlyForWhatAServerConnectionDependsOn) {
  for (const char* change :
       {"dbname=x", "host=x", "port=1", "user=x", "connect_query=x", "auth_dbname=x", "auth_query=x",
        "load_balance_hosts=disable", "sslnegotiation=direct", "target_session_attrs=standby", "host=a,b"})
    EXPECT_TRUE(needs_new_servers(db(""), db(change))) << change;
  EXPECT_TRUE(needs_new_servers(db("user=x"), db("")));
  for (const char* change :
       {"password=x", "pool_size=1", "min_pool_size=1", "reserve_pool=1", "pool_mode=statement", "max_db_connections=1",
        "server_lifetime=1", "query_wait_timeout=1", "connect_timeout=1", "client_encoding=x", "datestyle=x",
        "timezone=x", "application_name=x", "auth_user=x", "dbname=d"})
    EXPECT_FALSE(needs_new_servers(db(""), db(change))) << change;
  // A list that gains, loses or moves some: those that stay keep their servers.
  EXPECT_FALSE(needs_new_servers(db("host=a,b"), db("host=c,b,a port=1,2,3")));
  EXPECT_TRUE(needs_new_servers(db("host=a,b"), db("host=a")));
}

TEST(Resolve, ServerConnectTimeoutIsTheCap) {
  for (auto [own, global, expected] : {std::tuple{20, 15, 15}, {5, 15, 5}, {5, 0, 5}, {0, 7, 7}}) {
    auto c = config_of(
        fmt::format("[pgbouncer]\nserver_connect_timeout={}\n[databases]\nd=connect_timeout={}\n", global, own));
    EXPECT_EQ(resolve(*c, c->databases.at("d"), "u").connect_timeout, expected * kSecond) << own << ' ' << global;
  }
}

TEST(Reload, KeepsBootOnlyAndUnsetNullDefaults) {
  auto running = config_of("[pgbouncer]\nlisten_port=1\nauth_user=au\nuser=joe\nverbose=2\npool_mode=statement\n");
  Config next = *config_of("[pgbouncer]\nlisten_port=2\nuser=other\n");
  keep_on_reload(next, *running);
  EXPECT_EQ(next.settings.listen_port, 1);
  EXPECT_EQ(next.settings.user, "joe");
  EXPECT_EQ(next.settings.auth_user, "au");
  EXPECT_EQ(next.settings.verbose, 2);
  EXPECT_EQ(next.settings.pool_mode, PoolMode::session);
  next = *config_of("[pgbouncer]\nauth_user =\nverbose=0\n");
  keep_on_reload(next, *running);
  EXPECT_EQ(next.settings.auth_user, "");
  EXPECT_EQ(next.settings.verbose, 0);
}

}  // namespace
}  // namespace pgf::config
