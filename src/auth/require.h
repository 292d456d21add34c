#pragma once
// libpq's require_auth: which ways of asking for a password a server may use with us.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pgf::auth {

enum class AskedFor : std::uint8_t { nothing = 1, password = 2, md5 = 4, scram = 8, gss = 16, sspi = 32 };

class RequireAuth {
 public:
  // "scram-sha-256,md5", or "!password,!md5": one kind or the other, each method once (libpq's rules). Empty: anything.
  static std::optional<RequireAuth> parse(std::string_view list);

  bool allows(AskedFor method) const { return (allowed_ & static_cast<std::uint8_t>(method)) != 0; }
  const std::string& text() const { return text_; }  // as written
  // What the log and the client are told when `method` is not allowed.
  std::string refusal(AskedFor method) const;
  bool operator==(const RequireAuth&) const = default;

 private:
  std::string text_;
  std::uint8_t allowed_ = 0xff;
};

}  // namespace pgf::auth
