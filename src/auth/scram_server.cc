#include <algorithm>
#include <utility>

#include "auth/attributes.h"
#include "auth/scram_keys.h"

namespace pgf::auth {
namespace {

// One text for everything: what was wrong is nothing for a stranger to know.
std::unexpected<std::string> refused() { return std::unexpected<std::string>("SASL authentication failed"); }

}  // namespace

ScramServer::ScramServer(ScramSecret secret, bool genuine, std::string server_nonce)
    : secret_(std::move(secret)), genuine_(genuine), nonce_(std::move(server_nonce)) {}

std::expected<std::string, std::string> ScramServer::first(Bytes initial_response) {
  if (std::exchange(step_, Step::over) != Step::first) return refused();

  Cursor body(initial_response);
  std::string_view mechanism = body.cstr();
  if (!body.ok()) return refused();
  bound_ = mechanism == kScramPlusMechanism && !binding_.empty();
  if (mechanism != kScramMechanism && !bound_) {
    return std::unexpected("client selected an invalid SASL authentication mechanism");
  }
  std::int32_t length = body.i32();  // -1: the client has nothing to say yet, which SCRAM does not know
  if (!body.ok() || length < 0 || static_cast<std::size_t>(length) != body.rest().size()) return refused();

  // The gs2 header: `p` = bound to the channel, `n` = not, `y` = the client could, but saw no offer. If we made one,
  // somebody in between took it away. Then an empty authzid: acting for another user is not on offer.
  std::string_view message = as_text(body.rest());
  std::string_view header = bound_ ? kBoundHeader : message.starts_with("y") && binding_.empty() ? "y,," : "n,,";
  if (!message.starts_with(header)) return refused();
  std::string_view bare = message.substr(header.size());

  AttributeReader in(bare);
  in.read('n');  // ignored: the startup packet named the user
  std::string_view client_nonce = in.read('r');
  in.skip_extensions();
  if (!in.at_end() || !is_nonce(client_nonce)) return refused();

  gs2_header_ = header;
  client_first_bare_ = bare;
  if (nonce_.empty()) nonce_ = random_nonce();
  nonce_.insert(0, client_nonce);
  server_first_ =
      "r=" + nonce_ + ",s=" + crypto::base64(as_bytes(secret_.salt)) + ",i=" + std::to_string(secret_.iterations);
  step_ = Step::final;
  return server_first_;
}

std::expected<std::string, std::string> ScramServer::final(Bytes response) {
  if (std::exchange(step_, Step::over) != Step::final) return refused();

  AttributeReader in(as_text(response));
  bool same_binding = in.read('c') == crypto::base64(as_bytes(bound_ ? gs2_header_ + binding_ : gs2_header_));
  bool same_nonce = in.read('r') == nonce_;
  in.skip_extensions();
  std::string_view without_proof = in.consumed();
  std::string proof_bytes;
  bool decoded = crypto::base64_decode(in.read('p'), proof_bytes);
  crypto::Digest proof;
  if (!in.at_end() || !same_binding || !same_nonce || !decoded || proof_bytes.size() != proof.size()) return refused();
  std::ranges::copy(as_bytes(proof_bytes), proof.begin());

  // A mock exchange does the same work and fails only at the end, so that time tells nothing about users.
  auto sign = [&](const crypto::Digest& key) {
    return crypto::hmac_sha256(key, {as_bytes(client_first_bare_), as_bytes(","), as_bytes(server_first_),
                                     as_bytes(","), as_bytes(without_proof)});
  };
  crypto::Digest client_key = xor_digests(proof, sign(secret_.stored_key));
  bool right = crypto::equal_constant_time(crypto::sha256({client_key}), secret_.stored_key);
  std::string server_final = "v=" + crypto::base64(sign(secret_.server_key));
  if (!right || !genuine_) return refused();
  keys_ = {client_key, secret_.server_key};
  return server_final;
}

}  // namespace pgf::auth
