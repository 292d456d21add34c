#include "config/nearest.h"

#include <gtest/gtest.h>

#include <array>

namespace pgf::config {
namespace {

TEST(Nearest, Distance) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("hsot", "host"), 1u);  // a swap is one error
  EXPECT_EQ(edit_distance("port", "pport"), 1u);
}

TEST(Nearest, PicksTheClosest) {
  constexpr std::array<std::string_view, 3> kWords{"host", "port", "pool_size"};
  EXPECT_EQ(nearest("hst", kWords), "host");
  EXPECT_EQ(nearest("pool_sise", kWords), "pool_size");
  EXPECT_EQ(nearest("prot", kWords), "port");
}

TEST(Nearest, StaysSilentWhenNothingIsNear) {
  constexpr std::array<std::string_view, 2> kWords{"host", "ab"};
  EXPECT_EQ(nearest("sslmode", kWords), "");
  EXPECT_EQ(nearest("xy", kWords), "");
  EXPECT_EQ(nearest("", kWords), "");
  EXPECT_EQ(nearest(std::string(5000, 'h'), kWords), "");
}

}  // namespace
}  // namespace pgf::config
