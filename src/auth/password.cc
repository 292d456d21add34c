// Passwords that arrive whole: in clear text, or hashed for the md5 method.
#include "auth/scram_keys.h"

namespace pgf::auth {
namespace {

// By way of their hashes, so that not even the length of the right text shows.
bool equal_texts(std::string_view a, std::string_view b) {
  return crypto::equal_constant_time(crypto::sha256({as_bytes(a)}), crypto::sha256({as_bytes(b)}));
}

}  // namespace

std::string md5_stored(std::string_view password, std::string_view user) {
  return "md5" + crypto::md5_hex({as_bytes(password), as_bytes(user)});
}

std::string md5_answer(std::string_view stored_md5, std::span<const std::uint8_t, 4> salt) {
  if (stored_md5.starts_with("md5")) stored_md5.remove_prefix(3);
  return "md5" + crypto::md5_hex({as_bytes(stored_md5), salt});
}

bool check_md5(const Secret& secret, std::string_view user, std::span<const std::uint8_t, 4> salt,
               std::string_view answer) {
  bool usable = secret.kind == Secret::Kind::plain || secret.kind == Secret::Kind::md5;
  std::string stored = secret.kind == Secret::Kind::md5 ? secret.text : md5_stored(secret.text, user);
  bool equal = crypto::equal_constant_time(as_bytes(md5_answer(stored, salt)), as_bytes(answer));
  return usable && equal;
}

bool check_plain(const Secret& secret, std::string_view user, std::string_view password) {
  if (password.empty() || password.contains('\0')) return false;
  switch (secret.kind) {
    case Secret::Kind::none:
      return false;
    case Secret::Kind::plain:
      return equal_texts(password, secret.text);
    case Secret::Kind::md5:
      return equal_texts(md5_stored(password, user), secret.text);
    case Secret::Kind::scram: {
      const ScramSecret& scram = secret.scram;
      if (scram.iterations < 1 || scram.iterations > kMaxScramIterations) return false;
      auto salted = salt_password(password, scram.salt, scram.iterations);
      return crypto::equal_constant_time(salted_to_server_key(salted), scram.server_key);
    }
  }
  return false;
}

}  // namespace pgf::auth
