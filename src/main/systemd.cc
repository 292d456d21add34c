#include "main/systemd.h"

#include <sys/stat.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

#include <fmt/format.h>

namespace pgf {

std::vector<int> activation_sockets() {
  std::vector<int> fds;
  int n = sd_listen_fds(1);
  for (int i = 0; i < n; ++i) fds.push_back(SD_LISTEN_FDS_START + i);
  return fds;
}

void notify_manager(const std::string& state) { sd_notify(0, state.c_str()); }

Usec manager_patience() {
  std::uint64_t patience = 0;  // microseconds
  return sd_watchdog_enabled(0, &patience) > 0 ? static_cast<Usec>(patience) : 0;
}

bool stderr_is_journal() {
  const char* stream = std::getenv("JOURNAL_STREAM");
  struct stat s;
  return stream && fstat(STDERR_FILENO, &s) == 0 && fmt::format("{}:{}", s.st_dev, s.st_ino) == stream;
}

}  // namespace pgf
