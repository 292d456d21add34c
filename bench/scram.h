#pragma once
// The client's half of MD5 and SCRAM-SHA-256 password authentication (RFC 5802, 7677), on OpenSSL's primitives.
#include <string>
#include <string_view>

namespace bench {

std::string md5_password(std::string_view user, std::string_view password, std::string_view salt);

class ScramClient {
 public:
  explicit ScramClient(std::string_view password) : password_(password) {}
  std::string first();                               // client-first-message
  std::string final(std::string_view server_first);  // client-final-message; empty: nonsense from the server
  bool verify(std::string_view server_final) const;

 private:
  std::string password_, nonce_, auth_message_, server_key_;
};

}  // namespace bench
