#include "config/entries.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pgf::config {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Database db(std::string_view text) {
  auto parsed = parse_database("d", text);
  EXPECT_TRUE(parsed) << text << ": " << (parsed ? "" : parsed.error());
  return parsed ? *parsed : Database{};
}
std::string db_error(std::string_view text, std::string_view name = "d") {
  auto parsed = parse_database(name, text);
  return parsed ? "accepted" : parsed.error();
}
std::string user_error(std::string_view text, std::string_view name = "u") {
  auto parsed = parse_user(name, text);
  return parsed ? "accepted" : parsed.error();
}
std::string peer_error(std::string_view id, std::string_view text) {
  auto parsed = parse_peer(id, text);
  return parsed ? "accepted" : parsed.error();
}

TEST(Database, Empty) {
  Database d = db("");
  EXPECT_EQ(d.name, "d");
  EXPECT_EQ(d.dbname, "");
  EXPECT_TRUE(d.hosts.empty());
  EXPECT_THAT(d.ports, ElementsAre(5432));
  EXPECT_EQ(d.load_balance_hosts, LoadBalance::round_robin);
  EXPECT_FALSE(d.user || d.password || d.pool_size || d.pool_mode || d.query_wait_timeout || d.connect_timeout);
}

TEST(Database, ProtocolVersion) {
  EXPECT_EQ(db("").protocol_minor, 0);
  EXPECT_EQ(db("max_protocol_version=3.0").protocol_minor, 0);
  EXPECT_EQ(db("max_protocol_version=3.2").protocol_minor, 2);
  EXPECT_EQ(db("max_protocol_version=latest").protocol_minor, 2);
}

TEST(Database, EveryKey) {
  Database d = db(
      "dbname=real host=h port=1 user=u password=p auth_user=au auth_query='SELECT ''x''' auth_dbname=ad pool_size=3 "
      "min_pool_size=2 reserve_pool_size=1 pool_mode=Statement max_db_connections=4 max_db_client_connections=5 "
      "server_lifetime=6 query_wait_timeout=7 connect_timeout=1.5 load_balance_hosts=least-conn connect_query='a b' "
      "client_encoding=UTF8 datestyle=ISO timezone=UTC application_name=app");
  EXPECT_EQ(d.dbname, "real");
  EXPECT_THAT(d.hosts, ElementsAre("h"));
  EXPECT_THAT(d.ports, ElementsAre(1));
  EXPECT_EQ(d.user, "u");
  EXPECT_EQ(d.password, "p");
  EXPECT_EQ(d.auth_user, "au");
  EXPECT_EQ(d.auth_query, "SELECT 'x'");
  EXPECT_EQ(d.auth_dbname, "ad");
  EXPECT_EQ(d.pool_size, 3);
  EXPECT_EQ(d.min_pool_size, 2);
  EXPECT_EQ(d.reserve_pool_size, 1);
  EXPECT_EQ(d.pool_mode, PoolMode::statement);
  EXPECT_EQ(d.max_db_connections, 4);
  EXPECT_EQ(d.max_db_client_connections, 5);
  EXPECT_EQ(d.server_lifetime, 6 * kSecond);
  EXPECT_EQ(d.query_wait_timeout, 7 * kSecond);
  EXPECT_EQ(d.connect_timeout, kSecond * 3 / 2);
  EXPECT_EQ(d.load_balance_hosts, LoadBalance::least_conn);
  EXPECT_EQ(d.connect_query, "a b");
  EXPECT_EQ(d.client_encoding + d.datestyle + d.timezone + d.application_name, "UTF8ISOUTCapp");
  EXPECT_EQ(db("reserve_pool=9").reserve_pool_size, 9);
}

TEST(Database, WhatMeansUseTheGlobal) {
  Database d =
      db("pool_size=0 max_db_connections=0 max_db_client_connections=-1 server_lifetime=0 query_wait_timeout=0");
  EXPECT_EQ(d.pool_size, 0);  // unlimited
  EXPECT_FALSE(d.max_db_connections || d.max_db_client_connections || d.server_lifetime);
  EXPECT_EQ(d.query_wait_timeout, 0);  // off
  d = db("pool_size=-1 min_pool_size=-1 query_wait_timeout=-1 connect_timeout=0");
  EXPECT_FALSE(d.pool_size || d.min_pool_size || d.query_wait_timeout || d.connect_timeout);
}

TEST(Database, NumbersAreAtoiAndLastWins) {
  EXPECT_EQ(db("pool_size=7x").pool_size, 7);
  EXPECT_EQ(db("pool_size=x").pool_size, 0);
  EXPECT_EQ(db("pool_size=1 pool_size=2").pool_size, 2);
  EXPECT_THAT(db("port=5433abc").ports, ElementsAre(5433));
}

TEST(Database, HostsAndPorts) {
  Database d = db("host=a,b,c port=1,2,3");
  EXPECT_EQ(d.host, "a,b,c");
  EXPECT_THAT(d.hosts, ElementsAre("a", "b", "c"));
  EXPECT_THAT(d.ports, ElementsAre(1, 2, 3));
  EXPECT_THAT(db("host=a,b port=7").ports, ElementsAre(7));
  EXPECT_THAT(db("port=1,2 host=a,b").ports, ElementsAre(1, 2));
  EXPECT_THAT(db("host='a, b'").hosts, ElementsAre("a", "b"));
  EXPECT_THAT(db("host=/run/pg").hosts, ElementsAre("/run/pg"));
  EXPECT_THAT(db("host=::1").hosts, ElementsAre("::1"));
  EXPECT_EQ(db_error("host=a,b port=1,2,3"), "database \"d\" has 3 ports for 2 hosts");
  EXPECT_EQ(db_error("port=1,2"), "database \"d\" has 2 ports for 1 host");
  EXPECT_EQ(db_error("host=a,,b"), "empty name in host list: a,,b");
}

TEST(Database, Ports) {
  for (const char* port : {"0", "x", "-1", "65536"})
    EXPECT_EQ(db_error(std::string("port=") + port), std::string("invalid port: ") + port);
  EXPECT_EQ(db_error("host=a,b port=1,"), "invalid port: ");
}

TEST(Database, Refusals) {
  EXPECT_EQ(db_error("host"), "syntax error in connection string");
  EXPECT_EQ(db_error("", "pgbouncer"), "database name \"pgbouncer\" is reserved");
  EXPECT_EQ(db_error("pool_mode=x"), "invalid pool mode: x");
  EXPECT_EQ(db_error("load_balance_hosts=x"), "invalid load_balance_hosts: x");
  EXPECT_EQ(db_error("target_session_attrs=master"), "invalid target_session_attrs: master");
  for (std::string version : {"3", "3.1", "3.3", "2.0", "3.2 "})
    EXPECT_EQ(db_error("max_protocol_version='" + version + "'"), "invalid max_protocol_version: " + version);
  EXPECT_EQ(db_error("connect_timeout=x"), "invalid connect_timeout: x");
  EXPECT_EQ(db_error("sslnegotiation=tls"), "invalid sslnegotiation: tls");
  EXPECT_EQ(db_error("sslmode=require"), "unrecognized connection parameter: sslmode");
  EXPECT_EQ(db_error("hots=a"), "unrecognized connection parameter: hots, did you mean \"host\"?");
}

TEST(Database, LoadBalance) {
  EXPECT_EQ(db("load_balance_hosts=disable").load_balance_hosts, LoadBalance::disable);
  EXPECT_EQ(db("load_balance_hosts=round-robin").load_balance_hosts, LoadBalance::round_robin);
  EXPECT_EQ(db("load_balance_hosts=random").load_balance_hosts, LoadBalance::random);
  EXPECT_EQ(to_text(db("load_balance_hosts=least-conn").load_balance_hosts), "least-conn");
}

TEST(Database, TargetSessionAttrs) {
  EXPECT_EQ(db("").target_session_attrs, TargetSession::any);
  EXPECT_EQ(db("target_session_attrs=read-write").target_session_attrs, TargetSession::read_write);
  EXPECT_EQ(db("target_session_attrs=prefer-standby").target_session_attrs, TargetSession::prefer_standby);
}

TEST(Database, SslNegotiation) {
  EXPECT_EQ(db("").sslnegotiation, SslNegotiation::postgres);
  EXPECT_EQ(db("sslnegotiation=postgres").sslnegotiation, SslNegotiation::postgres);
  EXPECT_EQ(db("sslnegotiation=direct").sslnegotiation, SslNegotiation::direct);
}

TEST(Database, RequireAuth) {
  EXPECT_TRUE(db("").require_auth.allows(auth::AskedFor::password));
  EXPECT_FALSE(db("require_auth=scram-sha-256").require_auth.allows(auth::AskedFor::password));
  EXPECT_THAT(db_error("require_auth=scram"), HasSubstr("invalid require_auth: scram"));
}

TEST(Database, LengthLimits) {
  EXPECT_EQ(db_error("", std::string(63, 'd')), "accepted");
  EXPECT_THAT(db_error("", std::string(64, 'd')), HasSubstr("database name is too long"));
  EXPECT_EQ(db_error("dbname=" + std::string(63, 'd')), "accepted");
  EXPECT_THAT(db_error("dbname=" + std::string(64, 'd')), HasSubstr("dbname is too long"));
  EXPECT_EQ(db_error("user=" + std::string(127, 'u')), "accepted");
  EXPECT_THAT(db_error("user=" + std::string(128, 'u')), HasSubstr("user name is too long"));
  EXPECT_EQ(db_error("password=" + std::string(65530, 'p')), "accepted");
  EXPECT_EQ(db_error("password=" + std::string(65531, 'p')), "password is too long");
}

TEST(User, EveryKey) {
  auto u = parse_user("u",
                      "pool_size=1 reserve_pool_size=2 pool_mode=transaction max_user_connections=3 "
                      "max_user_client_connections=4 query_timeout=5 idle_transaction_timeout=6 transaction_timeout=7 "
                      "client_idle_timeout=8 query_wait_timeout=0");
  ASSERT_TRUE(u) << u.error();
  EXPECT_EQ(u->name, "u");
  EXPECT_EQ(u->pool_size, 1);
  EXPECT_EQ(u->reserve_pool_size, 2);
  EXPECT_EQ(u->pool_mode, PoolMode::transaction);
  EXPECT_EQ(u->max_user_connections, 3);
  EXPECT_EQ(u->max_user_client_connections, 4);
  EXPECT_EQ(u->query_timeout, 5 * kSecond);
  EXPECT_EQ(u->idle_transaction_timeout, 6 * kSecond);
  EXPECT_EQ(u->transaction_timeout, 7 * kSecond);
  EXPECT_EQ(u->client_idle_timeout, 8 * kSecond);
  EXPECT_EQ(u->query_wait_timeout, 0);
}

TEST(User, OnlyPositiveOverrides) {
  auto u =
      parse_user("u", "max_user_connections=0 max_user_client_connections=-1 query_timeout=0 client_idle_timeout=-5");
  ASSERT_TRUE(u);
  EXPECT_FALSE(u->max_user_connections || u->max_user_client_connections || u->query_timeout || u->client_idle_timeout);
}

TEST(User, Refusals) {
  EXPECT_EQ(user_error(""), "accepted");
  EXPECT_EQ(user_error("pool_mod=session"), "unrecognized connection parameter: pool_mod, did you mean \"pool_mode\"?");
  EXPECT_EQ(user_error("pool_mode=x"), "invalid pool mode: x");
  EXPECT_EQ(user_error("", std::string(127, 'u')), "accepted");
  EXPECT_THAT(user_error("", std::string(128, 'u')), HasSubstr("user name is too long"));
}

TEST(Peer, Keys) {
  auto p = parse_peer("7", "host=/sock port=6433 pool_size=5");
  ASSERT_TRUE(p);
  EXPECT_EQ(p->id, 7);
  EXPECT_EQ(p->host, "/sock");
  EXPECT_EQ(p->port, 6433);
  EXPECT_EQ(p->pool_size, 5);
  auto q = parse_peer("65535", "host=a");
  ASSERT_TRUE(q);
  EXPECT_EQ(q->port, 6432);
  EXPECT_FALSE(q->pool_size);
  auto everyone = parse_peer("*", "host=pods.svc");
  ASSERT_TRUE(everyone);
  EXPECT_EQ(everyone->id, 0);
}

TEST(Peer, Refusals) {
  for (const char* id : {"0", "x", "65536", "**", "-1", "1x", ""})
    EXPECT_EQ(peer_error(id, "host=a"), std::string("invalid peer id: ") + id);
  EXPECT_EQ(peer_error("1", "port=5"), "peer 1 has no host");
  EXPECT_EQ(peer_error("1", "host=a port=0"), "invalid port: 0");
  EXPECT_EQ(peer_error("1", "host=a user=b"), "unrecognized connection parameter: user");
}

}  // namespace
}  // namespace pgf::config
