#include "config/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>

namespace pgf::config {
namespace {

Settings defaults() {
  Settings s{};
  set_defaults(s);
  return s;
}
ShownSetting shown(const Settings& s, std::string_view key) {
  for (const auto& row : show(s))
    if (row.key == key) return row;
  ADD_FAILURE() << key;
  return {};
}
std::string refusal(std::string_view key, std::string_view value) {
  Settings s = defaults();
  auto done = set(s, key, value);
  return done ? "" : done.error();
}

TEST(Settings, HasPgBouncersHundredKeysAndOurs) {
  auto keys = setting_keys();
  EXPECT_EQ(std::set<std::string_view>(keys.begin(), keys.end()).size(), keys.size());
  EXPECT_EQ(keys.size(), 100 + own_setting_keys().size());
  EXPECT_THAT(
      own_setting_keys(),
      testing::ElementsAre("workers", "io_engine", "placement", "max_client_prepared_statements",
                           "max_prepared_statement_memory", "watchdog_abort", "watchdog_report", "metrics_listen",
                           "metrics_token", "metrics_max_pools", "web_page", "budget", "fleet_size", "fleet_file",
                           "log_format", "log_slow_wait", "log_slow_login", "log_slow_transaction"));
  EXPECT_FALSE(is_known("service_name"));
  EXPECT_FALSE(is_known("Admin_users"));
  EXPECT_FALSE(is_known(""));
}

TEST(Settings, ShowOrderIsSortedExceptPoolMode) {
  auto keys = setting_keys();
  keys.resize(100);
  auto sorted = keys;
  std::ranges::sort(sorted);
  auto mode = std::ranges::find(sorted, "pool_mode");
  ASSERT_EQ(*(mode - 1), "pool_idle_timeout");
  std::iter_swap(mode - 1, mode);
  EXPECT_EQ(keys, sorted);
  EXPECT_LT(std::ranges::find(keys, "server_tls13_ciphers"), std::ranges::find(keys, "server_tls_ca_file"));
}

TEST(Settings, EveryDefaultRoundTrips) {
  Settings s = defaults();
  for (const auto& row : show(s)) {
    SCOPED_TRACE(row.key);
    if (row.default_null) {
      EXPECT_EQ(row.default_value, "");
      continue;
    }
    EXPECT_FALSE(row.value_null);
    Settings again{};
    ASSERT_TRUE(set(again, row.key, row.default_value));
    EXPECT_EQ(shown(again, row.key).value, row.value);
    // Octal in the file, decimal in SHOW.
    EXPECT_EQ(row.value, row.key == "unix_socket_mode" ? "511" : row.default_value);
  }
}

// Each row must drive its own member: a value set through one key shows up in that key only.
TEST(Settings, EveryRowHasItsOwnMember) {
  auto before = show(defaults());
  for (const auto& row : before) {
    SCOPED_TRACE(row.key);
    Settings s = defaults();
    bool changed = false;
    for (const char* value : {"3", "99", "some_text", "verify-full", "statement", "trust", "epoll", "require", "kernel",
                              "h:1", "fleet", "json"}) {
      if (!set(s, row.key, value) || shown(s, row.key).value == row.value) continue;
      changed = true;
      break;
    }
    EXPECT_TRUE(changed);
    auto after = show(s);
    for (std::size_t i = 0; i < after.size(); ++i) {
      bool same = after[i].value == before[i].value;
      EXPECT_EQ(same, after[i].key != row.key) << after[i].key;
    }
  }
}

TEST(Settings, DefaultsAreTheReferences) {
  const std::map<std::string_view, std::string_view> expected{{"autodb_idle_timeout", "3600"},
                                                              {"auth_type", "md5"},
                                                              {"cancel_wait_timeout", "10"},
                                                              {"client_login_timeout", "60"},
                                                              {"client_tls_sslmode", "disable"},
                                                              {"default_pool_size", "20"},
                                                              {"dns_max_ttl", "15"},
                                                              {"job_name", "pgbouncer"},
                                                              {"listen_backlog", "128"},
                                                              {"listen_port", "6432"},
                                                              {"log_stats", "1"},
                                                              {"max_client_conn", "100"},
                                                              {"max_packet_size", "2147483647"},
                                                              {"max_prepared_statements", "200"},
                                                              {"pkt_buf", "4096"},
                                                              {"pool_mode", "session"},
                                                              {"query_wait_notify", "5"},
                                                              {"query_wait_timeout", "120"},
                                                              {"reserve_pool_timeout", "5"},
                                                              {"scram_iterations", "4096"},
                                                              {"server_check_delay", "30"},
                                                              {"server_check_query", "<empty>"},
                                                              {"server_connect_timeout", "15"},
                                                              {"server_idle_timeout", "600"},
                                                              {"server_lifetime", "3600"},
                                                              {"server_login_retry", "15"},
                                                              {"server_reset_query", "DISCARD ALL"},
                                                              {"server_tls_sslmode", "prefer"},
                                                              {"stats_period", "60"},
                                                              {"suspend_timeout", "10"},
                                                              {"syslog_facility", "daemon"},
                                                              {"tcp_defer_accept", "1"},
                                                              {"tcp_keepalive", "1"},
                                                              {"track_extra_parameters", "IntervalStyle"},
                                                              {"unix_socket_dir", "/tmp"},
                                                              {"unix_socket_mode", "511"},
                                                              {"verbose", "0"},
                                                              {"workers", "auto"},
                                                              {"io_engine", "auto"},
                                                              {"placement", "adaptive"},
                                                              {"budget", "process"}};
  Settings s = defaults();
  for (const auto& [key, value] : expected) EXPECT_EQ(shown(s, key).value, value) << key;
  EXPECT_EQ(s.query_wait_timeout, 120 * kSecond);
  EXPECT_EQ(s.workers, 0);
}

TEST(Settings, NullDefaults) {
  std::set<std::string_view> null;
  for (const auto& row : show(defaults()))
    if (row.default_null) null.insert(row.key);
  EXPECT_EQ(null, (std::set<std::string_view>{"auth_dbname", "auth_file", "auth_ident_file", "auth_ldap_options",
                                              "auth_user", "client_tls13_ciphers", "server_tls13_ciphers", "conffile",
                                              "user", "verbose"}));
  Settings s = defaults();
  EXPECT_TRUE(shown(s, "auth_file").value_null);
  EXPECT_FALSE(shown(s, "verbose").value_null);
  ASSERT_TRUE(set(s, "auth_file", "users.txt"));
  EXPECT_FALSE(shown(s, "auth_file").value_null);
}

TEST(Settings, BootOnlyKeys) {
  std::set<std::string_view> boot;
  for (const auto& row : show(defaults())) {
    if (!row.changeable) boot.insert(row.key);
    EXPECT_EQ(is_live(row.key), row.changeable);
  }
  EXPECT_EQ(boot, (std::set<std::string_view>{"pidfile",
                                              "user",
                                              "job_name",
                                              "listen_addr",
                                              "listen_port",
                                              "listen_backlog",
                                              "unix_socket_dir",
                                              "unix_socket_mode",
                                              "unix_socket_group",
                                              "so_reuseport",
                                              "track_extra_parameters",
                                              "disable_pqexec",
                                              "pkt_buf",
                                              "resolv_conf",
                                              "workers",
                                              "io_engine",
                                              "metrics_listen",
                                              "metrics_token",
                                              "metrics_max_pools",
                                              "web_page",
                                              "budget",
                                              "fleet_file"}));
}

TEST(Settings, PasswordsAreNotShown) {
  Settings s = defaults();
  ASSERT_TRUE(set(s, "metrics_token", "hush"));
  ASSERT_TRUE(set(s, "auth_ldap_options", "ldapserver=h ldapbasedn=b ldapbinddn=a ldapbindpasswd=hush"));
  for (const ShownSetting& shown : show(s)) {
    EXPECT_EQ(shown.value.find("hush"), std::string::npos) << shown.key;
    if (shown.key == "auth_ldap_options") {
      EXPECT_EQ(shown.value, "********");
      EXPECT_FALSE(shown.value_null);
    }
  }
}

TEST(Settings, Ints) {
  Settings s = defaults();
  ASSERT_TRUE(set(s, "default_pool_size", "0x10"));
  EXPECT_EQ(s.default_pool_size, 16);
  ASSERT_TRUE(set(s, "unix_socket_mode", "0700"));
  EXPECT_EQ(shown(s, "unix_socket_mode").value, "448");
  ASSERT_TRUE(set(s, "max_packet_size", "4294967295"));
  ASSERT_TRUE(set(s, "max_db_connections", "-1"));
  ASSERT_TRUE(set(s, "log_stats", "2"));
  EXPECT_EQ(refusal("default_pool_size", "ten"), "expected a whole number");
  EXPECT_EQ(refusal("default_pool_size", ""), "expected a whole number");
  EXPECT_EQ(refusal("default_pool_size", "3000000000"), "number is too large");
  EXPECT_EQ(refusal("default_pool_size", "-1"), "expected 0 or more");
  EXPECT_EQ(refusal("max_packet_size", "-1"), "expected 0 to 4294967295");
  EXPECT_EQ(refusal("listen_port", "65536"), "expected 0 to 65535");
  EXPECT_EQ(refusal("log_stats", "yes"), "expected a whole number");
}

TEST(Settings, Times) {
  Settings s = defaults();
  ASSERT_TRUE(set(s, "query_timeout", "0.25"));
  EXPECT_EQ(s.query_timeout, kSecond / 4);
  EXPECT_EQ(shown(s, "query_timeout").value, "0.25");
  EXPECT_EQ(refusal("query_timeout", "-1"), "expected seconds");
}

TEST(Settings, Enums) {
  Settings s = defaults();
  ASSERT_TRUE(set(s, "pool_mode", "TransACTION"));
  EXPECT_EQ(s.pool_mode, PoolMode::transaction);
  EXPECT_EQ(shown(s, "pool_mode").value, "transaction");
  for (const char* type : {"any", "trust", "plain", "md5", "cert", "hba", "ldap", "pam", "scram-sha-256"}) {
    ASSERT_TRUE(set(s, "auth_type", type)) << type;
    EXPECT_EQ(to_text(s.auth_type), type);
  }
  for (const char* mode : {"disable", "allow", "prefer", "require", "verify-ca", "verify-full"}) {
    ASSERT_TRUE(set(s, "server_tls_sslmode", mode)) << mode;
    EXPECT_EQ(to_text(s.server_tls_sslmode), mode);
  }
  EXPECT_EQ(refusal("pool_mode", "sess"), "expected one of session, transaction, statement");
  EXPECT_EQ(refusal("pool_mode", ""), "expected one of session, transaction, statement");
}

TEST(Settings, Workers) {
  Settings s = defaults();
  ASSERT_TRUE(set(s, "workers", "64"));
  EXPECT_EQ(shown(s, "workers").value, "64");
  ASSERT_TRUE(set(s, "workers", "AUTO"));
  EXPECT_EQ(s.workers, 0);
  EXPECT_EQ(refusal("workers", "0"), "expected auto or 1 to 64");
  EXPECT_EQ(refusal("workers", "65"), "expected auto or 1 to 64");
  EXPECT_EQ(refusal("workers", "-1"), "expected auto or 1 to 64");
  EXPECT_EQ(refusal("workers", "many"), "expected auto or 1 to 64");
}

TEST(Settings, RefusedValueChangesNothing) {
  Settings s = defaults();
  EXPECT_FALSE(set(s, "listen_port", "x"));
  EXPECT_FALSE(set(s, "pool_mode", "x"));
  EXPECT_FALSE(set(s, "query_timeout", "x"));
  EXPECT_FALSE(set(s, "auth_dbname", "pgbouncer"));
  EXPECT_EQ(s.listen_port, 6432);
  EXPECT_EQ(s.pool_mode, PoolMode::session);
  EXPECT_EQ(s.auth_dbname, "");
  EXPECT_EQ(refusal("nonsense", "1"), "unknown parameter");
}

TEST(Settings, Effect) {
  EXPECT_TRUE(has_effect("pool_mode"));
  EXPECT_FALSE(has_effect("nonsense"));
  EXPECT_FALSE(has_effect("pkt_buf"));
}

TEST(Settings, NearestKey) {
  EXPECT_EQ(nearest_setting("max_clients_conn"), "max_client_conn");
  EXPECT_EQ(nearest_setting("poolmode"), "pool_mode");
  EXPECT_EQ(nearest_setting("completely_different"), "");
}

TEST(Settings, ResetSparesNullDefaults) {
  Settings s = defaults();
  ASSERT_TRUE(set(s, "auth_file", "u.txt"));
  ASSERT_TRUE(set(s, "verbose", "2"));
  ASSERT_TRUE(set(s, "pool_mode", "statement"));
  reset_non_null(s);
  EXPECT_EQ(s.auth_file, "u.txt");
  EXPECT_EQ(s.verbose, 2);
  EXPECT_EQ(s.pool_mode, PoolMode::session);
}

// PGF_UPDATE_DOCS=1 build/release/config_test writes it anew.
TEST(Settings, DocumentationIsTheTable) {
  const std::string path = PGF_ROOT "/docs/settings.md";
  std::ifstream file(path);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  std::size_t table = text.find("| Key |");
  ASSERT_NE(table, std::string::npos) << path;
  if (std::getenv("PGF_UPDATE_DOCS")) {
    std::ofstream(path) << text.substr(0, table) << settings_markdown();
    return;
  }
  EXPECT_EQ(text.substr(table), settings_markdown()) << "PGF_UPDATE_DOCS=1 config_test writes it anew";
}

TEST(Settings, MarkdownHasALinePerKey) {
  std::string text = settings_markdown();
  EXPECT_EQ(static_cast<std::size_t>(std::ranges::count(text, '\n')), setting_keys().size() + 2);
  EXPECT_THAT(text, testing::HasSubstr("| pool_mode | session, transaction, statement | `session` | yes | "));
  EXPECT_THAT(text, testing::HasSubstr("| workers | auto, 1 to 64 | `auto` | no | "));
  EXPECT_THAT(text, testing::HasSubstr("| auth_file | text | unset | yes | "));
}

}  // namespace
}  // namespace pgf::config
