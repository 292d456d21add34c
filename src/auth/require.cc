#include "auth/require.h"

#include <fmt/format.h>

namespace pgf::auth {
namespace {

struct Method {
  std::string_view name;
  AskedFor bit;
  std::string_view asks;
};
constexpr Method kMethods[] = {{"none", AskedFor::nothing, "asks for no password"},
                               {"password", AskedFor::password, "asks for the password in clear"},
                               {"md5", AskedFor::md5, "asks for an md5 hash"},
                               {"scram-sha-256", AskedFor::scram, "asks for SCRAM-SHA-256"},
                               {"gss", AskedFor::gss, "asks for GSSAPI"},
                               {"sspi", AskedFor::sspi, "asks for SSPI"}};

const Method* find(std::string_view name) {
  for (const Method& m : kMethods)
    if (m.name == name) return &m;
  return nullptr;
}

}  // namespace

std::optional<RequireAuth> RequireAuth::parse(std::string_view list) {
  RequireAuth r;
  r.text_ = list;
  if (list.empty()) return r;
  const bool negated = list.starts_with('!');
  std::uint8_t named = 0;
  for (bool more = true; more;) {
    std::size_t comma = list.find(',');
    std::string_view name = list.substr(0, comma);
    more = comma != std::string_view::npos;
    if (more) list.remove_prefix(comma + 1);
    if (name.starts_with('!') != negated) return {};
    if (negated) name.remove_prefix(1);
    const Method* method = find(name);
    if (!method) return {};
    const auto bit = static_cast<std::uint8_t>(method->bit);
    if (named & bit) return {};
    named |= bit;
  }
  r.allowed_ = negated ? static_cast<std::uint8_t>(~named) : named;
  return r;
}

std::string RequireAuth::refusal(AskedFor method) const {
  std::string_view asks;
  for (const Method& m : kMethods)
    if (m.bit == method) asks = m.asks;
  return fmt::format("server {}, which require_auth={} forbids", asks, text_);
}

}  // namespace pgf::auth
