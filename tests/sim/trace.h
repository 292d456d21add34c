#pragma once
// Everything that happens in a run, as a hash: two runs of one seed must agree in it. With --trace also as text.
#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <string_view>

#include "base/time.h"

namespace pgf::sim {

// An invariant does not hold. Thrown by models, never through the code under test.
struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Trace {
 public:
  explicit Trace(std::FILE* out = nullptr) : out_(out) {}

  void at(Usec now) { now_ = now; }
  Usec now() const { return now_; }
  bool shown() const { return out_ != nullptr; }
  std::uint64_t hash() const { return hash_; }

  // `what` is a literal; who and how much are the numbers.
  void note(std::string_view what, std::uint64_t a = 0, std::uint64_t b = 0, std::uint64_t c = 0) {
    mix(static_cast<std::uint64_t>(now_));
    for (char ch : what) hash_ = (hash_ ^ static_cast<unsigned char>(ch)) * kPrime;
    mix(a);
    mix(b);
    mix(c);
    if (out_) fmt::print(out_, "{:10} {} {} {} {}\n", now_, what, a, b, c);
  }
  void text(std::string_view what, std::uint64_t who, std::string_view words) {
    note(what, who, words.size());
    for (char ch : words) hash_ = (hash_ ^ static_cast<unsigned char>(ch)) * kPrime;
    if (out_) fmt::print(out_, "{:10}   \"{}\"\n", now_, words.substr(0, 300));
  }
  // The same without a place in the hash: what only a reader needs.
  template <class... A>
  void say(fmt::format_string<A...> f, A&&... args) {
    if (out_) fmt::print(out_, "{:10}   {}\n", now_, fmt::format(f, std::forward<A>(args)...));
  }

 private:
  static constexpr std::uint64_t kPrime = 0x100000001b3;
  void mix(std::uint64_t v) {
    hash_ = (hash_ ^ v) * kPrime;
    hash_ ^= hash_ >> 29;
  }

  std::FILE* out_;
  Usec now_ = 0;
  std::uint64_t hash_ = 0xcbf29ce484222325;
};

}  // namespace pgf::sim
