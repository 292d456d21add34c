#include "auth/scram_keys.h"

#include <algorithm>

#include "auth/saslprep.h"

namespace pgf::auth {

crypto::Digest salt_password(std::string_view password, std::string_view salt, int iterations) {
  return crypto::pbkdf2_sha256(saslprep(password), as_bytes(salt), iterations);
}

std::string random_nonce() {
  std::array<std::uint8_t, 18> raw;
  crypto::random_bytes(raw);
  return crypto::base64(raw);
}

ScramSecret derive_scram(std::string_view password, int iterations) {
  std::array<std::uint8_t, 16> salt;
  crypto::random_bytes(salt);
  ScramSecret secret;
  secret.iterations = std::max(iterations, 1);
  secret.salt = as_text(salt);
  auto salted = salt_password(password, secret.salt, secret.iterations);
  secret.stored_key = crypto::sha256({salted_to_client_key(salted)});
  secret.server_key = salted_to_server_key(salted);
  return secret;
}

ScramSecret mock_scram(std::string_view user, int iterations, std::span<const std::uint8_t, 32> process_key) {
  ScramSecret secret;
  secret.iterations = std::max(iterations, 1);
  secret.salt = as_text(Bytes(crypto::sha256({as_bytes(user), process_key})).first(16));
  // Nobody knows a password for these keys, and ScramServer's `genuine` does not depend on that.
  secret.stored_key = crypto::hmac_sha256(process_key, {as_bytes("stored key "), as_bytes(user)});
  secret.server_key = crypto::hmac_sha256(process_key, {as_bytes("server key "), as_bytes(user)});
  return secret;
}

}  // namespace pgf::auth
