#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/json.h"

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

// How much of it was written. A full disk or a closed pipe costs the line, not the program. A pipe whose reader stands
// still is not waited for: as long as it has room for PIPE_BUF bytes, a piece of that size does not block.
std::size_t write_now(int fd, std::string_view text) {
  std::size_t done = 0;
  while (done < text.size()) {
    pollfd room{fd, POLLOUT, 0};
    if (::poll(&room, 1, 0) == 0) break;
    ssize_t n = ::write(fd, text.data() + done, std::min<std::size_t>(text.size() - done, PIPE_BUF));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += static_cast<std::size_t>(n);
  }
  return done;
}

constexpr int kPriorities[] = {LOG_CRIT, LOG_ERR, LOG_WARNING, LOG_INFO, LOG_DEBUG, LOG_DEBUG};

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
  char date[64] = "", zone[16] = "", syslog[32] = "", iso[32] = "", offset[16] = "";
};

const Stamp& stamp(time_t second) {
  thread_local Stamp s;
  if (s.second != second) {
    tm local;
    localtime_r(&second, &local);
    strftime(s.date, sizeof s.date, "%Y-%m-%d %H:%M:%S", &local);
    strftime(s.zone, sizeof s.zone, "%Z", &local);
    strftime(s.syslog, sizeof s.syslog, "%b %e %H:%M:%S", &local);
    strftime(s.iso, sizeof s.iso, "%Y-%m-%dT%H:%M:%S", &local);
    strftime(s.offset, sizeof s.offset, "%z", &local);  // +hhmm; RFC 3339 wants +hh:mm
    if (std::string_view(s.offset).size() == 5) {
      s.offset[5] = s.offset[4];
      s.offset[4] = s.offset[3];
      s.offset[3] = ':';
    }
    s.second = second;
  }
  return s;
}

// A line in PgBouncer's format without what comes before its message.
std::string plain_line(std::string_view prefix, std::string_view message) {
  std::string line;
  line.reserve(prefix.size() + message.size() + 1);
  for (std::string_view part : {prefix, message})
    for (char c : part) {
      if (c == '\n')
        line += "\n\t";
      else if ((c >= 0 && c < ' ' && c != '\t') || c == 0x7f)
        line += fmt::format("\\x{:02x}", c);
      else
        line += c;
    }
  line += '\n';
  return line;
}

// ... in JSON, likewise; json_head() begins the object.
std::string json_line(std::string_view message, std::span<const LogField> fields) {
  std::string line = "\"message\":";
  append_json(line, message);
  for (const LogField& field : fields) {
    line += ',';
    append_json(line, field.name);
    line += ':';
    if (const auto* text = std::get_if<std::string_view>(&field.value))
      append_json(line, *text);
    else
      line += std::to_string(std::get<std::int64_t>(field.value));
  }
  line += "}\n";
  return line;
}

std::string json_head(const timeval& now, LogLevel level) {
  const Stamp& at = stamp(now.tv_sec);
  return fmt::format("{{\"time\":\"{}.{:03}{}\",\"level\":\"{}\",\"pid\":{},", at.iso, now.tv_usec / 1000, at.offset,
                     kNames[static_cast<std::size_t>(level)], getpid());
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
  json_.store(target.json, std::memory_order_relaxed);
  return {};
}

void Log::write(LogLevel level, std::string_view message, std::string_view prefix, std::span<const LogField> fields) {
  const bool json = json_.load(std::memory_order_relaxed);  // one look: no line is half of each
  const std::string line = json ? json_line(message, fields) : plain_line(prefix, message);

  timeval now;
  gettimeofday(&now, nullptr);
  std::lock_guard lock(mutex_);
  if (fd_ >= 0) put(fd_, file_losses_, now, level, line, json);
  if (target_.to_stderr) put(STDERR_FILENO, stderr_losses_, now, level, line, json);
  if (target_.to_syslog && level <= LogLevel::log)
    send_syslog(
        fmt::format("<{}>{} {}[{}]: {}{}", facility(target_.syslog_facility) | kPriorities[static_cast<int>(level)],
                    stamp(now.tv_sec).syslog, target_.syslog_ident, getpid(),
                    json ? json_head(now, level) : std::string(), std::string_view(line).substr(0, line.size() - 1)));
}

void Log::put(int fd, Losses& losses, const timeval& now, LogLevel level, std::string_view line, bool json) {
  const Stamp& at = stamp(now.tv_sec);
  auto head = [&](LogLevel l) {
    const bool journal = fd == STDERR_FILENO && target_.journal;
    std::string priority = journal ? fmt::format("<{}>", kPriorities[static_cast<int>(l)]) : std::string();
    if (json) return priority + json_head(now, l);
    if (journal) return priority;
    return fmt::format("{}.{:03} {} [{}] {} ", at.date, now.tv_usec / 1000, at.zone, getpid(),
                       kNames[static_cast<std::size_t>(l)]);
  };
  std::string text;
  if (losses.lines > 0) {
    const std::string said = fmt::format("{} lines of the log were lost", losses.lines);
    text = losses.torn ? "\n" : "";
    text += head(LogLevel::warning);
    text += json ? json_line(said, {}) : plain_line({}, said);
  }
  const std::size_t note = text.size();
  text += head(level);
  text += line;
  const std::size_t done = write_now(fd, text);
  if (done == text.size()) {
    losses = {};
  } else if (done < note || note == 0) {
    ++losses.lines;
    losses.torn |= done > 0;
  } else {  // the note is out, the line is not
    losses = {1, done > note};
  }
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
