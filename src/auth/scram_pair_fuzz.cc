// Both sides of a SCRAM exchange, with somebody in between who changes what he likes: unless every message arrives as
// it was sent, they do not both believe each other. First byte: what differs between the two sides.

#include "auth/exchange.h"
#include "base/fuzz_kit.h"
#include "crypto/crypto.h"

using pgf::must;

namespace {

// To the letter, but for the last character of a proof or signature: two of its bits mean nothing, and RFC 4648 (3.5)
// leaves it to the decoder whether to look at them. Ours does not.
bool same(const std::string& a, const std::string& b) {
  if (a == b) return true;
  const std::size_t name = a.starts_with("v=") ? 0 : a.rfind("p="), at = name + 2;
  if (name == std::string::npos || a.size() != b.size() || a.compare(0, at, b, 0, at) != 0) return false;
  std::string mine, others;
  return pgf::crypto::base64_decode(a.substr(at), mine) && pgf::crypto::base64_decode(b.substr(at), others) &&
         mine == others;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace pgf;
  Cursor in({data, size});
  const std::uint8_t flags = in.u8();
  const bool bound_server = flags & 1, bound_client = flags & 2, other_channel = flags & 4, other_password = flags & 8;
  const bool mock = flags & 16;
  bool touched = false;
  // position, byte, how many to cut, and so on
  auto meddle = [&](std::string message) {
    const std::string before = message;
    for (int n = in.u8() % 4; n > 0 && in.ok(); --n) {
      const std::size_t at = in.u8() % (message.size() + 1);
      const std::uint8_t what = in.u8();
      const std::string text(as_text(in.bytes(what & 15)));
      if (what & 16) message.erase(at, what >> 5);
      message.insert(at, text);
    }
    touched |= !same(message, before);
    return message;
  };

  auth::ScramSecret secret = auth::derive_scram("pencil", 1);
  auth::ScramServer server(secret, !mock, "server");
  auth::ScramClient client(other_password ? "pen" : "pencil", "client");
  if (bound_server) server.bind_channel("certificate");
  if (bound_client) client.bind_channel(other_channel ? "another" : "certificate");

  const std::string list =
      bound_server ? std::string("SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0", 34) : std::string("SCRAM-SHA-256\0\0", 15);
  // The list of mechanisms is under nobody's signature: that PLUS was taken from it is found out by the gs2 header.
  const std::string offered = meddle(list);
  touched = false;
  bool server_believes = false;
  if (auto first = client.start(as_bytes(offered))) {
    const std::string sent = meddle(*first);
    if (auto challenge = server.first(as_bytes(sent))) {
      if (auto answer = client.respond(as_bytes(meddle(*challenge)))) {
        auto verdict = server.final(as_bytes(meddle(*answer)));
        server_believes = verdict.has_value();
        if (verdict) (void)client.finish(as_bytes(meddle(*verdict)));
      }
    }
  }
  const bool alike = !mock && !other_password;
  must(!server_believes || alike);
  must(!client.verified() || server_believes);
  must(!server_believes || !(bound_server && bound_client && other_channel));
  if (bound_server && bound_client) must(!server_believes || offered.contains("SCRAM-SHA-256-PLUS"));
  must(!(server_believes && client.verified()) || !touched);
  // And if nobody meddles, they do.
  if (alike && !touched && offered == list && !(bound_server && bound_client && other_channel)) must(client.verified());
  return 0;
}
