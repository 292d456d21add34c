#include "wire/cancel_key.h"

#include <gtest/gtest.h>

namespace pgf::wire {
namespace {

constexpr CancelKey kOnes{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
constexpr CancelKey kZeros{};

TEST(CancelKey, PeeringOffTouchesOneBit) {
  EXPECT_EQ(make_cancel_key(kOnes, 0), (CancelKey{0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}));
  EXPECT_EQ(make_cancel_key(kZeros, 0), kZeros);
}

TEST(CancelKey, PeerIdAndTtlHaveTheirPlaces) {
  EXPECT_EQ(make_cancel_key(kZeros, 0x1234), (CancelKey{0, 0x34, 0x12, 0, 0, 0, 0, 3}));
  EXPECT_EQ(make_cancel_key(kOnes, 0x1234), (CancelKey{0x7f, 0x34, 0x12, 0xff, 0xff, 0xff, 0xff, 0xff}));
  EXPECT_EQ(make_cancel_key(kOnes, 1), (CancelKey{0x7f, 1, 0, 0xff, 0xff, 0xff, 0xff, 0xff}));
}

TEST(CancelKey, PeerIdsComeBack) {
  for (int id = 1; id <= 16383; ++id) {
    CancelKey key = make_cancel_key(id % 2 ? kOnes : kZeros, id);
    ASSERT_EQ(cancel_key_peer(key), id);
    ASSERT_EQ(cancel_key_ttl(key), kCancelTtl);
    ASSERT_EQ(key[0] & 0x80, 0);
  }
}

// Byte by byte what a PgBouncer (1.21 and later) with peer_id 258 hands out and expects back, after two forwards.
TEST(CancelKey, LayoutIsPgBouncers) {
  CancelKey key = make_cancel_key(std::array<std::uint8_t, 8>{0xd5, 0xff, 0xff, 0x11, 0x22, 0x33, 0x44, 0x5c}, 258);
  EXPECT_EQ(key, (CancelKey{0x55, 0x02, 0x01, 0x11, 0x22, 0x33, 0x44, 0x5f}));
  set_cancel_key_ttl(key, cancel_key_ttl(key) - 1);
  set_cancel_key_ttl(key, cancel_key_ttl(key) - 1);
  EXPECT_EQ(key, (CancelKey{0x55, 0x02, 0x01, 0x11, 0x22, 0x33, 0x44, 0x5d}));
}

// A key goes through at most three forwards and is compared whole at its owner: nothing but the two bits may change.
TEST(CancelKey, TtlChangesTwoBitsOnly) {
  CancelKey key{1, 2, 3, 4, 5, 6, 7, 0xab};
  for (int ttl : {3, 2, 1, 0}) {
    set_cancel_key_ttl(key, ttl);
    EXPECT_EQ(cancel_key_ttl(key), ttl);
    EXPECT_EQ(key, (CancelKey{1, 2, 3, 4, 5, 6, 7, static_cast<std::uint8_t>(0xa8 | ttl)}));
  }
}

TEST(CancelKey, ReadBack) {
  std::string bytes;
  for (char c = 1; c <= 36; ++c) bytes += c;
  for (std::size_t n = 0; n <= bytes.size() + 1; ++n) {
    std::string body = n <= bytes.size() ? bytes.substr(0, n) : bytes + "x";
    auto sent = read_cancel_key(as_bytes(body));
    ASSERT_EQ(sent.has_value(), n == 8 || n == 36) << n;
    if (!sent) continue;
    EXPECT_EQ(as_text(sent->key), bytes.substr(0, 8));
    ASSERT_EQ(sent->tail.has_value(), n == 36);
    if (sent->tail) {
      EXPECT_EQ(as_text(*sent->tail), bytes.substr(8));
    }
  }
}

}  // namespace
}  // namespace pgf::wire
