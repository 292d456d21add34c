#include <algorithm>
#include <cstdlib>

#include "base/bytes.h"
#include "net/dns_channel.h"

// What is read of a resolv.conf stays within its limits, and comes from lines of the file.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace pgf;
  const std::string_view text = as_text({data, size});
  const net::ResolvConf conf = net::read_resolv_conf(text);
  if (conf.timeout_ms < 1 || conf.timeout_ms > 30'000 || conf.tries < 1 || conf.tries > 5) std::abort();
  for (std::string_view rest = conf.servers; !rest.empty();) {
    const std::size_t end = std::min(rest.find(','), rest.size());
    if (!text.contains(rest.substr(0, end))) std::abort();
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return 0;
}
