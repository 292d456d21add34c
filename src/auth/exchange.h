#pragma once
// Authentication as bytes in, bytes out. Nothing here blocks or does I/O. Payloads are message bodies without type byte
// and length (the `R` body after the int32 code for what the server says; the `p` body for what the client says).
#include <array>
#include <cstdint>
#include <expected>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/bytes.h"

namespace pgf::auth {

// PBKDF2 is linear in the iterations, and whoever names their number (a server, or a role that sets its own secret)
// must not stall a worker: 100'000 take about 10 ms, PostgreSQL's default is 4096.
inline constexpr int kMaxScramIterations = 100'000;

// A stored secret, parsed (settings.md section 8, 11). Anything that does not parse fully as md5 or SCRAM is plain.
struct ScramSecret {
  int iterations = 0;
  std::string salt;  // raw bytes
  std::array<std::uint8_t, 32> stored_key{}, server_key{};
};
struct Secret {
  enum class Kind { none, plain, md5, scram } kind = Kind::none;
  std::string text;   // plain password, or "md5…" as stored
  ScramSecret scram;  // kind scram
};
Secret parse_secret(std::string_view stored);

// "md5" + hex(md5(password + user)), and the wire answer "md5" + hex(md5(stored hex + salt)).
std::string md5_stored(std::string_view password, std::string_view user);
std::string md5_answer(std::string_view stored_md5, std::span<const std::uint8_t, 4> salt);

// Is `answer` the right PasswordMessage for this md5 challenge? Never for kinds none and scram, at the same cost.
bool check_md5(const Secret& secret, std::string_view user, std::span<const std::uint8_t, 4> salt,
               std::string_view answer);

// Is this cleartext password right for the secret? Constant time in the compare. Never for an empty password, nor for
// a SCRAM secret of more than kMaxScramIterations. For an unknown user hand in a mock_scram() secret or kind none,
// whichever costs what the known ones cost.
bool check_plain(const Secret& secret, std::string_view user, std::string_view password);

// A verifier derived from a plain password: expensive (PBKDF2); callers cache it per user.
ScramSecret derive_scram(std::string_view password, int iterations);
// For unknown users: deterministic salt from the name and a per-process key, never matches.
ScramSecret mock_scram(std::string_view user, int iterations, std::span<const std::uint8_t, 32> process_key);

// Keys a SCRAM client login leaves behind, good for logging in to a server with the same stored secret.
struct ScramKeys {
  std::array<std::uint8_t, 32> client_key{}, server_key{};
};

// Server role: authenticates a pgflotilla client. The mechanism list offered is SCRAM-SHA-256, behind
// SCRAM-SHA-256-PLUS if bind_channel() was called.
class ScramServer {
 public:
  // `genuine` false = mock: the exchange runs to its end and then fails.
  // `server_nonce` is for tests with known answers: empty = random.
  ScramServer(ScramSecret secret, bool genuine, std::string server_nonce = {});
  // The hash of the certificate under which the client should have come (tls-server-end-point); empty = none.
  void bind_channel(std::string certificate_hash) { binding_ = std::move(certificate_hash); }
  // SASLInitialResponse body (mechanism cstr, int32 length, data) -> server-first-message, or the error text.
  std::expected<std::string, std::string> first(Bytes initial_response);
  // SASLResponse body -> server-final-message when the proof is right. Error text otherwise: always
  // "SASL authentication failed", or "client selected an invalid SASL authentication mechanism" (from first()).
  std::expected<std::string, std::string> final(Bytes response);
  const ScramKeys& keys() const { return keys_; }  // after a successful final()

 private:
  // Every call moves on or ends the exchange: a message out of turn, or after a failure, always fails.
  enum class Step { first, final, over } step_ = Step::first;
  ScramSecret secret_;
  bool genuine_;
  std::string nonce_;  // ours until first(), then the client's and ours
  std::string binding_;
  bool bound_ = false;  // the client chose SCRAM-SHA-256-PLUS
  std::string gs2_header_, client_first_bare_, server_first_;
  ScramKeys keys_;
};

// Client role: logs pgflotilla in to a server. From a plain password, or from pass-through keys.
class ScramClient {
 public:
  // `client_nonce` is for tests with known answers: empty = random.
  explicit ScramClient(std::string password, std::string client_nonce = {});
  explicit ScramClient(const ScramKeys& keys, std::string client_nonce = {});
  // The hash of the certificate that the server showed: SCRAM-SHA-256-PLUS is taken if it is offered.
  void bind_channel(std::string certificate_hash) { binding_ = std::move(certificate_hash); }
  // Body of AuthenticationSASL after the code (list of mechanisms) -> SASLInitialResponse body. Errors are PgBouncer's
  // texts ("none of the server's SASL authentication mechanisms are supported").
  std::expected<std::string, std::string> start(Bytes mechanisms);
  // AuthenticationSASLContinue body -> SASLResponse body. Hostile input: bounded nonce, salt and iterations
  // (at most 100'000 iterations here: more is refused, so that no worker stalls).
  std::expected<std::string, std::string> respond(Bytes server_first);
  // AuthenticationSASLFinal body: "invalid server signature" / "failed to verify server signature" on error.
  std::expected<void, std::string> finish(Bytes server_final);
  // The server proved that it knows the secret. AuthenticationOk after SASL must not be believed before.
  bool verified() const { return verified_; }

 private:
  enum class Step { start, respond, finish, over } step_ = Step::start;
  bool verified_ = false;
  std::optional<std::string> password_;  // until the keys are known
  ScramKeys keys_;
  std::string binding_, gs2_header_;
  std::string nonce_, client_first_bare_, auth_message_;
};

}  // namespace pgf::auth
