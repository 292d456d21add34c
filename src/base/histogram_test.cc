#include "base/histogram.h"

#include <gtest/gtest.h>

#include <cmath>

namespace pgf {
namespace {

TEST(Histogram, EmptyOnesSayNothing) {
  Histogram h;
  EXPECT_EQ(h.count(), 0u);
  EXPECT_EQ(h.quantile(0.99), 0);
  EXPECT_EQ(h.below(36), 0u);
  h += Histogram();
  EXPECT_EQ(h.max(), 0);
}

TEST(Histogram, QuantilesAreRightToAnEighth) {
  Histogram h;
  for (Usec v = 1; v <= 100'000; ++v) h.record(v);
  EXPECT_EQ(h.count(), 100'000u);
  EXPECT_EQ(h.sum(), 5'000'050'000);
  for (double q : {0.001, 0.01, 0.5, 0.9, 0.99, 0.999}) {
    const double exact = q * 100'000;
    EXPECT_GE(static_cast<double>(h.quantile(q)), std::floor(exact)) << q;
    EXPECT_LE(static_cast<double>(h.quantile(q)), exact * 1.125 + 1) << q;
  }
  EXPECT_EQ(h.quantile(1), 100'000);
  EXPECT_EQ(h.quantile(0), 1);
}

TEST(Histogram, SmallValuesAreExact) {
  for (Usec v = 0; v < 8; ++v) {
    Histogram h;
    h.record(v);
    h.record(1000);
    EXPECT_EQ(h.quantile(0), v);
  }
}

TEST(Histogram, BelowAPowerOfTwoIsExact) {
  for (int power = 3; power < Histogram::kPowers; ++power) {
    Histogram h;
    const Usec edge = Usec{1} << power;
    h.record(edge - 1);
    h.record(edge);
    EXPECT_EQ(h.below(power), 1u) << power;
    EXPECT_EQ(h.below(power + 1), 2u) << power;
  }
}

TEST(Histogram, WhatIsOutOfRangeIsCountedAtItsEnds) {
  Histogram h;
  h.record(-5);
  h.record(Usec{1} << 50);
  EXPECT_EQ(h.count(), 2u);
  EXPECT_EQ(h.below(3), 1u);
  EXPECT_EQ(h.below(Histogram::kPowers), 2u);
  EXPECT_EQ(h.max(), Usec{1} << 50);
  EXPECT_EQ(h.quantile(0), 0);
}

TEST(Histogram, SumsOfPartsAreTheWhole) {
  Histogram a, b, whole;
  for (Usec v = 0; v < 5000; v += 7) (v % 2 ? a : b).record(v), whole.record(v);
  Histogram copy = a;
  copy += b;
  EXPECT_EQ(copy.count(), whole.count());
  EXPECT_EQ(copy.sum(), whole.sum());
  for (double q : {0.1, 0.5, 0.95}) EXPECT_EQ(copy.quantile(q), whole.quantile(q));
  EXPECT_LT(a.count(), copy.count());  // a copy, not the same
}

TEST(Histogram, WhatWasRecordedSince) {
  Histogram h;
  for (Usec v : {3, 900, 70'000}) h.record(v);
  const Histogram before = h;
  EXPECT_EQ(h.since(before).count(), 0u);
  EXPECT_EQ(h.since(before).max(), 0);
  EXPECT_EQ(h.since(before).quantile(0.5), 0);
  for (int i = 0; i < 10; ++i) h.record(500);
  const Histogram later = h.since(before);
  EXPECT_EQ(later.count(), 10u);
  EXPECT_EQ(later.sum(), 5000);
  EXPECT_GE(later.quantile(0.5), 500);
  EXPECT_LE(later.quantile(0.99), 500 * 9 / 8);
  EXPECT_LE(later.max(), 500 * 9 / 8);  // the 70'000 was before
  EXPECT_EQ(h.since(Histogram()).max(), 70'000);
  EXPECT_EQ(h.since(Histogram()).count(), 13u);
}

}  // namespace
}  // namespace pgf
