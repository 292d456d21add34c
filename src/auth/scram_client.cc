#include <charconv>
#include <utility>

#include "auth/attributes.h"
#include "auth/scram_keys.h"

namespace pgf::auth {
namespace {

constexpr std::size_t kMaxSalt = 1024;

std::unexpected<std::string> malformed() { return std::unexpected<std::string>("malformed SCRAM message from server"); }

// False if the list is broken or does not offer it.
bool offers(Bytes mechanisms, std::string_view wanted) {
  Cursor in(mechanisms);
  bool found = false;
  for (std::string_view name = in.cstr(); in.ok() && !name.empty(); name = in.cstr()) found |= name == wanted;
  return in.at_end() && found;
}

// 0 if it is no number, or one that we refuse.
int parse_iterations(std::string_view text) {
  int iterations = 0;
  auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), iterations);
  bool valid = error == std::errc{} && stop == text.data() + text.size();
  return valid && iterations >= 1 && iterations <= kMaxScramIterations ? iterations : 0;
}

}  // namespace

ScramClient::ScramClient(std::string password, std::string client_nonce)
    : password_(std::move(password)), nonce_(std::move(client_nonce)) {}

ScramClient::ScramClient(const ScramKeys& keys, std::string client_nonce)
    : keys_(keys), nonce_(std::move(client_nonce)) {}

std::expected<std::string, std::string> ScramClient::start(Bytes mechanisms) {
  if (std::exchange(step_, Step::over) != Step::start) return malformed();
  bool bound = !binding_.empty() && offers(mechanisms, kScramPlusMechanism);
  if (!bound && !offers(mechanisms, kScramMechanism)) {
    return std::unexpected("none of the server's SASL authentication mechanisms are supported");
  }
  if (nonce_.empty()) nonce_ = random_nonce();
  client_first_bare_ = "n=,r=" + nonce_;  // the server takes the user from the startup packet

  // `y` tells a server whose offer of the other mechanism was lost on the way that it was.
  gs2_header_ = bound ? kBoundHeader : binding_.empty() ? "n,," : "y,,";
  if (!bound) binding_.clear();
  std::string body(bound ? kScramPlusMechanism : kScramMechanism);
  body += '\0';
  std::array<std::uint8_t, 4> length;
  store_be32(length.data(), static_cast<std::uint32_t>(gs2_header_.size() + client_first_bare_.size()));
  body += as_text(length);
  body += gs2_header_;
  body += client_first_bare_;
  step_ = Step::respond;
  return body;
}

std::expected<std::string, std::string> ScramClient::respond(Bytes server_first) {
  if (std::exchange(step_, Step::over) != Step::respond) return malformed();

  AttributeReader in(as_text(server_first));
  std::string_view nonce = in.read('r');
  std::string_view salt_text = in.read('s');
  std::string_view iterations_text = in.read('i');
  in.skip_extensions();
  // The server must add something of its own, or an old exchange could be played back to us.
  if (!in.at_end() || !is_nonce(nonce) || !nonce.starts_with(nonce_) || nonce.size() == nonce_.size()) {
    return malformed();
  }
  std::string salt;
  if (!crypto::base64_decode(salt_text, salt) || salt.empty() || salt.size() > kMaxSalt) return malformed();
  int iterations = parse_iterations(iterations_text);
  if (iterations == 0) return malformed();

  if (password_) {
    auto salted = salt_password(*password_, salt, iterations);
    keys_ = {salted_to_client_key(salted), salted_to_server_key(salted)};
    password_.reset();
  }
  std::string response = "c=" + crypto::base64(as_bytes(gs2_header_ + binding_)) + ",r=";
  response += nonce;
  auth_message_ = client_first_bare_ + ",";
  auth_message_ += as_text(server_first);
  auth_message_ += "," + response;

  crypto::Digest stored_key = crypto::sha256({keys_.client_key});
  crypto::Digest signature = crypto::hmac_sha256(stored_key, {as_bytes(auth_message_)});
  response += ",p=" + crypto::base64(xor_digests(keys_.client_key, signature));
  step_ = Step::finish;
  return response;
}

std::expected<void, std::string> ScramClient::finish(Bytes server_final) {
  // The server's own `e=` text is not repeated: what is returned here reaches clients that are not logged in yet.
  auto broken = [] { return std::unexpected<std::string>("failed to verify server signature"); };
  if (std::exchange(step_, Step::over) != Step::finish) return broken();

  AttributeReader in(as_text(server_final));
  std::string signature;
  bool decoded = crypto::base64_decode(in.read('v'), signature);
  in.skip_extensions();
  if (!in.at_end() || !decoded || signature.size() != sizeof(crypto::Digest)) return broken();
  crypto::Digest expected = crypto::hmac_sha256(keys_.server_key, {as_bytes(auth_message_)});
  if (!crypto::equal_constant_time(as_bytes(signature), expected)) return std::unexpected("invalid server signature");
  verified_ = true;
  return {};
}

}  // namespace pgf::auth
