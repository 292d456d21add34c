#include "base/bytes.h"

#include <gtest/gtest.h>

namespace pgf {
namespace {

using namespace std::string_literals;

TEST(Bytes, BigEndian) {
  const std::uint8_t b[] = {0x81, 0x02, 0x03, 0x04};
  EXPECT_EQ(load_be16(b), 0x8102);
  EXPECT_EQ(load_be32(b), 0x81020304u);
  std::uint8_t out[7] = {};
  store_be16(out, 0xfe01);
  store_be32(out + 3, 0x12345678);  // at an odd address
  EXPECT_EQ(load_be16(out), 0xfe01);
  EXPECT_EQ(load_be32(out + 3), 0x12345678u);
  EXPECT_EQ(out[2], 0);
}

TEST(Cursor, ReadsInOrder) {
  std::string text = "\x01\x02\x03\xff\xff\xff\xfeword\0bytes"s;
  Cursor in(as_bytes(text));
  EXPECT_EQ(in.u8(), 1);
  EXPECT_EQ(in.u16(), 0x0203);
  EXPECT_EQ(in.i32(), -2);
  EXPECT_EQ(in.cstr(), "word");
  EXPECT_EQ(as_text(in.rest()), "bytes");
  EXPECT_FALSE(in.at_end());
  EXPECT_EQ(as_text(in.bytes(5)), "bytes");
  EXPECT_TRUE(in.at_end());
}

TEST(Cursor, StaysFailed) {
  Cursor in(as_bytes("abc"));
  EXPECT_EQ(in.u32(), 0u);
  EXPECT_FALSE(in.ok());
  EXPECT_EQ(in.u8(), 0);  // although a byte is there
  EXPECT_EQ(in.u16(), 0);
  EXPECT_TRUE(in.bytes(0).empty());
  EXPECT_EQ(in.cstr(), "");
  EXPECT_FALSE(in.ok());
  EXPECT_FALSE(in.at_end());
}

TEST(Cursor, StringWithoutEnd) {
  Cursor in(as_bytes("abc"));
  EXPECT_EQ(in.cstr(), "");
  EXPECT_FALSE(in.ok());
  Cursor nothing{Bytes{}};
  EXPECT_TRUE(nothing.at_end());
  EXPECT_TRUE(nothing.bytes(0).empty());
  EXPECT_TRUE(nothing.ok());
  EXPECT_EQ(nothing.cstr(), "");
  EXPECT_FALSE(nothing.ok());
}

TEST(Cursor, HugeClaims) {
  Cursor in(as_bytes("abc"));
  EXPECT_TRUE(in.bytes(static_cast<std::size_t>(-1)).empty());
  EXPECT_FALSE(in.ok());
}

}  // namespace
}  // namespace pgf
