#include "main/process.h"

#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <optional>

#include "base/cgroup.h"
#include "config/value.h"
#include "net/socket.h"

namespace pgf {

bool read_file(const std::string& path, std::string& text, std::string& error) {
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    error = strerror(errno);
    return false;
  }
  text.clear();
  char buffer[16384];
  ssize_t n;
  while ((n = ::read(fd, buffer, sizeof buffer)) > 0) text.append(buffer, static_cast<std::size_t>(n));
  if (n < 0) error = strerror(errno);
  ::close(fd);
  return n == 0;
}

std::string become_user(const std::string& name) {
  if (name.empty()) return {};
  passwd* pw = getpwnam(name.c_str());
  if (!pw) return fmt::format("could not find user '{}' to switch to", name);
  if (pw->pw_uid == geteuid()) return {};
  if (setgroups(0, nullptr) < 0 || setgid(pw->pw_gid) < 0 || setuid(pw->pw_uid) < 0)
    return fmt::format("could not switch to user '{}': {}", name, strerror(errno));
  return {};
}

std::string daemonize() {
  int null = ::open("/dev/null", O_RDWR);
  if (null < 0) return fmt::format("could not open /dev/null: {}", strerror(errno));
  for (int fd : {0, 1, 2}) dup2(null, fd);
  if (null > 2) ::close(null);
  for (int step = 0; step < 2; ++step) {
    pid_t pid = fork();
    if (pid < 0) return fmt::format("fork failed: {}", strerror(errno));
    if (pid > 0) _exit(0);
    if (step == 0) setsid();
  }
  return {};
}

std::string check_pidfile(const std::string& path, Log& log) {
  if (path.empty() || ::access(path.c_str(), F_OK) < 0) return {};
  std::string text, error;
  std::string running = fmt::format("pidfile '{}' exists, another instance running?", path);
  if (!read_file(path, text, error)) return running;
  long pid = std::strtol(text.c_str(), nullptr, 10);
  if (pid <= 0) return running;
  if (kill(static_cast<pid_t>(pid), 0) == 0 || errno != ESRCH) return running;
  log(LogLevel::log, "stale pidfile, removing");
  if (unlink(path.c_str()) < 0) return fmt::format("could not remove pidfile '{}': {}", path, strerror(errno));
  return {};
}

std::string write_pidfile(const std::string& path) {
  if (path.empty()) return {};
  int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return fmt::format("could not open pidfile '{}': {}", path, strerror(errno));
  std::string text = fmt::format("{}\n", getpid());
  const ssize_t written = ::write(fd, text.data(), text.size());
  const int error = written < 0 ? errno : written < static_cast<ssize_t>(text.size()) ? ENOSPC : 0;
  ::close(fd);
  if (!error) return {};
  unlink(path.c_str());  // half of one would keep the next process from starting
  return fmt::format("could not write pidfile '{}': {}", path, strerror(error));
}

void remove_pidfile(const std::string& path) {
  if (!path.empty()) unlink(path.c_str());
}

int usable_cores() {
  cpu_set_t set;
  int cores =
      sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  const double quota = cgroup_cores([](const std::string& path) -> std::optional<std::string> {
    std::string text, error;
    return read_file(path, text, error) ? std::optional(text) : std::nullopt;
  });
  if (quota > 0 && quota < cores) cores = static_cast<int>(std::ceil(quota));
  return std::max(1, cores);
}

long expected_descriptors(const config::Config& config) {
  const config::Settings& s = config.settings;
  long servers = 0;
  for (const auto& [name, db] : config.databases) {
    config::PoolPolicy p = config::resolve(config, db, db.user.value_or(""));
    long pools = db.user ? 1 : std::max<long>(1, static_cast<long>(config.passwords.size()));
    long want = pools * (p.pool_size + p.reserve_pool_size);
    servers += p.max_db_connections > 0 ? std::min<long>(want, p.max_db_connections) : want;
  }
  return s.max_client_conn + servers + 10;
}

bool leak_checked() {
#ifdef __SANITIZE_ADDRESS__
  return true;
#else
  return false;
#endif
}

Listeners::~Listeners() {
  for (auto& worker : tcp_)
    for (int fd : worker) ::close(fd);
  for (int fd : local_) ::close(fd);
}

std::string unix_socket_path(const config::Settings& s) {
  return fmt::format("{}/.s.PGSQL.{}", s.unix_socket_dir, s.listen_port);
}

// An address may still be in use by a process that was killed: the kernel takes a moment to tear down its rings, and
// they hold its listening sockets.
static constexpr int kTries = 20;
static constexpr useconds_t kBetweenTries = 50'000;

std::string Listeners::open(const config::Settings& s, int workers, Log& log) {
  tcp_.resize(static_cast<std::size_t>(workers));
  net::ListenOptions options;
  options.backlog = static_cast<int>(s.listen_backlog);
  options.defer_accept = s.tcp_defer_accept ? 1 : 0;  // seconds: a silent socket must still meet client_login_timeout
  bool wanted = false;
  for (const std::string& host : config::split_list(s.listen_addr)) {
    auto addresses = net::listen_addresses(host, static_cast<std::uint16_t>(s.listen_port));
    if (!addresses) return fmt::format("listen_addr: {}: {}", host, addresses.error());
    for (const net::Address& address : *addresses) {
      wanted = true;
      // Without so_reuseport the port must be ours alone: a first socket without the option finds out.
      if (!s.so_reuseport) {
        net::ListenOptions alone = options;
        alone.reuse_port = false;
        auto probe = net::listen_tcp(address, alone);
        for (int i = 0; i < kTries && !probe && probe.error().ends_with(strerror(EADDRINUSE)); ++i) {
          usleep(kBetweenTries);
          probe = net::listen_tcp(address, alone);
        }
        if (!probe) {
          log(LogLevel::warning, "cannot listen on {}: {}", net::format_address(address), probe.error());
          continue;
        }
        ::close(*probe);
      }
      bool failed = false;
      for (auto& worker : tcp_) {
        auto fd = net::listen_tcp(address, options);
        if (!fd) {
          log(LogLevel::warning, "cannot listen on {}: {}", net::format_address(address), fd.error());
          failed = true;
          break;
        }
        worker.push_back(*fd);
      }
      if (!failed) log(LogLevel::log, "listening on {}", net::format_address(address));
    }
  }
  if (wanted && tcp_[0].empty()) return "nowhere to listen on: all addresses of listen_addr failed";

  if (!s.unix_socket_dir.empty()) {
    std::string path = unix_socket_path(s);
    auto address = net::unix_address(path);
    if (!address) return fmt::format("failed to create unix socket: path too long: {}", path);
    bool file = path[0] != '@';
    if (file && ::access((path + ".lock").c_str(), F_OK) == 0)
      return fmt::format("unix port {} is in use", s.listen_port);
    bool in_use = true;
    for (int i = 0; i < kTries && in_use; ++i) {
      if (i > 0) usleep(kBetweenTries);
      int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
      in_use = connect(probe, address->get(), address->length) == 0;
      ::close(probe);
    }
    if (in_use) return "unix socket is in use, cannot continue";
    if (file) unlink(path.c_str());
    auto fd = net::listen_unix(*address, static_cast<mode_t>(s.unix_socket_mode), options);
    if (!fd) return fmt::format("failed to create unix socket: {}: {}", path, fd.error());
    local_.push_back(*fd);
    if (file) {
      socket_file_ = path;
      if (!s.unix_socket_group.empty()) {
        char* end;
        gid_t gid = static_cast<gid_t>(std::strtoul(s.unix_socket_group.c_str(), &end, 10));
        if (*end) {
          group* g = getgrnam(s.unix_socket_group.c_str());
          if (!g) return fmt::format("unix_socket_group: no such group: {}", s.unix_socket_group);
          gid = g->gr_gid;
        }
        if (chown(path.c_str(), static_cast<uid_t>(-1), gid) < 0)
          return fmt::format("chown of {}: {}", path, strerror(errno));
      }
    }
    log(LogLevel::log, "listening on unix:{}", path);
  }
  if (tcp_[0].empty() && local_.empty()) return "nowhere to listen on";
  return {};
}

void Listeners::adopt(const std::vector<Given>& given, int workers) {
  tcp_.resize(static_cast<std::size_t>(workers));
  std::vector<int> tcp;
  for (const Given& g : given) {
    ::fcntl(g.fd, F_SETFL, ::fcntl(g.fd, F_GETFL) | O_NONBLOCK);
    ::fcntl(g.fd, F_SETFD, FD_CLOEXEC);
    (g.is_unix ? local_ : tcp).push_back(g.fd);
  }
  if (tcp.empty()) return;
  // Every socket has somebody who accepts from it, and every worker has one to accept from, if it must be a shared one.
  for (std::size_t i = 0; i < std::max(tcp.size(), tcp_.size()); ++i) {
    int fd = i < tcp.size() ? tcp[i] : ::fcntl(tcp[i % tcp.size()], F_DUPFD_CLOEXEC, 0);
    if (fd >= 0) tcp_[i % tcp_.size()].push_back(fd);
  }
}

void Listeners::stop() {
  for (auto& worker : tcp_)
    for (int fd : worker) ::shutdown(fd, SHUT_RDWR);
  if (!socket_file_.empty()) unlink(socket_file_.c_str());
}

std::expected<std::vector<int>, std::string> open_metrics(const config::Settings& settings) {
  std::vector<int> fds;
  auto endpoint = config::parse_endpoint(settings.metrics_listen);
  if (!endpoint) return fds;
  auto failed = [&](const std::string& reason) {
    for (int fd : fds) ::close(fd);
    return std::unexpected(fmt::format("cannot listen on metrics_listen = {}: {}", settings.metrics_listen, reason));
  };
  auto addresses = net::listen_addresses(endpoint->host, endpoint->port);
  if (!addresses) return failed(addresses.error());
  for (const net::Address& address : *addresses) {
    auto fd = net::listen_tcp(address, {.reuse_port = settings.so_reuseport != 0});
    if (!fd) return failed(fd.error());
    fds.push_back(*fd);
  }
  return fds;
}

}  // namespace pgf
