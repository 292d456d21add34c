#include "session/slow_lines.h"

#include <gtest/gtest.h>

#include "session/slow_waits.h"

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

TEST(SlowWaits, TheLastAreKept) {
  SlowWaits waits;
  for (Usec i = 1; i <= 60; ++i) waits.add({i, 1, false, "d", "u", 1, 1, 1, "", 0, ""});
  ASSERT_EQ(waits.last().size(), SlowWaits::kKept);
  EXPECT_EQ(waits.last().front().ended, 11);
  EXPECT_EQ(waits.last().back().ended, 60);
  for (int i = 0; i < SlowLines::kPerSecond; ++i) EXPECT_TRUE(waits.wants_one(kSecond));
  EXPECT_FALSE(waits.wants_one(kSecond));
}

}  // namespace
}  // namespace pgf::session
