#include "auth/ldap_options.h"

#include <algorithm>

#include "base/bytes.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace pgf;
  std::string_view text = as_text({data, size});
  std::size_t cut = std::min(text.find('\x01'), text.size());
  std::string_view user = text.substr(0, cut);
  auto options = auth::parse_ldap_options(text.substr(std::min(cut + 1, text.size())));
  if (!options) return options.error().empty() ? __builtin_trap(), 0 : 0;
  if (!auth::check_ldap_options(*options).empty()) return 0;
  auto filter = auth::ldap_filter(*options, user);
  // A name must not bring parentheses of its own.
  std::string_view shape = options->search_filter ? std::string_view(*options->search_filter) : "()";
  auto count = [](std::string_view s) { return std::ranges::count(s, '(') - std::ranges::count(s, ')'); };
  if (filter && !options->search_attribute && count(*filter) != count(shape)) __builtin_trap();
  return 0;
}
