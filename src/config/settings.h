#pragma once
// THE settings table (`[pgbouncer]`): a member here and its row in settings.cc; nothing else knows the list of keys.
#include <cstdint>
#include <expected>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/time.h"

namespace pgf::config {

enum class PoolMode { session, transaction, statement };
enum class AuthType { any, trust, plain, md5, cert, hba, ldap, pam, scram_sha_256, peer };
enum class SslMode { disable, allow, prefer, require, verify_ca, verify_full };
enum class SslNegotiation { postgres, direct };
enum class LoadBalance { disable, round_robin, random, least_conn };
enum class TargetSession { any, read_write, read_only, primary, standby, prefer_standby };
enum class IoEngine { auto_, io_uring, epoll };
enum class Placement { adaptive, spread, kernel, shuffle };
enum class Budget { process, fleet };
enum class LogFormat { pgbouncer, json };

// Member name = key name. Durations are Usec whatever the unit in the file; int64 for int and uint; bool for 0/1 flags
// is not used: PgBouncer's flags are ints and show as such. A NULL default of PgBouncer is std::nullopt-like: the
// row's default is nullptr and the member an empty string.
struct Settings {
  // process, logging, files
  std::string logfile, pidfile, user, job_name, conffile, syslog_ident, syslog_facility;
  std::int64_t syslog, verbose, log_connections, log_disconnections, log_pooler_errors, log_stats, stats_period;
  // listening
  std::string listen_addr, unix_socket_dir, unix_socket_group;
  std::int64_t listen_port, listen_backlog, unix_socket_mode, so_reuseport, peer_id;
  // pooling and limits
  PoolMode pool_mode;
  std::int64_t max_client_conn, default_pool_size, min_pool_size, reserve_pool_size, max_db_connections,
      max_db_client_connections, max_user_connections, max_user_client_connections, server_round_robin;
  Usec reserve_pool_timeout, autodb_idle_timeout, pool_idle_timeout;
  // protocol
  std::string track_extra_parameters, ignore_startup_parameters, login_notify_message;
  std::int64_t disable_pqexec, application_name_add_host, max_prepared_statements, max_client_prepared_statements,
      max_prepared_statement_memory, max_packet_size, pkt_buf, sbuf_loopcnt, query_wait_notify /* whole seconds */;
  // server checks and timeouts
  std::string server_reset_query, server_check_query;
  std::int64_t server_reset_query_always, server_fast_close;
  Usec server_check_delay, server_lifetime, server_idle_timeout, server_connect_timeout, server_login_retry,
      client_login_timeout, client_idle_timeout, query_timeout, query_wait_timeout, cancel_wait_timeout,
      idle_transaction_timeout, transaction_timeout, suspend_timeout, watchdog_report, watchdog_abort;
  // DNS
  Usec dns_max_ttl, dns_nxdomain_ttl, dns_zone_check_period;
  std::string resolv_conf;
  // TCP
  std::int64_t tcp_defer_accept, tcp_keepalive, tcp_keepcnt, tcp_keepidle, tcp_keepintvl, tcp_socket_buffer,
      tcp_user_timeout;
  // authentication and console
  AuthType auth_type;
  std::string auth_file, auth_hba_file, auth_ident_file, auth_user, auth_query, auth_dbname, auth_ldap_options,
      admin_users, stats_users;
  std::int64_t scram_iterations;
  // TLS
  SslMode client_tls_sslmode, server_tls_sslmode;
  std::string client_tls_key_file, client_tls_cert_file, client_tls_ca_file, client_tls_protocols, client_tls_ciphers,
      client_tls13_ciphers, client_tls_dheparams, client_tls_ecdhcurve, server_tls_key_file, server_tls_cert_file,
      server_tls_ca_file, server_tls_protocols, server_tls_ciphers, server_tls13_ciphers;
  // pgflotilla's own
  std::int64_t workers;  // 0 = auto: the cores that affinity and the cgroup quota allow
  IoEngine io_engine;
  Placement placement;
  std::string metrics_listen, metrics_token;
  std::int64_t metrics_max_pools, web_page;
  Budget budget;
  std::int64_t fleet_size;
  std::string fleet_file;
  LogFormat log_format;
  Usec log_slow_wait, log_slow_login, log_slow_transaction;
};

// Everything below is driven by the rows of settings.cc.

// Sets one key from text, as the ini and the console's SET do. Error = the reason in words, without file and line.
// Keys that are not live are set as well: the caller decides by is_live().
std::expected<void, std::string> set(Settings& settings, std::string_view key, std::string_view value);
bool is_known(std::string_view key);
bool is_live(std::string_view key);     // may RELOAD and SET change it?
bool has_effect(std::string_view key);  // false: accepted, but nothing is done with it yet
bool has_null_default(std::string_view key);
void set_defaults(Settings& settings);
// What a `[pgbouncer]` header does: keys whose default is NULL keep their value.
void reset_non_null(Settings& settings);
// Makes `next` what RELOAD may switch to: boot-only keys keep the running value.
void keep_boot_only(Settings& next, const Settings& running);
// Copies one key; unknown keys are ignored.
void copy_key(Settings& to, const Settings& from, std::string_view key);
// All keys, in the order of SHOW CONFIG.
std::vector<std::string_view> setting_keys();
std::vector<std::string_view> own_setting_keys();  // those that PgBouncer does not know
// The known key that a misspelt one was probably meant to be; empty when none is near.
std::string_view nearest_setting(std::string_view key);

// What SHOW CONFIG prints, in PgBouncer's order (our own keys after them).
struct ShownSetting {
  std::string_view key;
  std::string value, default_value;
  bool value_null, default_null, changeable;
};
std::vector<ShownSetting> show(const Settings& settings);
// The table of docs/settings.md.
std::string settings_markdown();

std::string_view to_text(PoolMode mode);
std::string_view to_text(AuthType type);
std::string_view to_text(SslMode mode);
std::string_view to_text(LoadBalance policy);
std::string_view to_text(IoEngine engine);
std::string_view to_text(Placement placement);
std::string_view to_text(Budget budget);

}  // namespace pgf::config
