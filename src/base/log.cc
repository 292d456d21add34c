#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>

namespace pgf {
namespace {

constexpr std::array<std::string_view, 6> kNames{"FATAL", "ERROR", "WARNING", "LOG", "DEBUG", "NOISE"};

int facility(std::string_view name) {
  if (name == "auth") return LOG_AUTH;
  if (name == "authpriv") return LOG_AUTHPRIV;
  if (name == "user") return LOG_USER;
  if (name.size() == 6 && name.starts_with("local") && name[5] >= '0' && name[5] <= '7')
    return LOG_LOCAL0 + ((name[5] - '0') << 3);
  return LOG_DAEMON;
}

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // a full disk or a closed pipe costs the line, not the program
    text.remove_prefix(static_cast<std::size_t>(n));
  }
}

// A datagram socket to the system's log, or -1.
int connect_syslog() {
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  std::string_view path = "/dev/log";
  path.copy(to.sun_path, sizeof to.sun_path - 1);
  int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0) return fd;
  ::close(fd);
  return -1;
}

// Date and zone as text, made anew once a second: localtime_r takes a lock of the C library and reads the zone rules.
struct Stamp {
  time_t second = -1;
  char date[64] = "", zone[16] = "", syslog[32] = "";
};

const Stamp& stamp(time_t second) {
  thread_local Stamp s;
  if (s.second != second) {
    tm local;
    localtime_r(&second, &local);
    strftime(s.date, sizeof s.date, "%Y-%m-%d %H:%M:%S", &local);
    strftime(s.zone, sizeof s.zone, "%Z", &local);
    strftime(s.syslog, sizeof s.syslog, "%b %e %H:%M:%S", &local);
    s.second = second;
  }
  return s;
}

}  // namespace

Log::~Log() {
  if (fd_ >= 0) ::close(fd_);
  if (syslog_fd_ >= 0) ::close(syslog_fd_);
}

std::string Log::open(const LogTarget& target) {
  int fd = -1;
  if (!target.file.empty()) {
    fd = ::open(target.file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0) return fmt::format("could not open log file {}: {}", target.file, strerror(errno));
  }
  std::lock_guard lock(mutex_);
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
  target_ = target;
  if (syslog_fd_ >= 0) ::close(syslog_fd_);
  syslog_fd_ = target.to_syslog ? connect_syslog() : -1;
  max_level_.store(static_cast<int>(LogLevel::log) + std::min(target.verbose, 2), std::memory_order_relaxed);
  return {};
}

void Log::write(LogLevel level, std::string_view message) {
  timeval now;
  gettimeofday(&now, nullptr);
  const Stamp& at = stamp(now.tv_sec);
  static constexpr int kPriorities[] = {LOG_CRIT, LOG_ERR, LOG_WARNING, LOG_INFO, LOG_DEBUG, LOG_DEBUG};
  const std::size_t index = static_cast<std::size_t>(level);
  std::string line = fmt::format("{}.{:03} {} [{}] {} ", at.date, now.tv_usec / 1000, at.zone, getpid(), kNames[index]);
  const std::size_t head = line.size();
  for (char c : message) {
    line += c;
    if (c == '\n') line += '\t';
  }
  line += '\n';

  std::lock_guard lock(mutex_);
  if (fd_ >= 0) write_all(fd_, line);
  if (target_.to_stderr && target_.journal)
    write_all(STDERR_FILENO, fmt::format("<{}>{}", kPriorities[index], std::string_view(line).substr(head)));
  else if (target_.to_stderr)
    write_all(STDERR_FILENO, line);
  if (target_.to_syslog && level <= LogLevel::log)
    send_syslog(fmt::format("<{}>{} {}[{}]: {}", facility(target_.syslog_facility) | kPriorities[index], at.syslog,
                            target_.syslog_ident, getpid(), message));
}

// Not syslog(3): that waits while the queue of the reader is full, and all workers would wait with it.
void Log::send_syslog(std::string_view text) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (syslog_fd_ >= 0) {
      if (::send(syslog_fd_, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 || errno == EAGAIN) return;
      ::close(syslog_fd_);  // who listened there is gone; perhaps somebody else does now
    }
    syslog_fd_ = connect_syslog();
  }
}

}  // namespace pgf
