#include <algorithm>
#include <charconv>

#include "auth/exchange.h"
#include "crypto/crypto.h"

namespace pgf::auth {
namespace {

bool is_md5(std::string_view stored) {
  return stored.size() == 35 && stored.starts_with("md5") &&
         stored.find_first_not_of("0123456789abcdef", 3) == std::string_view::npos;
}

// Cuts `text` at the first `separator` and returns what was before it.
std::optional<std::string_view> cut(std::string_view& text, char separator) {
  std::size_t at = text.find(separator);
  if (at == std::string_view::npos) return std::nullopt;
  std::string_view head = text.substr(0, at);
  text.remove_prefix(at + 1);
  return head;
}

bool decode_key(std::string_view text, std::array<std::uint8_t, 32>& key) {
  std::string raw;
  if (!crypto::base64_decode(text, raw) || raw.size() != key.size()) return false;
  std::ranges::copy(as_bytes(raw), key.begin());
  return true;
}

// SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>
std::optional<ScramSecret> parse_scram(std::string_view text) {
  if (cut(text, '$') != "SCRAM-SHA-256") return std::nullopt;
  auto iterations = cut(text, ':');
  auto salt = cut(text, '$');
  auto stored_key = cut(text, ':');
  if (!iterations || !salt || !stored_key) return std::nullopt;

  ScramSecret secret;
  const char* end = iterations->data() + iterations->size();
  auto [stop, error] = std::from_chars(iterations->data(), end, secret.iterations);
  if (error != std::errc{} || stop != end || secret.iterations < 1) return std::nullopt;
  if (!crypto::base64_decode(*salt, secret.salt) || secret.salt.empty()) return std::nullopt;
  if (!decode_key(*stored_key, secret.stored_key) || !decode_key(text, secret.server_key)) return std::nullopt;
  return secret;
}

}  // namespace

Secret parse_secret(std::string_view stored) {
  Secret secret;
  if (stored.empty()) return secret;
  if (auto scram = parse_scram(stored)) {
    secret.kind = Secret::Kind::scram;
    secret.scram = std::move(*scram);
    return secret;
  }
  secret.kind = is_md5(stored) ? Secret::Kind::md5 : Secret::Kind::plain;
  secret.text = stored;
  return secret;
}

}  // namespace pgf::auth
