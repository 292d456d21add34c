#include <cstdlib>

#include "net/socket.h"

// Addresses as settings write them: what is understood can be written and read again, and is the same.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace pgf;
  const std::string_view text = as_text({data, size});
  auto check = [](bool good) {
    if (!good) std::abort();
  };
  if (auto ip = net::parse_ip(text, 5432)) {
    check(!ip->is_unix() && ip->port() == 5432);
    const std::string host = net::format_host(*ip);
    auto again = net::parse_ip(host, 5432);
    check(again.has_value());
    // A zone is not written.
    if (!text.contains('%')) check(*again == *ip && net::format_host(*again) == host);
    check(net::format_address(*ip).ends_with(":5432"));
    const std::size_t bytes = net::address_bytes(*ip).size();
    check(bytes == 4 || bytes == 16);
  }
  if (auto address = net::unix_address(text)) {
    check(address->is_unix() && address->length <= sizeof(sockaddr_un) && address->port() == 0);
    check(net::address_bytes(*address).empty() && net::format_address(*address) == "unix");
    if (!text.contains('\0')) check(net::unix_path(*address) == text);
  }
  return 0;
}
