#pragma once
#include "auth/exchange.h"
#include "crypto/crypto.h"

namespace pgf::auth {

// RFC 5802 section 3. The salted password is all that is expensive; these two follow from it.
inline crypto::Digest salted_to_client_key(const crypto::Digest& salted) {
  return crypto::hmac_sha256(salted, {as_bytes("Client Key")});
}
inline crypto::Digest salted_to_server_key(const crypto::Digest& salted) {
  return crypto::hmac_sha256(salted, {as_bytes("Server Key")});
}
// PBKDF2 over the prepared password.
crypto::Digest salt_password(std::string_view password, std::string_view salt, int iterations);

// Masks the client key to make a proof, and unmasks a proof to get it back.
inline crypto::Digest xor_digests(const crypto::Digest& a, const crypto::Digest& b) {
  crypto::Digest out;
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = a[i] ^ b[i];
  return out;
}

// 18 random bytes as 24 characters of base64.
std::string random_nonce();

}  // namespace pgf::auth
