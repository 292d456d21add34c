// Addresses of rules, against the C library's reading of them; and the masks behind them.
#include <arpa/inet.h>

#include <bit>
#include <cstdlib>
#include <cstring>
#include <string>

#include "auth/ip_literal.h"
#include "base/bytes.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace pgf;
  const std::string text(as_text({data, size}));
  std::array<std::uint8_t, 16> ours{}, theirs{};
  const std::size_t length = auth::parse_ip_literal(text, ours);
  if (length != 0 && length != 4 && length != 16) std::abort();
  std::size_t expected = 0;
  if (!text.contains('\0'))
    expected = ::inet_pton(AF_INET, text.c_str(), theirs.data()) == 1    ? 4
               : ::inet_pton(AF_INET6, text.c_str(), theirs.data()) == 1 ? 16
                                                                         : 0;
  if (length != expected || std::memcmp(ours.data(), theirs.data(), length) != 0) std::abort();

  for (std::size_t bytes : {4, 16}) {
    std::array<std::uint8_t, 16> mask{};
    if (!auth::parse_mask_bits(text, bytes, mask)) continue;
    int ones = 0;
    bool over = false;
    for (std::size_t i = 0; i < bytes; ++i) {
      if (over && mask[i] != 0) std::abort();  // leading ones, and nothing behind them
      if (std::countl_one(mask[i]) != std::popcount(mask[i])) std::abort();
      over |= mask[i] != 0xff;
      ones += std::popcount(mask[i]);
    }
    if (std::atoi(text.c_str()) != ones) std::abort();
  }
  return 0;
}
