#include "crypto/crypto.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace pgf::crypto {
namespace {

std::string hex(Bytes data) {
  std::string out;
  for (auto byte : data) out += fmt::format("{:02x}", byte);
  return out;
}

TEST(Md5, Rfc1321) {
  EXPECT_EQ(md5_hex({}), "d41d8cd98f00b204e9800998ecf8427e");
  EXPECT_EQ(md5_hex({Bytes{}}), "d41d8cd98f00b204e9800998ecf8427e");
  EXPECT_EQ(md5_hex({as_bytes("abc")}), "900150983cd24fb0d6963f7d28e17f72");
  EXPECT_EQ(md5_hex({as_bytes("message "), as_bytes("digest")}), "f96b697d7cb7938d525a2f31aaf161d0");
}

TEST(Sha256, Fips180) {
  EXPECT_EQ(hex(sha256({})), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256({as_bytes("a"), Bytes{}, as_bytes("bc")})),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Hmac, Rfc4231) {
  EXPECT_EQ(hex(hmac_sha256(as_bytes(std::string(20, '\x0b')), {as_bytes("Hi There")})),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex(hmac_sha256(as_bytes("Jefe"), {as_bytes("what do ya want "), as_bytes("for nothing?")})),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  // A key longer than one block is hashed first.
  EXPECT_EQ(hex(hmac_sha256(as_bytes(std::string(131, '\xaa')),
                            {as_bytes("Test Using Larger Than Block-Size Key - Hash Key First")})),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Pbkdf2, KnownAnswers) {
  EXPECT_EQ(hex(pbkdf2_sha256("password", as_bytes("salt"), 1)),
            "120fb6cffcf8b32c43e7225256c4f837a86548c92ccc35480805987cb70be17b");
  EXPECT_EQ(hex(pbkdf2_sha256("password", as_bytes("salt"), 2)),
            "ae4d0c95af6b46d32d0adff928f06dd02a303f8ef3c251dfd6e2d85a95474c43");
  EXPECT_EQ(hex(pbkdf2_sha256("password", as_bytes("salt"), 4096)),
            "c5e478d59288c841aa530db6845c4c8d962893a001ce4e11a4963873aa98134a");
  // RFC 7914 section 11, first half.
  EXPECT_EQ(hex(pbkdf2_sha256("passwd", as_bytes("salt"), 1)),
            "55ac046e56e3089fec1691c22544b605f94185216dde0465e68b9d57c20dacbc");
  // A password longer than one block, from Python's hashlib.
  EXPECT_EQ(hex(pbkdf2_sha256(std::string(100, 'x'), as_bytes("NaCl"), 1000)),
            "78a17750cf7a2cb60802967f2013b5da9bb57cb4112b684a3a4120cf08615e69");
}

TEST(Base64, Rfc4648BothWays) {
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"", ""},
      {"f", "Zg=="},
      {"fo", "Zm8="},
      {"foo", "Zm9v"},
      {"foob", "Zm9vYg=="},
      {"fooba", "Zm9vYmE="},
      {"foobar", "Zm9vYmFy"},
      {"\xfb\xff\xfe", "+//+"},
  };
  std::string out;
  for (auto [raw, text] : cases) {
    EXPECT_EQ(base64(as_bytes(raw)), text);
    EXPECT_TRUE(base64_decode(text, out)) << text;
    EXPECT_EQ(out, raw);
  }
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  EXPECT_TRUE(base64_decode(base64(as_bytes(all)), out));
  EXPECT_EQ(out, all);
}

TEST(Base64, Refuses) {
  std::string out;
  for (std::string_view bad : {"Z", "Zg", "Zg=", "=", "==", "===", "====", "Zg===", "Z===", "Zm9v=", "Zg==Zg==", "Z=8=",
                               "Zm9v\n", "Zm 9v", "Zm9-", "Zm9_", "\xff\xff\xff\xff"}) {
    EXPECT_FALSE(base64_decode(bad, out)) << bad;
  }
  EXPECT_FALSE(base64_decode(std::string_view("Zm\0v", 4), out));
}

TEST(Equal, LengthAndBytes) {
  EXPECT_TRUE(equal_constant_time({}, {}));
  EXPECT_TRUE(equal_constant_time(as_bytes("abc"), as_bytes("abc")));
  EXPECT_FALSE(equal_constant_time(as_bytes("abc"), as_bytes("abd")));
  EXPECT_FALSE(equal_constant_time(as_bytes("abc"), as_bytes("abcd")));
}

TEST(Random, Fills) {
  std::array<std::uint8_t, 32> a{}, b{};
  random_bytes(a);
  random_bytes(b);
  EXPECT_NE(a, b);
  random_bytes({});
}

}  // namespace
}  // namespace pgf::crypto
