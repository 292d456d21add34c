#pragma once
// The one source of chance of a run: everything that may happen in another way is drawn from here, in one order.
#include <cstddef>
#include <cstdint>

namespace pgf::sim {

class Random {  // splitmix64: any seed is a good one
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  std::size_t below(std::size_t n) { return n < 2 ? 0 : next() % n; }
  std::size_t between(std::size_t least, std::size_t most) { return least + below(most - least + 1); }
  bool one_in(std::size_t n) { return below(n) == 0; }
  bool percent(std::size_t p) { return below(100) < p; }
  // How much of `n` comes at once: mostly all of it, else any part.
  std::size_t part(std::size_t n) { return n < 2 || !one_in(3) ? n : between(1, n); }
  template <class Array>
  auto& pick(Array& from) {
    return from[below(std::size(from))];
  }

 private:
  std::uint64_t state_;
};

}  // namespace pgf::sim
