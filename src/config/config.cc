#include "config/config.h"

#include <algorithm>
#include <limits>

#include "config/budget.h"
#include "config/limits.h"
#include "config/value.h"

namespace pgf::config {
namespace {

const User* find_user(const Config& config, const std::string& name) {
  auto it = config.users.find(name);
  return it == config.users.end() ? nullptr : &it->second;
}

int to_limit(std::int64_t n) {
  return static_cast<int>(std::clamp<std::int64_t>(n, 0, std::numeric_limits<int>::max()));
}

// The first override that is set, else the global value.
int pick(std::optional<int> a, std::optional<int> b, std::int64_t global) { return a ? *a : b ? *b : to_limit(global); }
Usec pick_time(std::optional<Usec> a, std::optional<Usec> b, Usec global) { return a ? *a : b ? *b : global; }

const std::string& server_dbname(const Database& db) { return db.dbname.empty() ? db.name : db.dbname; }

}  // namespace

PoolPolicy resolve(const Config& config, const Database& db, const std::string& server_user) {
  const User* found = find_user(config, server_user);
  const User user = found ? *found : User{};
  const Settings& s = config.settings;
  PoolPolicy policy;
  policy.pool_mode = user.pool_mode ? *user.pool_mode : db.pool_mode.value_or(s.pool_mode);
  auto part = [&](int whole) { return part_of(config, whole); };
  policy.pool_size = part(pick(user.pool_size, db.pool_size, s.default_pool_size));
  policy.min_pool_size = part(pick({}, db.min_pool_size, s.min_pool_size));
  // A pool of unlimited size (0) leaves the minimum as it is.
  if (policy.pool_size > 0) policy.min_pool_size = std::min(policy.min_pool_size, policy.pool_size);
  policy.reserve_pool_size = part(pick(user.reserve_pool_size, db.reserve_pool_size, s.reserve_pool_size));
  policy.max_db_connections = part(pick({}, db.max_db_connections, s.max_db_connections));
  policy.max_user_connections = part(pick(user.max_user_connections, {}, s.max_user_connections));
  policy.query_timeout = user.query_timeout.value_or(s.query_timeout);
  policy.idle_transaction_timeout = user.idle_transaction_timeout.value_or(s.idle_transaction_timeout);
  policy.transaction_timeout = user.transaction_timeout.value_or(s.transaction_timeout);
  policy.server_lifetime = db.server_lifetime.value_or(s.server_lifetime);
  policy.connect_timeout = db.connect_timeout.value_or(s.server_connect_timeout);
  if (s.server_connect_timeout > 0) policy.connect_timeout = std::min(policy.connect_timeout, s.server_connect_timeout);
  return policy;
}

ClientPolicy resolve_client(const Config& config, const Database& db, const std::string& login_user) {
  const User* found = find_user(config, login_user);
  const User user = found ? *found : User{};
  const Settings& s = config.settings;
  ClientPolicy policy;
  policy.max_db_client_connections =
      part_of(config, pick({}, db.max_db_client_connections, s.max_db_client_connections));
  policy.max_user_client_connections =
      part_of(config, pick(user.max_user_client_connections, {}, s.max_user_client_connections));
  policy.query_wait_timeout = pick_time(user.query_wait_timeout, db.query_wait_timeout, s.query_wait_timeout);
  policy.client_idle_timeout = user.client_idle_timeout.value_or(s.client_idle_timeout);
  return policy;
}

std::optional<Database> find_database(const Config& config, const std::string& name) {
  if (name.empty() || name.size() > kMaxDatabaseName || name == kConsoleDatabase) return std::nullopt;
  std::optional<Database> found;
  if (auto it = config.databases.find(name); it != config.databases.end()) {
    found = it->second;
  } else if (config.wildcard) {
    found = config.wildcard;
    found->name = name;
    found->is_auto = true;
  }
  if (found) found->dbname = server_dbname(*found);
  return found;
}

bool needs_new_servers(const Database& a, const Database& b) {
  const bool lists = a.hosts.size() > 1 && b.hosts.size() > 1;
  return server_dbname(a) != server_dbname(b) || (!lists && (a.host != b.host || a.ports != b.ports)) ||
         a.user != b.user || a.target_session_attrs != b.target_session_attrs || a.connect_query != b.connect_query ||
         a.auth_dbname != b.auth_dbname || a.auth_query != b.auth_query ||
         a.load_balance_hosts != b.load_balance_hosts || a.sslnegotiation != b.sslnegotiation ||
         a.require_auth != b.require_auth;
}

std::vector<std::pair<std::string, int>> hosts_of(const Database& db, const Settings& settings) {
  if (db.hosts.empty()) return {{settings.unix_socket_dir, db.ports[0]}};
  std::vector<std::pair<std::string, int>> all;
  all.reserve(db.hosts.size());
  for (std::size_t i = 0; i < db.hosts.size(); ++i)
    all.emplace_back(db.hosts[i], db.ports[db.ports.size() > i ? i : 0]);
  return all;
}

std::vector<std::string> split_list(std::string_view list) {
  std::vector<std::string> tokens;
  std::string token;
  auto finish = [&] {
    if (!token.empty()) tokens.push_back(std::move(token));
    token.clear();
  };
  for (char c : list) {
    if (c == ',' || is_blank(c)) {
      finish();
    } else {
      token += c;
    }
  }
  finish();
  return tokens;
}

bool in_list(std::string_view list, std::string_view name) {
  // No token is empty or holds a delimiter, so neither can a member.
  return std::ranges::any_of(split_list(list), [&](const std::string& token) { return token == name; });
}

void keep_on_reload(Config& next, const Config& running) {
  if (next.hba && next.hba_broken && running.hba) {
    next.hba = running.hba;
    next.warnings.push_back("the hba rules stay as they were");
  }
  if (next.auth_file_broken) {
    next.passwords = running.passwords;
    next.warnings.push_back("users and passwords of auth_file stay as they were");
  }
  keep_boot_only(next.settings, running.settings);
  for (std::string_view key : setting_keys())
    if (has_null_default(key) && !next.given.contains(key)) copy_key(next.settings, running.settings, key);
}

}  // namespace pgf::config
