#pragma once
// Durations in µs, counted into buckets as HdrHistogram does: 8 to each power of two, so a quantile is right to 1/8.
// One thread records; copies are plain values. Memory is taken for the first value, and for the first one that is
// longer than kRoom and than all before: steady state allocates nothing.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "base/time.h"

namespace pgf {

class Histogram {
 public:
  static constexpr int kPowers = 36;  // up to 2^36 µs (19 hours); what is longer counts as that
  static constexpr std::size_t kBuckets = (kPowers - 2) * 8;

  void record(Usec value) {
    if (value < 0) value = 0;
    const std::size_t i = bucket(value);
    if (i >= buckets_.size()) buckets_.resize(i < kRoom ? kRoom : kBuckets);
    ++buckets_[i];
    ++count_;
    sum_ += value;
    if (value > max_) max_ = value;
  }

  Histogram& operator+=(const Histogram& other) {
    if (buckets_.size() < other.buckets_.size()) buckets_.resize(other.buckets_.size());
    for (std::size_t i = 0; i < other.buckets_.size(); ++i) buckets_[i] += other.buckets_[i];
    count_ += other.count_;
    sum_ += other.sum_;
    max_ = std::max(max_, other.max_);
    return *this;
  }

  // What was recorded after `before`, an earlier copy of this one. Its max() is right to 1/8 only.
  Histogram since(const Histogram& before) const {
    Histogram grown = *this;
    grown.count_ -= before.count_;
    grown.sum_ -= before.sum_;
    grown.max_ = 0;
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      if (i < before.buckets_.size()) grown.buckets_[i] -= before.buckets_[i];
      if (grown.buckets_[i]) grown.max_ = std::min(upper_end(i), max_);
    }
    return grown;
  }

  std::uint64_t count() const { return count_; }
  Usec sum() const { return sum_; }
  Usec max() const { return max_; }

  // How many took less than 2^power µs; power 3 to kPowers.
  std::uint64_t below(int power) const {
    const std::size_t end = std::min(buckets_.size(), static_cast<std::size_t>(power - 2) * 8);
    std::uint64_t n = 0;
    for (std::size_t i = 0; i < end; ++i) n += buckets_[i];
    return n;
  }

  // The value that a share of q (0..1) do not exceed: the upper end of its bucket, but never more than max(). 0 if
  // empty.
  Usec quantile(double q) const {
    if (!count_) return 0;
    const auto rank = static_cast<std::uint64_t>(q * static_cast<double>(count_ - 1)) + 1;
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < buckets_.size(); ++i)
      if ((seen += buckets_[i]) >= rank) return std::min(upper_end(i), max_);
    return max_;
  }

 private:
  static constexpr std::size_t kRoom = (16 - 2) * 8;  // buckets at first: up to 65 ms

  static std::size_t bucket(Usec value) {
    const auto v = std::min<std::uint64_t>(static_cast<std::uint64_t>(value), (std::uint64_t{1} << kPowers) - 1);
    if (v < 8) return v;
    const int shift = std::bit_width(v) - 4;
    return static_cast<std::size_t>(shift) * 8 + (v >> shift);
  }
  static Usec upper_end(std::size_t bucket) {
    if (bucket < 8) return static_cast<Usec>(bucket);
    const auto shift = bucket / 8 - 1;
    return static_cast<Usec>(((bucket % 8 + 9) << shift) - 1);
  }

  std::vector<std::uint64_t> buckets_;
  std::uint64_t count_ = 0;
  Usec sum_ = 0, max_ = 0;
};

}  // namespace pgf
