#pragma once
// Whom `pgflotilla top` talks to.
#include <expected>
#include <functional>
#include <string>

#include "config/config.h"

namespace pgf::top {

enum class Tls { disable, prefer, require, verify_ca, verify_full };

struct Target {
  std::string host = "/tmp";  // a folder (of a Unix socket) or @name, else a name or an address
  int port = 6432;
  std::string user, password;
  Tls tls = Tls::prefer;
  std::string root_cert;

  bool is_unix() const { return host.starts_with('/') || host.starts_with('@'); }
  std::string socket_path() const;
};

struct Outside {                                        // what there is besides the argument; tests bring their own
  std::function<std::string(const char*)> environment;  // empty = unset
  std::function<config::LoadResult(const std::string&)> load;   // an ini
  std::function<bool(const std::string& socket_path)> is_ours;  // belongs to our own operating-system user
  std::string system_user;
};

// "host=… port=…", "postgresql://user@host:port", the name of an ini, or nothing: PGHOST and its like, and then
// PgBouncer's defaults. The console's user is, unless one is named: pgbouncer, where its own operating-system user
// needs no password; else the first of the ini's stats_users and admin_users; else the system's user.
std::expected<Target, std::string> parse_target(const std::string& argument, const Outside& outside);

}  // namespace pgf::top
