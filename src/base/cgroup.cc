#include "base/cgroup.h"

#include <cmath>
#include <cstdlib>

namespace pgf {
namespace {

// The group's path in the one hierarchy of version 2: the line "0::/path".
std::optional<std::string> own_group(const std::string& text) {
  std::size_t at = text.starts_with("0::/") ? 0 : text.find("\n0::/");
  if (at == std::string::npos) return std::nullopt;
  at = text.find('/', at);
  return text.substr(at, text.find('\n', at) - at);
}

// "QUOTA PERIOD", or "max PERIOD".
double cores_of(const std::string& text) {
  if (text.starts_with("max")) return 0;
  char* end;
  const double quota = std::strtod(text.c_str(), &end), period = std::strtod(end, nullptr);
  const double cores = quota / period;
  return quota > 0 && period > 0 && std::isfinite(cores) ? cores : 0;
}

}  // namespace

double cgroup_cores(const ReadText& read) {
  auto self = read("/proc/self/cgroup");
  auto path = self ? own_group(*self) : std::nullopt;
  if (!path) return 0;
  double least = 0;
  // Every group above may be the one that limits.
  while (!path->empty()) {
    if (path->back() == '/') {
      path->pop_back();
      continue;
    }
    auto text = read("/sys/fs/cgroup" + *path + "/cpu.max");
    if (double cores = text ? cores_of(*text) : 0; cores > 0 && (least == 0 || cores < least)) least = cores;
    path->resize(path->rfind('/'));
  }
  auto text = read("/sys/fs/cgroup/cpu.max");
  if (double cores = text ? cores_of(*text) : 0; cores > 0 && (least == 0 || cores < least)) least = cores;
  return least;
}

}  // namespace pgf
