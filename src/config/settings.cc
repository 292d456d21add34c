#include "config/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <type_traits>
#include <variant>

#include "config/keyword.h"
#include "config/limits.h"
#include "config/nearest.h"
#include "config/value.h"

namespace pgf::config {
namespace {

struct Range {
  std::int64_t min, max;
};
constexpr std::int64_t kMax32 = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMin32 = std::numeric_limits<std::int32_t>::min();
constexpr Range kAny{kMin32, kMax32};  // also where PgBouncer takes a negative number as "no limit"
constexpr Range kCount{0, kMax32};     // what a size or number of things may be
constexpr Range kPositive{1, kMax32};
constexpr Range kUnsigned{0, 0xffffffff};
constexpr Range k16Bits{0, 65535};

// The kinds of member. Usec and int64 are one C++ type, so the pointer alone does not tell.
struct Int {
  std::int64_t Settings::*member;
  Range range;
};
struct Flag {  // an int that means yes when not 0, shown as it was written
  std::int64_t Settings::*member;
};
struct AutoInt {  // 0 is written and shown as "auto"
  std::int64_t Settings::*member;
  Range range;
};
struct Time {
  Usec Settings::*member;
};
struct Text {
  std::string Settings::*member;
};
struct Listen {  // ADDRESS:PORT, or empty
  std::string Settings::*member;
};
struct Secret {  // text that SHOW CONFIG does not tell
  std::string Settings::*member;
};
template <class E>
struct Enum {
  E Settings::*member;
};
using Field = std::variant<Int, Flag, AutoInt, Time, Text, Listen, Secret, Enum<PoolMode>, Enum<AuthType>,
                           Enum<SslMode>, Enum<IoEngine>, Enum<Placement>, Enum<Budget>, Enum<LogFormat>>;

enum class Apply { live, boot };  // boot: RELOAD and SET accept a new value and ignore it
enum class Effect { yes, none };  // none: accepted, but this version does nothing with it yet

struct Row {
  std::string_view key;
  Field field;
  const char* default_text;  // nullptr = NULL
  Apply apply;
  Effect effect;
  std::string_view help;
};

constexpr const char* kAuthQuery =
    "SELECT rolname, CASE WHEN rolvaliduntil < now() THEN NULL ELSE rolpassword END FROM pg_authid WHERE rolname=$1 "
    "AND rolcanlogin";

using S = Settings;
using enum Apply;
using enum Effect;

constexpr std::string_view kFirstOwn = "workers";

// Rows in the order of SHOW CONFIG: PgBouncer's 100 keys sorted (but pool_mode before pool_idle_timeout), then ours.
constexpr Row kRows[] = {
    {"admin_users", Text{&S::admin_users}, "", live, yes, "users with full console access"},
    {"application_name_add_host", Flag{&S::application_name_add_host}, "0", live, yes,
     "append the client's address to application_name at login"},
    {"auth_dbname", Text{&S::auth_dbname}, nullptr, live, yes, "entry of [databases] in which auth_query runs"},
    {"auth_file", Text{&S::auth_file}, nullptr, live, yes, "file of user names and passwords"},
    {"auth_hba_file", Text{&S::auth_hba_file}, "", live, yes, "access rules, used with auth_type=hba"},
    {"auth_ident_file", Text{&S::auth_ident_file}, nullptr, live, yes, "user name maps, used with auth_type=hba"},
    {"auth_ldap_options", Secret{&S::auth_ldap_options}, nullptr, live, yes,
     "LDAP server and search, used with auth_type=ldap"},
    {"auth_query", Text{&S::auth_query}, kAuthQuery, live, yes, "query that fetches a user's password from a server"},
    {"auth_type", Enum<AuthType>{&S::auth_type}, "md5", live, yes, "how clients prove who they are"},
    {"auth_user", Text{&S::auth_user}, nullptr, live, yes, "user that runs auth_query"},
    {"autodb_idle_timeout", Time{&S::autodb_idle_timeout}, "3600", live, yes,
     "forget an unused automatic database after this long; 0 = never"},
    {"cancel_wait_timeout", Time{&S::cancel_wait_timeout}, "10", live, yes,
     "how long a cancel request may wait for a connection; 0 = forever"},
    {"client_idle_timeout", Time{&S::client_idle_timeout}, "0", live, yes,
     "close clients that are idle for this long; 0 = off"},
    {"client_login_timeout", Time{&S::client_login_timeout}, "60", live, yes, "longest time a login may take; 0 = off"},
    {"client_tls13_ciphers", Text{&S::client_tls13_ciphers}, nullptr, live, yes, "TLS 1.3 cipher suites for clients"},
    {"client_tls_ca_file", Text{&S::client_tls_ca_file}, "", live, yes, "CA that signs client certificates"},
    {"client_tls_cert_file", Text{&S::client_tls_cert_file}, "", live, yes, "certificate shown to clients"},
    {"client_tls_ciphers", Text{&S::client_tls_ciphers}, "default", live, yes, "ciphers for clients up to TLS 1.2"},
    {"client_tls_dheparams", Text{&S::client_tls_dheparams}, "auto", live, yes, "DHE key exchange with clients"},
    {"client_tls_ecdhcurve", Text{&S::client_tls_ecdhcurve}, "auto", live, yes,
     "curve of the ECDH key exchange with clients"},
    {"client_tls_key_file", Text{&S::client_tls_key_file}, "", live, yes, "private key of client_tls_cert_file"},
    {"client_tls_protocols", Text{&S::client_tls_protocols}, "secure", live, yes, "TLS versions offered to clients"},
    {"client_tls_sslmode", Enum<SslMode>{&S::client_tls_sslmode}, "disable", live, yes, "TLS towards clients"},
    {"conffile", Text{&S::conffile}, nullptr, live, yes, "file that the next RELOAD reads"},
    {"default_pool_size", Int{&S::default_pool_size, kCount}, "20", live, yes,
     "server connections per database and user; 0 = no limit"},
    {"disable_pqexec", Flag{&S::disable_pqexec}, "0", boot, yes, "refuse the simple query protocol"},
    {"dns_max_ttl", Time{&S::dns_max_ttl}, "15", live, yes, "how long a host's addresses are remembered"},
    {"dns_nxdomain_ttl", Time{&S::dns_nxdomain_ttl}, "15", live, yes, "how long a failed look-up is remembered"},
    {"dns_zone_check_period", Time{&S::dns_zone_check_period}, "0", live, yes,
     "how often to ask for a zone's serial number; 0 = never"},
    {"idle_transaction_timeout", Time{&S::idle_transaction_timeout}, "0", live, yes,
     "close clients idle inside a transaction for this long; 0 = off"},
    {"ignore_startup_parameters", Text{&S::ignore_startup_parameters}, "", live, yes,
     "startup parameters to accept and drop"},
    {"job_name", Text{&S::job_name}, "pgbouncer", boot, yes, "informational only"},
    {"listen_addr", Text{&S::listen_addr}, "", boot, yes, "addresses to listen on; * = all, empty = Unix socket only"},
    {"listen_backlog", Int{&S::listen_backlog, kAny}, "128", boot, yes, "queue of connections not accepted yet"},
    {"listen_port", Int{&S::listen_port, k16Bits}, "6432", boot, yes, "TCP port, also part of the Unix socket's name"},
    {"log_connections", Flag{&S::log_connections}, "1", live, yes, "log logins and server connections"},
    {"log_disconnections", Flag{&S::log_disconnections}, "1", live, yes, "log why connections are closed"},
    {"log_pooler_errors", Flag{&S::log_pooler_errors}, "1", live, yes,
     "log each error that the pooler sends to a client"},
    {"log_stats", Flag{&S::log_stats}, "1", live, yes, "log a line of statistics every stats_period"},
    {"logfile", Text{&S::logfile}, "", live, yes, "file to log to; empty = none"},
    {"login_notify_message", Text{&S::login_notify_message}, "", live, yes, "notice for each client after its login"},
    {"max_client_conn", Int{&S::max_client_conn, kCount}, "100", live, yes, "client connections in all"},
    {"max_db_client_connections", Int{&S::max_db_client_connections, kAny}, "0", live, yes,
     "client connections per database; 0 = no limit"},
    {"max_db_connections", Int{&S::max_db_connections, kAny}, "0", live, yes,
     "server connections per database; 0 = no limit"},
    {"max_packet_size", Int{&S::max_packet_size, kUnsigned}, "2147483647", live, yes, "largest packet let through"},
    {"max_prepared_statements", Int{&S::max_prepared_statements, kCount}, "200", live, yes,
     "prepared statements kept per server connection; 0 = off"},
    {"max_user_client_connections", Int{&S::max_user_client_connections, kAny}, "0", live, yes,
     "client connections per user; 0 = no limit"},
    {"max_user_connections", Int{&S::max_user_connections, kAny}, "0", live, yes,
     "server connections per user; 0 = no limit"},
    {"min_pool_size", Int{&S::min_pool_size, kCount}, "0", live, yes, "server connections to keep open in a used pool"},
    {"peer_id", Int{&S::peer_id, k16Bits}, "0", live, yes, "own number among [peers]; 0 = no peering"},
    {"pidfile", Text{&S::pidfile}, "", boot, yes, "file for the process id; empty = none"},
    {"pkt_buf", Int{&S::pkt_buf, {64, 1 << 30}}, "4096", boot, none, "bytes of a stream buffer"},
    {"pool_mode", Enum<PoolMode>{&S::pool_mode}, "session", live, yes, "when a server goes back to its pool"},
    {"pool_idle_timeout", Time{&S::pool_idle_timeout}, "0", live, yes,
     "forget an empty pool after this long; 0 = never"},
    {"query_timeout", Time{&S::query_timeout}, "0", live, yes, "close servers whose query takes longer; 0 = off"},
    {"query_wait_notify", Int{&S::query_wait_notify, kAny}, "5", live, yes,
     "tell a client that it waits for a server after this many seconds; 0 = off"},
    {"query_wait_timeout", Time{&S::query_wait_timeout}, "120", live, yes,
     "close clients that wait for a server longer; 0 = off"},
    {"reserve_pool_size", Int{&S::reserve_pool_size, kCount}, "0", live, yes,
     "extra server connections of a pool under pressure; 0 = none"},
    {"reserve_pool_timeout", Time{&S::reserve_pool_timeout}, "5", live, yes,
     "wait of the first client that opens the reserve; 0 = reserve off"},
    {"resolv_conf", Text{&S::resolv_conf}, "", boot, yes, "resolver configuration to use instead of the system's"},
    {"sbuf_loopcnt", Int{&S::sbuf_loopcnt, kAny}, "5", live, none,
     "buffers handled per socket before others get their turn; 0 = no limit"},
    {"scram_iterations", Int{&S::scram_iterations, kPositive}, "4096", live, yes,
     "iterations of SCRAM secrets made from plain passwords"},
    {"server_check_delay", Time{&S::server_check_delay}, "30", live, yes,
     "idle time after which a server is checked before use; 0 = always"},
    {"server_check_query", Text{&S::server_check_query}, "<empty>", live, yes,
     "query of that check; <empty> = an empty query, nothing = no check"},
    {"server_connect_timeout", Time{&S::server_connect_timeout}, "15", live, yes,
     "longest time for connecting and logging in to a server"},
    {"server_fast_close", Flag{&S::server_fast_close}, "0", live, yes,
     "session mode: close outdated servers after the transaction"},
    {"server_idle_timeout", Time{&S::server_idle_timeout}, "600", live, yes,
     "close servers idle for this long; 0 = never"},
    {"server_lifetime", Time{&S::server_lifetime}, "3600", live, yes,
     "close unused servers older than this; 0 = use once"},
    {"server_login_retry", Time{&S::server_login_retry}, "15", live, yes, "pause after a failed connect or login"},
    {"server_reset_query", Text{&S::server_reset_query}, "DISCARD ALL", live, yes,
     "query at release in session mode; empty = none"},
    {"server_reset_query_always", Flag{&S::server_reset_query_always}, "0", live, yes,
     "run server_reset_query in every pool mode"},
    {"server_round_robin", Flag{&S::server_round_robin}, "0", live, yes,
     "use idle servers in turn instead of last in, first out"},
    {"server_tls13_ciphers", Text{&S::server_tls13_ciphers}, nullptr, live, yes, "TLS 1.3 cipher suites for servers"},
    {"server_tls_ca_file", Text{&S::server_tls_ca_file}, "", live, yes, "CA that signs server certificates"},
    {"server_tls_cert_file", Text{&S::server_tls_cert_file}, "", live, yes, "certificate shown to servers"},
    {"server_tls_ciphers", Text{&S::server_tls_ciphers}, "default", live, yes, "ciphers for servers up to TLS 1.2"},
    {"server_tls_key_file", Text{&S::server_tls_key_file}, "", live, yes, "private key of server_tls_cert_file"},
    {"server_tls_protocols", Text{&S::server_tls_protocols}, "secure", live, yes, "TLS versions used with servers"},
    {"server_tls_sslmode", Enum<SslMode>{&S::server_tls_sslmode}, "prefer", live, yes, "TLS towards servers"},
    {"so_reuseport", Flag{&S::so_reuseport}, "0", boot, yes, "let several processes share the TCP port"},
    {"stats_period", Int{&S::stats_period, kPositive}, "60", live, yes, "seconds between averages"},
    {"stats_users", Text{&S::stats_users}, "", live, yes, "users who may read the console"},
    {"suspend_timeout", Time{&S::suspend_timeout}, "10", live, yes, "longest flush of SUSPEND; 0 = wait forever"},
    {"syslog", Flag{&S::syslog}, "0", live, yes, "log to syslog too"},
    {"syslog_facility", Text{&S::syslog_facility}, "daemon", live, yes, "syslog facility"},
    {"syslog_ident", Text{&S::syslog_ident}, "pgbouncer", live, yes, "name in syslog"},
    {"tcp_defer_accept", Int{&S::tcp_defer_accept, kCount}, "1", live, yes,
     "accept a connection only once it has sent something"},
    {"tcp_keepalive", Flag{&S::tcp_keepalive}, "1", live, yes, "TCP keepalive"},
    {"tcp_keepcnt", Int{&S::tcp_keepcnt, kCount}, "0", live, yes, "keepalive probes; 0 = the system's default"},
    {"tcp_keepidle", Int{&S::tcp_keepidle, kCount}, "0", live, yes,
     "seconds before the first keepalive probe; 0 = the system's default"},
    {"tcp_keepintvl", Int{&S::tcp_keepintvl, kCount}, "0", live, yes,
     "seconds between keepalive probes; 0 = the system's default"},
    {"tcp_socket_buffer", Int{&S::tcp_socket_buffer, kCount}, "0", live, yes,
     "bytes of the kernel's socket buffers; 0 = the system's default"},
    {"tcp_user_timeout", Int{&S::tcp_user_timeout, kCount}, "0", live, yes,
     "milliseconds until unanswered data closes a connection; 0 = the system's default"},
    {"track_extra_parameters", Text{&S::track_extra_parameters}, "IntervalStyle", boot, yes,
     "session parameters that follow the client, besides the usual five"},
    {"transaction_timeout", Time{&S::transaction_timeout}, "0", live, yes,
     "close clients whose transaction takes longer; 0 = off"},
    {"unix_socket_dir", Text{&S::unix_socket_dir}, "/tmp", boot, yes,
     "folder of the Unix socket; empty = none, @ = abstract"},
    {"unix_socket_group", Text{&S::unix_socket_group}, "", boot, yes, "group of the Unix socket"},
    {"unix_socket_mode", Int{&S::unix_socket_mode, {0, 07777}}, "0777", boot, yes, "permissions of the Unix socket"},
    {"user", Text{&S::user}, nullptr, boot, yes, "system user to become when started by root"},
    {"verbose", Int{&S::verbose, kCount}, nullptr, live, yes, "1 = debug, 2 = more"},
    {"workers", AutoInt{&S::workers, {1, 64}}, "auto", boot, yes,
     "threads that serve connections; auto = the cores this process may use"},
    {"io_engine", Enum<IoEngine>{&S::io_engine}, "auto", boot, yes,
     "how sockets are served; auto = io_uring where the kernel allows it"},
    {"placement", Enum<Placement>{&S::placement}, "adaptive", live, yes,
     "which worker serves a client: kernel = the one that accepted it; spread = the one with the fewest clients; "
     "adaptive = spread, and idle clients move later as the load asks; shuffle = they move all the time, for tests"},
    {"max_client_prepared_statements", Int{&S::max_client_prepared_statements, kCount}, "10000", live, yes,
     "named prepared statements kept per client, the least recently used goes first; 0 = no limit"},
    {"max_prepared_statement_memory", Int{&S::max_prepared_statement_memory, {0, std::int64_t{1} << 40}}, "1073741824",
     live, yes, "bytes of prepared statement texts in the whole program; 0 = no limit"},
    {"watchdog_abort", Time{&S::watchdog_abort}, "60", live, yes,
     "a worker blocked for so long ends the program, for its supervisor to start it again; 0 = never"},
    {"watchdog_report", Time{&S::watchdog_report}, "1", live, yes,
     "a worker blocked for so long is reported with its stack, its new clients go to others; 0 = never"},
    {"metrics_listen", Listen{&S::metrics_listen}, "", boot, yes,
     "where /metrics, /livez and /readyz are served over HTTP; empty = nowhere"},
    {"metrics_token", Secret{&S::metrics_token}, "", boot, yes,
     "what /metrics wants as `Authorization: Bearer TOKEN`; empty = nothing"},
    {"metrics_max_pools", Int{&S::metrics_max_pools, {1, 100'000}}, "200", boot, yes,
     "how many pools, databases, users and hosts have metrics of their own; the rest is summed"},
    {"web_page", Flag{&S::web_page}, "0", boot, yes,
     "a page at / of metrics_listen that shows in a browser what goes on; its data want metrics_token"},
    {"budget", Enum<Budget>{&S::budget}, "process", boot, yes,
     "whose the limits are: process = each process has them for itself; fleet = all processes together, by fleet_file "
     "or fleet_size"},
    {"fleet_size", Int{&S::fleet_size, k16Bits}, "0", live, yes,
     "budget = fleet on several machines: so many processes, each has its part of every limit"},
    {"fleet_file", Text{&S::fleet_file}, "", boot, yes,
     "budget = fleet on one machine: file in which the processes count together; made at need"},
    {"log_format", Enum<LogFormat>{&S::log_format}, "pgbouncer", live, yes,
     "what a line of the log looks like; json = an object with stable names"},
    {"log_slow_wait", Time{&S::log_slow_wait}, "0", live, yes,
     "log clients that have waited this long for a server; 0 = off"},
    {"log_slow_login", Time{&S::log_slow_login}, "0", live, yes, "log logins that take this long; 0 = off"},
    {"log_slow_transaction", Time{&S::log_slow_transaction}, "0", live, yes,
     "log transactions that take this long; 0 = off"},
};

const Row* find(std::string_view key) {
  const Row* row = std::ranges::find(kRows, key, &Row::key);
  return row == std::end(kRows) ? nullptr : row;
}

using Outcome = std::expected<void, std::string>;
Outcome fail(std::string reason) { return std::unexpected(std::move(reason)); }

std::string describe(Range range) {
  if (range.min == kMin32) return "whole number";
  if (range.max == kMax32) return fmt::format("{} or more", range.min);
  return fmt::format("{} to {}", range.min, range.max);
}

Outcome assign(Settings& s, std::int64_t Settings::*member, Range range, std::string_view text) {
  auto value = parse_int(text);
  if (!value) return fail("expected a whole number");
  if (*value < range.min || *value > range.max) {
    // 2^31 is "0 or more" too; what it is not is 32 bits.
    return fail(*value > kMax32 && range.max == kMax32 ? "number is too large" : "expected " + describe(range));
  }
  s.*member = *value;
  return {};
}
Outcome assign(Settings& s, const Int& field, std::string_view text) {
  return assign(s, field.member, field.range, text);
}
Outcome assign(Settings& s, const Flag& field, std::string_view text) { return assign(s, field.member, kAny, text); }
Outcome assign(Settings& s, const AutoInt& field, std::string_view text) {
  if (equals_ignoring_case(text, "auto")) {
    s.*field.member = 0;
    return {};
  }
  if (assign(s, field.member, field.range, text)) return {};
  return fail(fmt::format("expected auto or 1 to {}", field.range.max));
}
Outcome assign(Settings& s, const Time& field, std::string_view text) {
  auto value = parse_seconds(text);
  if (!value) return fail("expected seconds");
  s.*field.member = *value;
  return {};
}
Outcome assign(Settings& s, const Text& field, std::string_view text) {
  // The one text with a forbidden value: a password query cannot run in the console.
  if (field.member == &Settings::auth_dbname && text == kConsoleDatabase)
    return fail("cannot use the reserved \"pgbouncer\" database as an auth_dbname");
  s.*field.member = text;
  return {};
}
Outcome assign(Settings& s, const Listen& field, std::string_view text) {
  if (!text.empty() && !parse_endpoint(text)) return fail("expected ADDRESS:PORT");
  s.*field.member = text;
  return {};
}
Outcome assign(Settings& s, const Secret& field, std::string_view text) {
  s.*field.member = text;
  return {};
}
template <class E>
std::string list_words() {
  std::string list;
  for (const auto& word : words(E{})) list += (list.empty() ? "" : ", ") + std::string(word.text);
  return list;
}
template <class E>
Outcome assign(Settings& s, const Enum<E>& field, std::string_view text) {
  auto value = parse_keyword<E>(text);
  if (!value) return fail("expected one of " + list_words<E>());
  s.*field.member = *value;
  return {};
}

std::string shown(const Settings& s, const Int& field) { return std::to_string(s.*field.member); }
std::string shown(const Settings& s, const Flag& field) { return std::to_string(s.*field.member); }
std::string shown(const Settings& s, const AutoInt& field) {
  return s.*field.member ? std::to_string(s.*field.member) : "auto";
}
std::string shown(const Settings& s, const Time& field) { return show_seconds(s.*field.member); }
std::string shown(const Settings& s, const Text& field) { return s.*field.member; }
std::string shown(const Settings& s, const Listen& field) { return s.*field.member; }
std::string shown(const Settings& s, const Secret& field) { return (s.*field.member).empty() ? "" : "********"; }
template <class E>
std::string shown(const Settings& s, const Enum<E>& field) {
  return std::string(keyword_of(s.*field.member));
}

std::string describe(const Int& field) { return describe(field.range); }
std::string describe(const Flag&) { return "0, 1"; }
std::string describe(const AutoInt& field) { return fmt::format("auto, 1 to {}", field.range.max); }
std::string describe(const Time&) { return "seconds"; }
std::string describe(const Text&) { return "text"; }
std::string describe(const Listen&) { return "ADDRESS:PORT"; }
std::string describe(const Secret&) { return "text"; }
template <class E>
std::string describe(const Enum<E>&) {
  return list_words<E>();
}

void assign_default(Settings& s, const Row& row) {
  if (row.default_text) {
    std::visit([&](const auto& field) { (void)assign(s, field, row.default_text); }, row.field);
    return;
  }
  std::visit([&](const auto& field) { s.*field.member = std::remove_cvref_t<decltype(s.*field.member)>{}; }, row.field);
}

void copy(Settings& to, const Settings& from, const Row& row) {
  std::visit([&](const auto& field) { to.*field.member = from.*field.member; }, row.field);
}

bool is_null(const Settings& s, const Row& row) {
  if (row.default_text) return false;
  if (const Text* text = std::get_if<Text>(&row.field)) return (s.*text->member).empty();
  const Secret* secret = std::get_if<Secret>(&row.field);
  return secret && (s.*secret->member).empty();
}

}  // namespace

Outcome set(Settings& settings, std::string_view key, std::string_view value) {
  const Row* row = find(key);
  if (!row) return fail("unknown parameter");
  return std::visit([&](const auto& field) { return assign(settings, field, value); }, row->field);
}

bool is_known(std::string_view key) { return find(key); }
bool is_live(std::string_view key) {
  const Row* row = find(key);
  return row && row->apply == Apply::live;
}
bool has_effect(std::string_view key) {
  const Row* row = find(key);
  return row && row->effect == Effect::yes;
}
bool has_null_default(std::string_view key) {
  const Row* row = find(key);
  return row && !row->default_text;
}

void set_defaults(Settings& settings) {
  for (const Row& row : kRows) assign_default(settings, row);
}
void reset_non_null(Settings& settings) {
  for (const Row& row : kRows)
    if (row.default_text) assign_default(settings, row);
}
void keep_boot_only(Settings& next, const Settings& running) {
  for (const Row& row : kRows)
    if (row.apply == Apply::boot) copy(next, running, row);
}
void copy_key(Settings& to, const Settings& from, std::string_view key) {
  if (const Row* row = find(key)) copy(to, from, *row);
}

std::vector<std::string_view> setting_keys() {
  std::vector<std::string_view> keys;
  for (const Row& row : kRows) keys.push_back(row.key);
  return keys;
}

std::vector<std::string_view> own_setting_keys() {
  auto all = setting_keys();
  return {std::ranges::find(all, kFirstOwn), all.end()};
}
std::string_view nearest_setting(std::string_view key) { return nearest(key, setting_keys()); }

std::vector<ShownSetting> show(const Settings& settings) {
  std::vector<ShownSetting> all;
  for (const Row& row : kRows) {
    std::string value = std::visit([&](const auto& field) { return shown(settings, field); }, row.field);
    all.push_back({row.key, std::move(value), row.default_text ? row.default_text : "", is_null(settings, row),
                   !row.default_text, row.apply == Apply::live});
  }
  return all;
}

std::string settings_markdown() {
  std::string text = "| Key | Values | Default | Reload | Meaning |\n|---|---|---|---|---|\n";
  for (const Row& row : kRows) {
    std::string_view plain = row.default_text ? row.default_text : "";
    std::string value = plain.empty() ? (row.default_text ? "empty" : "unset") : fmt::format("`{}`", plain);
    std::string values = std::visit([](const auto& field) { return describe(field); }, row.field);
    text +=
        fmt::format("| {} | {} | {} | {} | {}{} |\n", row.key, values, value, row.apply == Apply::live ? "yes" : "no",
                    row.help, row.effect == Effect::none ? " (accepted, no effect yet)" : "");
  }
  return text;
}

std::string_view to_text(PoolMode mode) { return keyword_of(mode); }
std::string_view to_text(AuthType type) { return keyword_of(type); }
std::string_view to_text(SslMode mode) { return keyword_of(mode); }
std::string_view to_text(LoadBalance policy) { return keyword_of(policy); }
std::string_view to_text(IoEngine engine) { return keyword_of(engine); }
std::string_view to_text(Placement placement) { return keyword_of(placement); }
std::string_view to_text(Budget budget) { return keyword_of(budget); }

}  // namespace pgf::config
