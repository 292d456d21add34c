#pragma once
#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <variant>

struct timeval;

namespace pgf {

enum class LogLevel : int { fatal = 0, error, warning, log, debug, noise };

struct LogTarget {
  std::string file;        // empty = none
  bool to_stderr = true;   // off with -q and -d
  bool journal = false;    // stderr is systemd's journal: priorities instead of time stamps
  bool to_syslog = false;  // level LOG and above
  std::string syslog_ident = "pgbouncer";
  std::string syslog_facility = "daemon";
  bool json = false;  // one JSON object a line instead of PgBouncer's format
  int verbose = 0;    // 0 = LOG, 1 = DEBUG, 2+ = NOISE
};

// A named value that a line has in JSON besides time, level, pid and message. docs/monitoring.md lists the names.
struct LogField {
  std::string_view name;
  std::variant<std::string_view, std::int64_t> value;
};

// PgBouncer's log: `YYYY-MM-DD HH:MM:SS.mmm TZ [PID] LEVEL MESSAGE`, one write() per line of up to 4 kB (append mode),
// embedded newlines become newline+tab, other control characters `\xNN`. Or JSON, if that is asked for. Any thread may
// call it, and none waits: what a file, a pipe or syslog's reader does not take at once is dropped; of files and pipes
// is said how much that was.
class Log {
 public:
  Log() = default;
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;
  ~Log();

  // (Re)opens the targets; returns an error text, or empty. On error the previous file stays open.
  std::string open(const LogTarget& target);

  bool enabled(LogLevel level) const { return static_cast<int>(level) <= max_level_.load(std::memory_order_relaxed); }
  // `prefix` is what PgBouncer's format has before the message; JSON has `fields` instead.
  void write(LogLevel level, std::string_view message, std::string_view prefix = {},
             std::span<const LogField> fields = {});

  template <class... A>
  void operator()(LogLevel level, fmt::format_string<A...> f, A&&... args) {
    if (enabled(level)) write(level, fmt::format(f, std::forward<A>(args)...));
  }

 private:
  // What was not written since the last line that was; `torn`: the last line ends in the middle.
  struct Losses {
    std::uint64_t lines = 0;
    bool torn = false;
  };
  void put(int fd, Losses& losses, const timeval& now, LogLevel level, std::string_view line, bool json);
  void send_syslog(std::string_view text);  // with mutex_ held

  std::mutex mutex_;
  LogTarget target_;
  int fd_ = -1;
  Losses file_losses_, stderr_losses_;
  int syslog_fd_ = -1;
  std::atomic<int> max_level_{static_cast<int>(LogLevel::log)};  // written by open() only
  std::atomic<bool> json_{false};                                // likewise
};

}  // namespace pgf
