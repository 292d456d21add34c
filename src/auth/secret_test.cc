#include <gtest/gtest.h>

#include "auth/exchange.h"
#include "crypto/crypto.h"

namespace pgf::auth {
namespace {

using Kind = Secret::Kind;

// Salt and iterations of RFC 7677 section 3, password "pencil".
constexpr std::string_view kPencil =
    "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$"
    "WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";
constexpr std::array<std::uint8_t, 4> kSalt = {0x01, 0x00, 0xfe, 0x00};  // zero bytes must count

TEST(ParseSecret, Kinds) {
  EXPECT_EQ(parse_secret("").kind, Kind::none);
  EXPECT_EQ(parse_secret("secret").kind, Kind::plain);
  EXPECT_EQ(parse_secret("secret").text, "secret");
  EXPECT_EQ(parse_secret("md5a7cd1bf0e24d9c0f0bd0a3d4a2b1e6f0").kind, Kind::md5);
  EXPECT_EQ(parse_secret("md5a7cd1bf0e24d9c0f0bd0a3d4a2b1e6f0").text, "md5a7cd1bf0e24d9c0f0bd0a3d4a2b1e6f0");
  Secret scram = parse_secret(kPencil);
  EXPECT_EQ(scram.kind, Kind::scram);
  EXPECT_EQ(scram.scram.iterations, 4096);
  EXPECT_EQ(crypto::base64(as_bytes(scram.scram.salt)), "W22ZaJ0SNY7soEsUEjb6gQ==");
  EXPECT_EQ(crypto::base64(scram.scram.stored_key), "WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=");
  EXPECT_EQ(crypto::base64(scram.scram.server_key), "wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=");
}

TEST(ParseSecret, AlmostIsPlain) {
  std::string key = crypto::base64(std::array<std::uint8_t, 32>{});
  std::string tail = "$" + key + ":" + key;
  ASSERT_EQ(parse_secret("SCRAM-SHA-256$1:AAAA" + tail).kind, Kind::scram);
  for (std::string text : {
           std::string("md5"),
           std::string("md5A7CD1BF0E24D9C0F0BD0A3D4A2B1E6F0"),
           std::string("md5a7cd1bf0e24d9c0f0bd0a3d4a2b1e6f"),
           std::string("md5a7cd1bf0e24d9c0f0bd0a3d4a2b1e6f00"),
           std::string("SCRAM-SHA-256"),
           std::string("SCRAM-SHA-256$"),
           "scram-sha-256$1:AAAA" + tail,
           "SCRAM-SHA-1$1:AAAA" + tail,
           "SCRAM-SHA-256$:AAAA" + tail,
           "SCRAM-SHA-256$0:AAAA" + tail,
           "SCRAM-SHA-256$-1:AAAA" + tail,
           "SCRAM-SHA-256$1x:AAAA" + tail,
           "SCRAM-SHA-256$2147483648:AAAA" + tail,
           "SCRAM-SHA-256$1:" + tail,
           "SCRAM-SHA-256$1:AAA" + tail,
           "SCRAM-SHA-256$1:A*AA" + tail,
           "SCRAM-SHA-256$1:AAAA$" + key,
           "SCRAM-SHA-256$1:AAAA$" + key + ":",
           "SCRAM-SHA-256$1:AAAA$AAAA:" + key,
           "SCRAM-SHA-256$1:AAAA" + tail + "AAAA",
           "SCRAM-SHA-256$1:AAAA" + tail + ":",
       }) {
    Secret secret = parse_secret(text);
    EXPECT_EQ(secret.kind, Kind::plain) << text;
    EXPECT_EQ(secret.text, text);
  }
}

TEST(Md5, KnownAnswers) {
  EXPECT_EQ(md5_stored("pencil", "user"), "md520c46e3762c864548e296b33c3406aa9");
  EXPECT_EQ(md5_answer("md520c46e3762c864548e296b33c3406aa9", kSalt), "md58eefce11377533e6bf5dc18611e568f8");
}

TEST(CheckMd5, EveryKind) {
  std::string answer = md5_answer(md5_stored("pencil", "user"), kSalt);
  std::array<std::uint8_t, 4> other_salt = {0x01, 0x00, 0xfe, 0x01};
  for (const Secret& secret : {parse_secret("pencil"), parse_secret(md5_stored("pencil", "user"))}) {
    EXPECT_TRUE(check_md5(secret, "user", kSalt, answer));
    EXPECT_FALSE(check_md5(secret, "user", other_salt, answer));
    EXPECT_FALSE(check_md5(secret, "user", kSalt, answer.substr(0, 34)));
    EXPECT_FALSE(check_md5(secret, "user", kSalt, ""));
  }
  EXPECT_FALSE(check_md5(parse_secret("pencil"), "other", kSalt, answer));
  EXPECT_FALSE(check_md5(parse_secret("Pencil"), "user", kSalt, answer));
  EXPECT_FALSE(check_md5(parse_secret(kPencil), "user", kSalt, answer));
  // What a user without secret would have to answer is easily computed, and must not help.
  for (const Secret& secret : {Secret{}, parse_secret(kPencil)}) {
    EXPECT_FALSE(check_md5(secret, "user", kSalt, md5_answer(md5_stored("", "user"), kSalt)));
    EXPECT_FALSE(check_md5(secret, "user", kSalt, md5_answer("md5", kSalt)));
  }
}

TEST(CheckPlain, EveryKind) {
  for (const Secret& secret :
       {parse_secret("pencil"), parse_secret(md5_stored("pencil", "user")), parse_secret(kPencil)}) {
    EXPECT_TRUE(check_plain(secret, "user", "pencil"));
    EXPECT_FALSE(check_plain(secret, "user", "pencil "));
    EXPECT_FALSE(check_plain(secret, "user", "Pencil"));
    EXPECT_FALSE(check_plain(secret, "user", ""));
    EXPECT_FALSE(check_plain(secret, "user", std::string_view("pencil\0", 7)));
    if (secret.kind != Kind::plain) {
      EXPECT_FALSE(check_plain(secret, "user", secret.text)) << "a hash is no password";
    }
  }
  EXPECT_FALSE(check_plain(parse_secret(md5_stored("pencil", "user")), "other", "pencil"));
  EXPECT_FALSE(check_plain(parse_secret(kPencil), "user", kPencil));
  EXPECT_FALSE(check_plain(Secret{}, "user", ""));
  EXPECT_FALSE(check_plain(Secret{}, "user", "pencil"));
}

TEST(CheckPlain, LongAndOddPasswords) {
  for (std::string password : {std::string(65'535, 'x'), std::string("caf\xE9"), std::string("pass\nword,=\"")}) {
    EXPECT_TRUE(check_plain(parse_secret(password), "user", password));
    EXPECT_TRUE(check_plain(parse_secret(md5_stored(password, "user")), "user", password));
    Secret scram{Kind::scram, "", derive_scram(password, 10)};
    EXPECT_TRUE(check_plain(scram, "user", password));
    EXPECT_FALSE(check_plain(scram, "user", password.substr(1)));
  }
  // SASLprep makes these one password.
  Secret scram{Kind::scram, "", derive_scram("a\u00A0b", 10)};
  EXPECT_TRUE(check_plain(scram, "user", "a b"));
}

TEST(CheckPlain, CapsIterations) {
  Secret secret{Kind::scram, "", derive_scram("pencil", 1)};
  for (int iterations : {0, -1, kMaxScramIterations + 1, 2'147'483'647}) {
    secret.scram.iterations = iterations;
    EXPECT_FALSE(check_plain(secret, "user", "pencil"));
  }
}

TEST(DeriveScram, SaltsDiffer) {
  ScramSecret a = derive_scram("pencil", 5), b = derive_scram("pencil", 5);
  EXPECT_EQ(a.iterations, 5);
  EXPECT_EQ(a.salt.size(), 16u);
  EXPECT_NE(a.salt, b.salt);
  EXPECT_NE(a.stored_key, b.stored_key);
}

TEST(MockScram, DeterministicPerUserAndProcess) {
  std::array<std::uint8_t, 32> key{1}, other_key{2};
  ScramSecret mock = mock_scram("ann", 4096, key), again = mock_scram("ann", 4096, key);
  EXPECT_EQ(mock.iterations, 4096);
  EXPECT_EQ(mock.salt.size(), 16u);
  EXPECT_EQ(mock.salt, again.salt);
  EXPECT_EQ(mock.stored_key, again.stored_key);
  EXPECT_EQ(mock.server_key, again.server_key);
  EXPECT_NE(mock.salt, mock_scram("bob", 4096, key).salt);
  EXPECT_NE(mock.salt, mock_scram("ann", 4096, other_key).salt);
  EXPECT_FALSE(check_plain({Kind::scram, "", mock}, "ann", "ann"));
}

}  // namespace
}  // namespace pgf::auth
