#include "scram.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <stdlib.h>

namespace bench {
namespace {

const unsigned char* u8(std::string_view s) { return reinterpret_cast<const unsigned char*>(s.data()); }
unsigned char* u8(std::string& s) { return reinterpret_cast<unsigned char*>(s.data()); }

std::string md5_hex(std::string_view s) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned n = 0;
  EVP_Digest(s.data(), s.size(), digest, &n, EVP_md5(), nullptr);
  std::string hex;
  for (unsigned i = 0; i < n; ++i) {
    hex.push_back("0123456789abcdef"[digest[i] >> 4]);
    hex.push_back("0123456789abcdef"[digest[i] & 15]);
  }
  return hex;
}

std::string hmac(std::string_view key, std::string_view data) {
  std::string out(32, '\0');
  unsigned n = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), u8(data), data.size(), u8(out), &n);
  return out;
}

std::string base64(std::string_view s) {
  std::string out((s.size() + 2) / 3 * 4 + 1, '\0');
  out.resize(static_cast<std::size_t>(EVP_EncodeBlock(u8(out), u8(s), static_cast<int>(s.size()))));
  return out;
}

std::string unbase64(std::string_view s) {
  std::string out(s.size() / 4 * 3 + 3, '\0');
  const int n = EVP_DecodeBlock(u8(out), u8(s), static_cast<int>(s.size()));
  if (n < 0) return {};
  std::size_t size = static_cast<std::size_t>(n);
  for (std::size_t i = s.size(); i > 0 && s[i - 1] == '='; --i) --size;
  out.resize(size);
  return out;
}

// Attribute `name` of "r=..,s=..,i=..".
std::string_view attribute(std::string_view message, char name) {
  while (!message.empty()) {
    const std::string_view part = message.substr(0, message.find(','));
    if (part.size() > 1 && part[0] == name && part[1] == '=') return part.substr(2);
    message.remove_prefix(std::min(message.size(), part.size() + 1));
  }
  return {};
}

// PBKDF2 is thousands of hashes. All clients of a run share one password and, as a rule, one salt, and it is the
// pooler's cost that is measured: so remember the last answer.
const std::string& salted_password(std::string_view password, std::string_view salt, int iterations) {
  thread_local std::string key, value;
  std::string wanted(password);
  wanted.append(1, '\0').append(salt).append(1, '\0').append(std::to_string(iterations));
  if (key != wanted) {
    value.assign(32, '\0');
    PKCS5_PBKDF2_HMAC(password.data(), static_cast<int>(password.size()), u8(salt), static_cast<int>(salt.size()),
                      iterations, EVP_sha256(), 32, u8(value));
    key = wanted;
  }
  return value;
}

}  // namespace

std::string md5_password(std::string_view user, std::string_view password, std::string_view salt) {
  return "md5" + md5_hex(md5_hex(std::string(password).append(user)).append(salt));
}

std::string ScramClient::first() {
  std::string raw(18, '\0');
  RAND_bytes(u8(raw), static_cast<int>(raw.size()));
  nonce_ = base64(raw);
  return "n,,n=,r=" + nonce_;
}

std::string ScramClient::final(std::string_view server_first) {
  const std::string_view nonce = attribute(server_first, 'r');
  const std::string salt = unbase64(attribute(server_first, 's'));
  const int iterations = atoi(std::string(attribute(server_first, 'i')).c_str());
  if (!nonce.starts_with(nonce_) || salt.empty() || iterations < 1) return {};
  const std::string& salted = salted_password(password_, salt, iterations);
  const std::string client_key = hmac(salted, "Client Key");
  std::string stored(32, '\0');
  SHA256(u8(client_key), client_key.size(), u8(stored));
  std::string without_proof = "c=biws,r=";
  without_proof.append(nonce);
  auth_message_ = "n=,r=" + nonce_ + ",";
  auth_message_.append(server_first).append(",").append(without_proof);
  std::string proof = hmac(stored, auth_message_);
  for (std::size_t i = 0; i < proof.size(); ++i) proof[i] = static_cast<char>(proof[i] ^ client_key[i]);
  server_key_ = hmac(salted, "Server Key");
  return without_proof + ",p=" + base64(proof);
}

bool ScramClient::verify(std::string_view server_final) const {
  return unbase64(attribute(server_final, 'v')) == hmac(server_key_, auth_message_);
}

}  // namespace bench
