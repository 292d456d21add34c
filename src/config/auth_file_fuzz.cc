#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "config/config.h"
#include "config/limits.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace pgf::config;
  std::string text(reinterpret_cast<const char*>(data), size);
  AuthFile result = parse_auth_file(text);
  for (const auto& [user, password] : result.passwords)
    if (user.size() > kMaxUserName || password.size() > kMaxPassword) std::abort();
  if (result.errors.size() > 1) std::abort();
  return 0;
}
