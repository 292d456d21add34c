#pragma once
// The configuration as one immutable snapshot. Parsed by config/ini, shared by pointer, replaced whole by RELOAD.
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "auth/hba.h"
#include "auth/require.h"
#include "base/time.h"
#include "config/settings.h"

namespace pgf::config {

// One line of [databases]. Unset = nullopt = the user's or the global value applies (see resolve()).
struct Database {
  std::string name;                 // what clients ask for; "*" is the template
  std::string dbname;               // server-side name; empty = name asked for
  std::string host;                 // as written: empty = Unix socket; else a comma list
  std::vector<std::string> hosts;   // host split at commas; empty = Unix socket in unix_socket_dir
  std::vector<int> ports{5432};     // one, or one per host
  std::optional<std::string> user;  // forced server user
  std::optional<std::string> password;
  std::optional<std::string> auth_user, auth_query, auth_dbname;
  std::optional<int> pool_size, min_pool_size, reserve_pool_size;
  std::optional<PoolMode> pool_mode;
  std::optional<int> max_db_connections, max_db_client_connections;  // only > 0 are kept
  std::optional<Usec> server_lifetime;                               // only > 0 is kept
  std::optional<Usec> query_wait_timeout;
  std::optional<Usec> connect_timeout;
  SslNegotiation sslnegotiation = SslNegotiation::postgres;  // direct: TLS from the first byte (PostgreSQL 17)
  auth::RequireAuth require_auth;                            // how a server may ask for the password
  LoadBalance load_balance_hosts = LoadBalance::round_robin;
  TargetSession target_session_attrs = TargetSession::any;
  std::string connect_query;
  std::string client_encoding, datestyle, timezone, application_name;
  std::uint16_t protocol_minor = 0;  // of protocol 3, asked of the server; what it answers counts
  bool is_auto = false;              // made from "*" (set by whoever instantiates the template)
};

// One line of [users].
struct User {
  std::string name;
  std::optional<int> pool_size, reserve_pool_size;
  std::optional<PoolMode> pool_mode;
  std::optional<int> max_user_connections, max_user_client_connections;  // only > 0 are kept
  std::optional<Usec> query_timeout, idle_transaction_timeout, transaction_timeout, client_idle_timeout;  // only > 0
  std::optional<Usec> query_wait_timeout;
};

// One line of [peers].
struct Peer {
  int id = 0;  // 0: "*", all addresses of a host (docs/decisions/0008-peers-without-numbers.md)
  std::string host;
  int port = 6432;
  std::optional<int> pool_size;
};

struct Config {
  Settings settings;
  std::map<std::string, Database> databases;  // without "*"
  std::optional<Database> wildcard;           // "*"
  std::map<std::string, User> users;
  std::map<int, Peer> peers;
  std::map<std::string, std::string> passwords;  // auth_file: user -> secret as written (plain, md5…, SCRAM-SHA-256$…)
  std::shared_ptr<const auth::Hba> hba;          // with auth_type=hba; null = no rules, nobody may log in
  bool hba_broken = false;                       // the hba or ident file was missing, or a line of it was unusable
  std::set<std::string, std::less<>> given;      // the [pgbouncer] keys that the file sets
  bool auth_file_broken = false;                 // it was missing, or unusable from a line on: `passwords` ends there
  std::vector<std::string> warnings;             // to be logged once, at start and after RELOAD
};

// Everything that a pool (database entry, server user) needs to know, overrides resolved: user > database > global.
struct PoolPolicy {
  PoolMode pool_mode;
  int pool_size, min_pool_size, reserve_pool_size;
  int max_db_connections, max_user_connections;
  Usec query_timeout, idle_transaction_timeout, transaction_timeout;
  Usec server_lifetime, connect_timeout;
};
// Each host of an entry with its port; of one without hosts, the Unix socket's folder.
std::vector<std::pair<std::string, int>> hosts_of(const Database& db, const Settings& settings);
PoolPolicy resolve(const Config& config, const Database& db, const std::string& server_user);

// The same for a client: limits that follow the login user instead of the server user.
struct ClientPolicy {
  int max_db_client_connections, max_user_client_connections;
  Usec query_wait_timeout, client_idle_timeout;
};
ClientPolicy resolve_client(const Config& config, const Database& db, const std::string& login_user);

// The entry for a client's database name: the named one, or the "*" template as an auto-database of that name. The
// result's dbname is always filled in. Never finds the reserved "pgbouncer", nor names that are empty or too long.
std::optional<Database> find_database(const Config& config, const std::string& name);

// True when a change from a to b obliges every server connection of the entry to be replaced (settings.md section 3).
// A list that only gains or loses hosts is none: servers of hosts that stay may stay (Pool::check_places).
bool needs_new_servers(const Database& a, const Database& b);

// "a, b c" -> whole-token membership as in admin_users; delimiters are commas and blanks.
bool in_list(std::string_view list, std::string_view name);
std::vector<std::string> split_list(std::string_view list);

struct LoadError {
  std::string text;  // names what, file and line, and the nearest known key where there is one
};
struct LoadResult {
  std::shared_ptr<const Config> config;  // null on error
  std::vector<std::string> errors;       // log lines, in order, PgBouncer's wording first
};
// Files are read through `read`, so that parsing stays pure: returns nullopt and an errno text when unreadable.
struct FileReader {
  virtual ~FileReader() = default;
  virtual std::optional<std::string> read(const std::string& path, std::string& error) = 0;
};
LoadResult load(const std::string& path, FileReader& files);

// What RELOAD takes from the running settings: boot-only keys, and keys with a NULL default that the file no longer
// sets (PgBouncer keeps their old value).
void keep_on_reload(Config& next, const Config& running);

// The auth_file grammar alone (settings.md section 8).
struct AuthFile {
  std::map<std::string, std::string> passwords;
  std::vector<std::string> errors;
};
AuthFile parse_auth_file(std::string_view text);

}  // namespace pgf::config
