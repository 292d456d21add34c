#include "main/check.h"

#include <fmt/format.h>
#include <pwd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <map>
#include <vector>

#include "config/budget.h"
#include "config/value.h"
#include "main/process.h"
#include "net/socket.h"
#include "pool/shared.h"
#include "session/tls_setup.h"

namespace pgf {
namespace {

using config::Config;
using config::Database;

struct Findings {
  std::vector<std::string> errors, warnings, differences;
};

// ---- what may be wrong: one function each, and its line in kChecks ----

void files_of_the_ini(const Config& c, Findings& f) {
  for (const std::string& w : c.warnings) {
    if (w.find("has no effect") != w.npos || w.find("not in this version") != w.npos)
      f.differences.push_back(w);
    else if (w.starts_with("could not open"))
      f.errors.push_back(w);
    else
      f.warnings.push_back(w);
  }
  if (c.auth_file_broken) f.errors.push_back(fmt::format("auth_file {} is unusable, see above", c.settings.auth_file));
  if (c.hba_broken) f.errors.push_back("a line of the hba or ident file is unusable, see above");
}

void certificates(const Config& c, Findings& f) {
  if (auto tls = session::make_tls_setup(c); !tls) f.errors.push_back(tls.error());
}

void listeners(const Config& c, Findings& f) {
  const config::Settings& s = c.settings;
  bool any = false;
  for (const std::string& host : config::split_list(s.listen_addr)) {
    any = true;
    if (host != "*" && !net::parse_ip(host, 0))
      f.warnings.push_back(fmt::format("listen_addr: {} is a name; it is looked up at start", host));
  }
  if (!s.unix_socket_dir.empty()) {
    any = true;
    if (std::string path = unix_socket_path(s); !net::unix_address(path))
      f.errors.push_back(fmt::format("unix_socket_dir: path too long: {}", path));
  }
  if (auto metrics = config::parse_endpoint(s.metrics_listen); metrics && s.metrics_token.empty()) {
    if (!metrics->host.starts_with("127.") && metrics->host != "::1" && metrics->host != "localhost")
      f.warnings.push_back("metrics_listen: names of databases and users can be read there without a metrics_token");
  }
  if (s.web_page && s.metrics_listen.empty())
    f.warnings.push_back("web_page: it has no address to be served on: metrics_listen is empty");
  if (!any) f.errors.push_back("nowhere to listen on: listen_addr and unix_socket_dir are both empty");
}

void folders(const Config& c, Findings& f) {
  auto look = [&](std::string_view key, std::string folder) {
    if (folder.empty() || folder[0] == '@') return;
    if (::access(folder.c_str(), F_OK) < 0)
      f.errors.push_back(fmt::format("{}: folder {}: {}", key, folder, std::strerror(errno)));
    else if (::access(folder.c_str(), W_OK) < 0)
      f.warnings.push_back(fmt::format("{}: the user who runs this check may not write to {}", key, folder));
  };
  auto folder_of = [](const std::string& file) {
    std::size_t slash = file.rfind('/');
    return file.empty() ? "" : slash == file.npos ? "." : slash == 0 ? "/" : file.substr(0, slash);
  };
  look("logfile", folder_of(c.settings.logfile));
  look("pidfile", folder_of(c.settings.pidfile));
  look("unix_socket_dir", c.settings.unix_socket_dir);
  if (config::counts_together(c.settings)) look("fleet_file", folder_of(c.settings.fleet_file));
}

void who_logs_in(const Config& c, Findings& f) {
  const config::Settings& s = c.settings;
  using config::AuthType;
  const bool needs_file = s.auth_type == AuthType::trust || s.auth_type == AuthType::plain ||
                          s.auth_type == AuthType::md5 || s.auth_type == AuthType::scram_sha_256;
  bool asks = !s.auth_user.empty() || (c.wildcard && c.wildcard->auth_user);
  for (const auto& [name, db] : c.databases) asks |= db.auth_user.has_value();
  if (needs_file && c.passwords.empty() && !asks)
    f.warnings.push_back("nobody can log in: auth_file has no users, and there is no auth_user to ask a server");
  if (c.databases.empty() && !c.wildcard) f.warnings.push_back("[databases] is empty");
  if (s.auth_type == AuthType::any || s.auth_type == AuthType::trust)
    f.warnings.push_back(fmt::format("auth_type = {}: nobody has to prove who he is", config::to_text(s.auth_type)));
  if (s.admin_users.empty())
    f.warnings.push_back("admin_users is empty: the console is open to the own system user only, on the Unix socket");
}

void budgets(const Config& c, Findings& f) {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  if (long want = expected_descriptors(c); static_cast<rlim_t>(want) > files.rlim_max)
    f.warnings.push_back(
        fmt::format("{} file descriptors may be needed, {} are allowed here (ulimit -Hn)", want, files.rlim_max));
}

void differences(const Config& c, Findings& f) {
  for (std::string_view key : config::own_setting_keys())
    if (c.given.contains(key)) f.differences.push_back(fmt::format("PgBouncer does not know the key {}", key));
  if (c.peers.contains(0)) f.differences.push_back("PgBouncer does not know the peer *");
  if (c.settings.so_reuseport)
    f.differences.push_back(
        fmt::format("so_reuseport: one process uses all cores; several are needed for rolling restarts only{}",
                    c.settings.budget == config::Budget::fleet ? "" : ", and each has its own limits (see budget)"));
}

using Check = void (*)(const Config&, Findings&);
constexpr Check kChecks[] = {files_of_the_ini, certificates, listeners, folders, who_logs_in, budgets, differences};

// ---- what it would start ----

std::string target(const Database& db) {
  std::string where = db.host.empty() ? "Unix socket" : db.host;
  std::string ports;
  for (int port : db.ports) ports += fmt::format("{}{}", ports.empty() ? "" : ",", port);
  return fmt::format("{}:{}/{}", where, ports, db.dbname.empty() ? db.name : db.dbname);
}

std::string budget(const Config& c) {
  const config::Settings& s = c.settings;
  if (config::counts_together(s))
    return fmt::format("the limits are for all processes together that use {}", s.fleet_file);
  if (!config::divides(s)) return "the limits are this process's own";
  return fmt::format("a part of each limit, of {} processes: {} clients, {} servers by default", s.fleet_size,
                     config::max_client_conn(c), config::part_of(c, static_cast<int>(s.default_pool_size)));
}

std::string fleet(const Config& c) {
  const config::Settings& s = c.settings;
  std::string out = "What it starts:\n";
  auto line = [&](std::string_view what, const std::string& text) {
    fmt::format_to(std::back_inserter(out), "  {:<11} {}\n", what, text);
  };
  const int workers = std::min(s.workers > 0 ? static_cast<int>(s.workers) : usable_cores(), pool::kMaxWorkers);
  line("workers", fmt::format("{}{}", workers, s.workers > 0 ? "" : " (auto: the cores that this process may use)"));
  line("engine", s.io_engine == config::IoEngine::auto_ ? "io_uring where the kernel allows it, else epoll"
                                                        : std::string(config::to_text(s.io_engine)));
  std::string where;
  for (const std::string& host : config::split_list(s.listen_addr))
    where += fmt::format("{}{}:{}", where.empty() ? "" : ", ", host, s.listen_port);
  if (!s.unix_socket_dir.empty()) where += fmt::format("{}unix:{}", where.empty() ? "" : ", ", unix_socket_path(s));
  line("listens on", where);
  line("clients", fmt::format("{} at most, {}, TLS {}", s.max_client_conn, config::to_text(s.auth_type),
                              config::to_text(s.client_tls_sslmode)));
  line("budget", budget(c));
  line("users", fmt::format("{} in auth_file, {} entries in [users]", c.passwords.size(), c.users.size()));
  line("descriptors", fmt::format("{} at most", expected_descriptors(c)));
  auto database = [&](const Database& db) {
    config::PoolPolicy p = config::resolve(c, db, db.user.value_or(""));
    std::string size = fmt::format("{}", p.pool_size);
    if (p.reserve_pool_size > 0) size += fmt::format(" + {} reserve", p.reserve_pool_size);
    size += " servers";
    size += db.user ? fmt::format(", all as {}", *db.user) : " for each user";
    if (p.max_db_connections > 0) size += fmt::format(", {} in all", p.max_db_connections);
    line(db.name, fmt::format("{} -> {}: {}", config::to_text(p.pool_mode), target(db), size));
  };
  for (const auto& [name, db] : c.databases) database(db);
  if (c.wildcard) database(*c.wildcard);
  return out;
}

}  // namespace

Checked check_config(const config::LoadResult& loaded, const std::string& path, const std::string& user) {
  Findings f;
  f.errors = loaded.errors;
  if (loaded.config) {
    for (Check check : kChecks) check(*loaded.config, f);
    std::string who = user.empty() ? loaded.config->settings.user : user;
    if (!who.empty() && !getpwnam(who.c_str())) f.errors.push_back(fmt::format("user: no such user: {}", who));
    if (who.empty() && geteuid() == 0) f.warnings.push_back("run as root it needs `user` or -u");
  }
  Checked result;
  auto list = [&](std::string_view what, const std::vector<std::string>& lines) {
    for (const std::string& l : lines) fmt::format_to(std::back_inserter(result.text), "{}: {}\n", what, l);
  };
  list("error", f.errors);
  list("warning", f.warnings);
  list("differs from PgBouncer", f.differences);
  if (loaded.config) result.text += fleet(*loaded.config);
  result.good = loaded.config && f.errors.empty();
  fmt::format_to(std::back_inserter(result.text), "{}: {} error{}, {} warning{}: {}\n", path, f.errors.size(),
                 f.errors.size() == 1 ? "" : "s", f.warnings.size(), f.warnings.size() == 1 ? "" : "s",
                 result.good ? "good to start" : "it would not work");
  return result;
}

}  // namespace pgf
