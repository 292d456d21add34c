#include "watch.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <string>

namespace bench {
namespace {

std::string slurp(const std::string& path) {
  std::string text;
  if (FILE* file = fopen(path.c_str(), "r")) {
    char block[4096];
    while (const std::size_t n = fread(block, 1, sizeof block, file)) text.append(block, n);
    fclose(file);
  }
  return text;
}

}  // namespace

Usage usage_of(int pid) {
  Usage usage;
  const std::string base = "/proc/" + std::to_string(pid);
  // schedstat counts nanoseconds per thread; stat only clock ticks, which is too coarse for a short run.
  if (DIR* tasks = opendir((base + "/task").c_str())) {
    while (const dirent* entry = readdir(tasks)) {
      if (entry->d_name[0] == '.') continue;
      unsigned long long ran = 0, waited = 0;
      if (sscanf(slurp(base + "/task/" + entry->d_name + "/schedstat").c_str(), "%llu %llu", &ran, &waited) == 2)
        usage.cpu_ns += ran, usage.wait_ns += waited;
    }
    closedir(tasks);
  }
  if (!usage.cpu_ns) {
    const std::string stat = slurp(base + "/stat");
    unsigned long long user = 0, system = 0;
    const std::size_t paren = stat.rfind(')');
    if (paren != std::string::npos &&
        sscanf(stat.c_str() + paren + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &user, &system) == 2)
      usage.cpu_ns = (user + system) * (1'000'000'000ull / static_cast<unsigned long long>(sysconf(_SC_CLK_TCK)));
  }
  const std::string status = slurp(base + "/status");
  unsigned long long kb = 0;
  const std::size_t at = status.find("VmRSS:");
  if (at != std::string::npos && sscanf(status.c_str() + at, "VmRSS: %llu", &kb) == 1) usage.rss_kb = kb;
  return usage;
}

}  // namespace bench
