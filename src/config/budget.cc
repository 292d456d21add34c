#include "config/budget.h"

#include <fmt/format.h>

#include <algorithm>

namespace pgf::config {

bool counts_together(const Settings& s) { return s.budget == Budget::fleet && !s.fleet_file.empty(); }
bool divides(const Settings& s) { return s.budget == Budget::fleet && s.fleet_file.empty() && s.fleet_size > 1; }

int part_of(const Config& config, int whole) {
  const Settings& s = config.settings;
  if (!divides(s) || whole <= 0) return whole;
  const int n = static_cast<int>(s.fleet_size);
  // With `*` in [peers] several may have the same number: nobody gets what is left over.
  const bool numbered = s.peer_id >= 1 && s.peer_id <= n && !config.peers.contains(0);
  return whole / n + (numbered && s.peer_id <= whole % n);
}

int max_client_conn(const Config& config) { return part_of(config, static_cast<int>(config.settings.max_client_conn)); }

std::string check_budget(const Config& config) {
  const Settings& s = config.settings;
  if (s.budget != Budget::fleet) return {};
  if (!s.fleet_file.empty() && s.fleet_size > 0)
    return "budget = fleet: either fleet_file (one machine) or fleet_size (several), not both";
  if (s.fleet_file.empty() && s.fleet_size == 0)
    return "budget = fleet needs fleet_file (processes of one machine) or fleet_size (of several)";
  if (!divides(s)) return {};
  std::string problem;
  auto look = [&](std::string_view where, std::string_view key, std::int64_t value) {
    if (value > 0 && value < s.fleet_size && problem.empty())
      problem = fmt::format("budget = fleet: {}{} = {} cannot be divided among fleet_size = {} processes", where, key,
                            value, s.fleet_size);
  };
  look("", "max_client_conn", s.max_client_conn);
  look("", "default_pool_size", s.default_pool_size);
  look("", "reserve_pool_size", s.reserve_pool_size);
  look("", "max_db_connections", s.max_db_connections);
  look("", "max_user_connections", s.max_user_connections);
  look("", "max_db_client_connections", s.max_db_client_connections);
  look("", "max_user_client_connections", s.max_user_client_connections);
  auto database = [&](const Database& db) {
    const std::string where = fmt::format("[databases] {}: ", db.name);
    look(where, "pool_size", db.pool_size.value_or(0));
    look(where, "reserve_pool_size", db.reserve_pool_size.value_or(0));
    look(where, "max_db_connections", db.max_db_connections.value_or(0));
    look(where, "max_db_client_connections", db.max_db_client_connections.value_or(0));
  };
  for (const auto& [name, db] : config.databases) database(db);
  if (config.wildcard) database(*config.wildcard);
  for (const auto& [name, user] : config.users) {
    const std::string where = fmt::format("[users] {}: ", name);
    look(where, "pool_size", user.pool_size.value_or(0));
    look(where, "reserve_pool_size", user.reserve_pool_size.value_or(0));
    look(where, "max_user_connections", user.max_user_connections.value_or(0));
    look(where, "max_user_client_connections", user.max_user_client_connections.value_or(0));
  }
  return problem;
}

}  // namespace pgf::config
