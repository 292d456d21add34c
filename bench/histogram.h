#pragma once
// Latencies in logarithmic buckets of at most 1.6 % width; the maximum is exact.
#include <array>
#include <bit>
#include <cstdint>

namespace bench {

class Histogram {
 public:
  void add(std::uint64_t ns) {
    ++buckets_[index(ns)];
    ++count_;
    sum_ += ns;
    if (ns > max_) max_ = ns;
  }
  void merge(const Histogram& other) {
    for (std::size_t i = 0; i < buckets_.size(); ++i) buckets_[i] += other.buckets_[i];
    count_ += other.count_;
    sum_ += other.sum_;
    if (other.max_ > max_) max_ = other.max_;
  }
  std::uint64_t count() const { return count_; }
  double mean_us() const { return count_ ? static_cast<double>(sum_) / static_cast<double>(count_) / 1000 : 0; }
  double max_us() const { return static_cast<double>(max_) / 1000; }
  double quantile_us(double q) const {
    std::uint64_t left = static_cast<std::uint64_t>(q * static_cast<double>(count_));
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      if (left < buckets_[i]) return static_cast<double>(middle(i)) / 1000;
      left -= buckets_[i];
    }
    return max_us();
  }

 private:
  static constexpr unsigned kBits = 6;  // 64 buckets per doubling
  static std::size_t index(std::uint64_t v) {
    if (v < 2u << kBits) return v;
    const unsigned shift = static_cast<unsigned>(std::bit_width(v)) - kBits - 1;
    return (std::size_t{shift} << kBits) + (v >> shift);
  }
  static std::uint64_t middle(std::size_t i) {
    if (i < 2u << kBits) return i;
    const unsigned shift = static_cast<unsigned>((i >> kBits) - 1);
    return (((i & 63) | 64) << shift) + ((std::uint64_t{1} << shift) / 2);
  }

  std::array<std::uint64_t, 64 * 60> buckets_{};
  std::uint64_t count_ = 0, sum_ = 0, max_ = 0;
};

}  // namespace bench
