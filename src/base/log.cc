#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/time.h>
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

// Date and zone as text, made anew once a second: localtime_r takes a lock of the C library and reads the zone rules.
struct Stamp {
  time_t second = -1;
  char date[64] = "", zone[16] = "";
};

const Stamp& stamp(time_t second) {
  thread_local Stamp s;
  if (s.second != second) {
    tm local;
    localtime_r(&second, &local);
    strftime(s.date, sizeof s.date, "%Y-%m-%d %H:%M:%S", &local);
    strftime(s.zone, sizeof s.zone, "%Z", &local);
    s.second = second;
  }
  return s;
}

}  // namespace

Log::~Log() {
  if (fd_ >= 0) ::close(fd_);
  if (syslog_open_) closelog();
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
  if (syslog_open_) closelog();
  target_ = target;
  syslog_open_ = target.to_syslog;
  if (syslog_open_) openlog(target_.syslog_ident.c_str(), LOG_PID, facility(target_.syslog_facility));
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
  if (syslog_open_ && level <= LogLevel::log) {
    syslog(kPriorities[index], "%.*s", static_cast<int>(message.size()), message.data());
  }
}

}  // namespace pgf
