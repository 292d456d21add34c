#include "session/slow_lines.h"

#include <gtest/gtest.h>

namespace pgf::session {
namespace {

TEST(SlowLines, TenASecond) {
  SlowLines lines;
  Usec now = 5 * kSecond;
  for (int i = 0; i < SlowLines::kPerSecond; ++i) EXPECT_TRUE(lines.take(now + i));
  for (int i = 0; i < 7; ++i) EXPECT_FALSE(lines.take(now + kSecond - 1));
  EXPECT_EQ(lines.untold(now + kSecond - 1), 0u);  // more may follow
  EXPECT_EQ(lines.untold(now + kSecond), 7u);
  EXPECT_EQ(lines.untold(now + kSecond), 0u);
  EXPECT_TRUE(lines.take(now + kSecond));
}

// What nobody asked for meanwhile is not lost when the next second begins.
TEST(SlowLines, TheCountOutlivesItsSecond) {
  SlowLines lines;
  for (int i = 0; i < SlowLines::kPerSecond + 3; ++i) lines.take(kSecond);
  EXPECT_TRUE(lines.take(2 * kSecond));
  EXPECT_EQ(lines.untold(2 * kSecond), 0u);
  EXPECT_EQ(lines.untold(3 * kSecond), 3u);
}

TEST(SlowLines, QuietOnesAreAllWritten) {
  SlowLines lines;
  for (int i = 1; i < 100; ++i) EXPECT_TRUE(lines.take(i * kSecond / 10));
  EXPECT_EQ(lines.untold(100 * kSecond), 0u);
}

}  // namespace
}  // namespace pgf::session
