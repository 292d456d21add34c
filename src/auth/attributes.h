#pragma once
#include <algorithm>
#include <string_view>

#include "base/bytes.h"

namespace pgf::auth {

inline constexpr std::string_view kScramMechanism = "SCRAM-SHA-256", kScramPlusMechanism = "SCRAM-SHA-256-PLUS";
// What begins a first message that is bound to its TLS channel (RFC 5929).
inline constexpr std::string_view kBoundHeader = "p=tls-server-end-point,,";
// Far above what real peers send (less than 200 bytes), and small enough to hold for strangers.
inline constexpr std::size_t kMaxScramMessage = 4096, kMaxScramNonce = 1024;

// Reads a SCRAM message, `a=value,b=value,...`, in order. Like Cursor: a failure sticks, check at the end.
class AttributeReader {
 public:
  explicit AttributeReader(std::string_view message)
      : message_(message), ok_(message.size() <= kMaxScramMessage && !message.contains('\0')) {}

  // The value of attribute `name`, which must come next.
  std::string_view read(char name) {
    std::string_view rest = message_.substr(at_);
    if (!ok_ || ended_ || rest.size() < 2 || rest[0] != name || rest[1] != '=') {
      ok_ = false;
      return {};
    }
    std::size_t length = std::min(rest.find(','), rest.size());
    ended_ = length == rest.size();
    at_ += length + (ended_ ? 0 : 1);
    return rest.substr(2, length - 2);
  }

  // RFC 5802: unknown optional extensions are ignored. `m` (mandatory extension) and the letters that have a meaning
  // are none, so they stay for read() or at_end() to fail on.
  void skip_extensions() {
    while (ok_ && !ended_ && at_ < message_.size() && is_extension(message_[at_])) read(message_[at_]);
  }

  // Everything before the next attribute, without the comma.
  std::string_view consumed() const { return message_.substr(0, ended_ || at_ == 0 ? at_ : at_ - 1); }
  bool ok() const { return ok_; }
  bool at_end() const { return ok_ && ended_; }

 private:
  static bool is_extension(char c) {
    return ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) && !std::string_view("anmrcsipve").contains(c);
  }
  std::string_view message_;
  std::size_t at_ = 0;
  bool ended_ = false, ok_;
};

// A nonce is printable ASCII without comma (the reader has split at those).
inline bool is_nonce(std::string_view nonce) {
  return !nonce.empty() && nonce.size() <= kMaxScramNonce &&
         std::ranges::all_of(nonce, [](char c) { return c > ' ' && c < '\x7f'; });
}

}  // namespace pgf::auth
