// Rules are written by the administrator, and sometimes generated: whatever they hold, parsing ends, and what was not
// understood lets nobody in.
#include "auth/hba.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace pgf;
  std::string_view text = as_text({data, size});
  std::size_t cut = text.find('\x01');  // an ident file and an included one before the rules
  std::string_view ident = cut == std::string_view::npos ? std::string_view() : text.substr(0, cut);
  std::string_view rules = cut == std::string_view::npos ? text : text.substr(cut + 1);
  auth::IdentParsed maps = auth::parse_ident(ident);
  int reads = 0;
  auto read = [&](const std::string&) -> std::optional<std::string> {
    if (++reads > 100) return std::nullopt;
    return std::string(ident);
  };
  auth::HbaParsed parsed = auth::parse_hba(rules, "dir/hba", maps.maps, read);
  if (parsed.broken && parsed.warnings.empty()) __builtin_trap();
  const std::uint8_t v4[4] = {10, 1, 2, 3}, v6[16] = {0xfe, 0x80};
  for (Bytes address : {Bytes(v4), Bytes(v6), Bytes()}) {
    auth::HbaRequest request;
    request.local = address.empty();
    request.address = address;
    request.database = "db";
    request.user = "user";
    const auth::HbaRule* rule = parsed.hba.match(request);
    if (rule && (rule->type == auth::HbaRule::Type::local) != request.local) __builtin_trap();
    if (rule && rule->type == auth::HbaRule::Type::hostssl) __builtin_trap();
  }
  return 0;
}
