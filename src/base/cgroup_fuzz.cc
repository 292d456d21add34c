// The files that `workers = auto` is made from. The input: /proc/self/cgroup, then what each cpu.max says, a line each.
#include "base/cgroup.h"

#include <cmath>
#include <cstdlib>

#include "base/bytes.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace pgf;
  std::string_view text = as_text({data, size});
  const std::size_t cut = std::min(text.find('\x01'), text.size());
  const std::string self(text.substr(0, cut));
  std::string_view limits = text.substr(std::min(cut + 1, text.size()));
  std::size_t reads = 0;
  bool root = false;
  const double cores = cgroup_cores([&](const std::string& path) -> std::optional<std::string> {
    if (path == "/proc/self/cgroup") return self;
    if (!path.starts_with("/sys/fs/cgroup/") && path != "/sys/fs/cgroup/cpu.max") std::abort();
    if (++reads > self.size() + 1) std::abort();  // it goes up, and comes to an end
    root |= path == "/sys/fs/cgroup/cpu.max";
    if (limits.empty()) return std::nullopt;
    const std::size_t end = std::min(limits.find('\n'), limits.size());
    std::string line(limits.substr(0, end));
    limits.remove_prefix(std::min(end + 1, limits.size()));
    return line;
  });
  if (!std::isfinite(cores) || cores < 0) std::abort();
  if (reads > 0 && !root) std::abort();
  return 0;
}
