#include "wire/startup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "wire/cancel_key.h"

namespace pgf::wire {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using namespace std::string_literals;

constexpr std::uint32_t kV3 = 3u << 16;

std::string header(std::uint32_t length, std::uint32_t code) {
  std::uint8_t b[8];
  store_be32(b, length);
  store_be32(b + 4, code);
  return std::string(as_text(b));
}

First first(std::string_view text) { return first_packet(as_bytes(text)); }

// Byte by byte: need_more until `decided`, and from there on the same answer for good.
void expect_first(const std::string& packet, FirstKind kind, std::size_t decided) {
  for (std::size_t n = 0; n <= packet.size(); ++n)
    EXPECT_EQ(first(packet.substr(0, n)).kind, n < decided ? FirstKind::need_more : kind)
        << "after " << n << " of " << packet.size() << ": " << bad_header_text(as_bytes(packet));
}

TEST(FirstPacket, StartupByteByByte) {
  std::string packet = startup_message(kV3, {{"user", "bob"}, {"database", "db"}});
  expect_first(packet, FirstKind::startup, packet.size());
  std::string pipelined = packet + "Qxxxx";
  First f = first(pipelined);  // what follows stays out
  EXPECT_EQ(f.kind, FirstKind::startup);
  EXPECT_EQ(f.size, packet.size());
  EXPECT_EQ(f.code, kV3);
  EXPECT_EQ(as_text(f.body), packet.substr(8));
}

TEST(FirstPacket, MinorVersionsAreStartup) {
  for (std::uint32_t minor : {1u, 2u, 9999u, 65535u}) {
    std::string packet = startup_message(kV3 | minor, {{"user", "bob"}});
    EXPECT_EQ(first(packet).kind, FirstKind::startup) << minor;
    EXPECT_EQ(first(packet).code, kV3 | minor);
  }
}

TEST(FirstPacket, EncryptionRequests) {
  expect_first(ssl_request(), FirstKind::ssl_request, 8);
  EXPECT_EQ(ssl_request(), "\0\0\0\x08\x04\xd2\x16\x2f"s);
  expect_first(header(8, kGssCode), FirstKind::gss_request, 8);
  std::string pipelined = ssl_request() + "more";
  First f = first(pipelined);
  EXPECT_EQ(f.size, 8u);
  EXPECT_THAT(f.body, IsEmpty());
  for (std::uint32_t code : {kSslCode, kGssCode}) EXPECT_EQ(first(header(9, code) + "x").kind, FirstKind::bad);
}

TEST(FirstPacket, Cancel) {
  CancelKey key{1, 2, 3, 4, 5, 6, 7, 8};
  std::string packet = cancel_request(key);
  EXPECT_EQ(packet, "\0\0\0\x10\x04\xd2\x16\x2e\1\2\3\4\5\6\7\x08"s);
  expect_first(packet, FirstKind::cancel, 16);
  EXPECT_EQ(as_text(first(packet).body), as_text(key));
  // Of any small size: whoever compares the key says what is wrong with it.
  EXPECT_EQ(first(header(8, kCancelCode)).kind, FirstKind::cancel);
  EXPECT_EQ(first(header(12, kCancelCode) + "abcd").body.size(), 4u);
  expect_first(header(268, kCancelCode) + std::string(260, 'k'), FirstKind::cancel, 268);
  // Too long for any key: decided from the header, never answered, and the verdict stays as more arrives (found by
  // startup_fuzz: the size followed what had arrived).
  std::string huge = header(269, kCancelCode) + std::string(261, 'k');
  expect_first(huge, FirstKind::cancel, 8);
  for (std::size_t n = 8; n <= huge.size(); ++n) {
    EXPECT_EQ(first(huge.substr(0, n)).size, 269u) << n;
    EXPECT_TRUE(first(huge.substr(0, n)).body.empty()) << n;
  }
}

TEST(FirstPacket, DirectTls) { expect_first("\x16\x03\x01\x02", FirstKind::tls_hello, 1); }

TEST(FirstPacket, OldProtocolIsKnownFromItsHeader) {
  expect_first(header(296, 2u << 16) + std::string(20, '\0'), FirstKind::old_v2, 8);
  EXPECT_EQ(first(header(60000, 2u << 16 | 1)).kind, FirstKind::old_v2);
}

TEST(FirstPacket, BadLengths) {
  for (std::uint32_t length = 0; length < 8; ++length) expect_first(header(length, kV3), FirstKind::bad, 4);
  expect_first(header(0x00010000, kV3), FirstKind::bad, 2);
  expect_first(header(0x01000000, kV3), FirstKind::bad, 1);
  expect_first(header(0x7fffffff, kV3), FirstKind::bad, 1);
  expect_first(header(0x80000000, kV3), FirstKind::bad, 1);
  expect_first(header(0xffffffff, kV3), FirstKind::bad, 1);
}

// A stranger's startup packet may claim PostgreSQL's 10 000 bytes, no more; it is told before it sends them.
TEST(FirstPacket, StartupSizeLimit) {
  EXPECT_EQ(first(header(kMaxStartup, kV3)).kind, FirstKind::need_more);
  std::string biggest = header(kMaxStartup, kV3) + std::string(kMaxStartup - 8, 'x');
  EXPECT_EQ(first(biggest).kind, FirstKind::startup);
  biggest.pop_back();
  EXPECT_EQ(first(biggest).kind, FirstKind::need_more);
  expect_first(header(kMaxStartup + 1, kV3), FirstKind::bad, 8);
  expect_first(header(65535, kV3), FirstKind::bad, 8);
}

TEST(FirstPacket, UnknownCodes) {
  for (std::uint32_t code : {0u, 1u, 1u << 16, 4u << 16, 5u << 16, 80877101u, 80877105u, 0xffffffffu})
    expect_first(header(8, code), FirstKind::bad, 8);
}

TEST(FirstPacket, OtherProtocols) {
  for (const char* text : {"GET / HTTP/1.1\r\n", "SSH-2.0-x\r\n", "PROXY TCP4 ", "Q", "\x80"})
    expect_first(text, FirstKind::bad, 1);
}

TEST(FirstPacket, BadHeaderText) {
  EXPECT_EQ(bad_header_text(as_bytes("GET / HTTP/1.1")), "bad packet header: '474554202f204854'");
  EXPECT_EQ(bad_header_text(as_bytes("\0\xff"s)), "bad packet header: '00ff'");
  EXPECT_EQ(bad_header_text({}), "bad packet header: ''");
}

std::expected<Startup, std::string> parsed(const std::string& body, std::uint32_t code = kV3) {
  return parse_startup(as_bytes(body), code);
}

TEST(Startup, ParametersInOrderWithDuplicates) {
  auto s = parsed("user\0bob\0a\0\0user\0eve\0\0"s);
  ASSERT_TRUE(s) << s.error();
  EXPECT_EQ(s->minor, 0);
  EXPECT_THAT(s->params, ElementsAre(Pair("user", "bob"), Pair("a", ""), Pair("user", "eve")));
  EXPECT_THAT(s->pq_options, IsEmpty());
}

TEST(Startup, ProtocolOptionsAreSetApart) {
  auto s = parsed("_pq_.x\0on\0user\0bob\0_pq_.\0y\0_pqx\0z\0\0"s, kV3 | 2);
  ASSERT_TRUE(s);
  EXPECT_EQ(s->minor, 2);
  EXPECT_THAT(s->params, ElementsAre(Pair("user", "bob"), Pair("_pqx", "z")));
  EXPECT_THAT(s->pq_options, ElementsAre("_pq_.x", "_pq_."));
}

TEST(Startup, NoParameters) {
  auto s = parsed("\0"s);
  ASSERT_TRUE(s);
  EXPECT_THAT(s->params, IsEmpty());
}

TEST(Startup, BadLayouts) {
  for (const std::string& body : {""s, "user"s, "user\0"s, "user\0bob"s, "user\0bob\0"s, "\0x"s, "\0\0"s,
                                  "user\0bob\0\0x"s, "user\0bob\0\0\0"s}) {
    auto s = parsed(body);
    ASSERT_FALSE(s) << testing::PrintToString(body);
    EXPECT_EQ(s.error(), "invalid startup packet layout: expected terminator as last byte");
  }
}

TEST(Startup, EveryCutOfAGoodBodyIsBad) {
  std::string body = "user\0bob\0database\0db\0\0"s;
  for (std::size_t n = 0; n < body.size(); ++n) EXPECT_FALSE(parsed(body.substr(0, n))) << n;
  EXPECT_TRUE(parsed(body));
}

TEST(Startup, MessageIsByteExact) {
  EXPECT_EQ(startup_message(kV3, {}), "\0\0\0\x09\0\x03\0\0\0"s);
  EXPECT_EQ(startup_message(kV3, {{"user", "b"}, {"x", ""}}), "\0\0\0\x13\0\x03\0\0user\0b\0x\0\0\0"s);
}

TEST(Options, Forms) {
  auto of = [](std::string_view text) { return parse_options(text).value(); };
  EXPECT_THAT(of(""), IsEmpty());
  EXPECT_THAT(of(" \t\n\r\v\f"), IsEmpty());
  EXPECT_THAT(of("-c a=b"), ElementsAre(Pair("a", "b")));
  EXPECT_THAT(of("-ca=b"), ElementsAre(Pair("a", "b")));
  EXPECT_THAT(of("--a=b"), ElementsAre(Pair("a", "b")));
  EXPECT_THAT(of("  -c \t a=b  --c=d\n-ce=f  "), ElementsAre(Pair("a", "b"), Pair("c", "d"), Pair("e", "f")));
  EXPECT_THAT(of("-c a= --b="), ElementsAre(Pair("a", ""), Pair("b", "")));
  EXPECT_THAT(of("-c a=b=c"), ElementsAre(Pair("a", "b=c")));
  EXPECT_THAT(of("-c a=1 -c a=2"), ElementsAre(Pair("a", "1"), Pair("a", "2")));
}

TEST(Options, Escapes) {
  auto of = [](std::string_view text) { return parse_options(text).value(); };
  EXPECT_THAT(of(R"(-c a=x\ y)"), ElementsAre(Pair("a", "x y")));
  EXPECT_THAT(of(R"(-c a=x\\y --b=\\\ z)"), ElementsAre(Pair("a", R"(x\y)"), Pair("b", R"(\ z)")));
  EXPECT_THAT(of(R"(-c a=\x\'\")"), ElementsAre(Pair("a", R"(x'")")));
  EXPECT_THAT(of(R"(-c search_path=a,\ b)"), ElementsAre(Pair("search_path", "a, b")));
  EXPECT_THAT(of("-c a=x\\\ty -c b=\\\n"), ElementsAre(Pair("a", "x\ty"), Pair("b", "\n")));
}

TEST(Options, OtherFormsAreRefused) {
  for (const char* text : {"-c", "-c ", "--", "-- a=b", "-c a", "--a", "-c =b", "--=b", "-d a=b", "a=b", "-c a=b x",
                           "-", "- c a=b", "-c a=b -", "-C a=b", "\\-c a=b", "-c a=b --c", "-c a = b"}) {
    auto options = parse_options(text);
    ASSERT_FALSE(options) << text;
    EXPECT_EQ(options.error(),
              "unsupported options startup parameter: only '-c config=val' and '--config=val' are allowed");
  }
}

TEST(Replication, Words) {
  EXPECT_EQ(parse_replication("database"), Replication::logical);
  EXPECT_EQ(parse_replication("DATABASE"), std::nullopt);  // as PostgreSQL has it
  for (auto word : {"true", "TRUE", "t", "tr", "yes", "Y", "on", "ON", "1"})
    EXPECT_EQ(parse_replication(word), Replication::physical) << word;
  for (auto word : {"false", "F", "no", "n", "off", "of", "0"})
    EXPECT_EQ(parse_replication(word), Replication::none) << word;
  for (auto word : {"", "o", "2", "10", "maybe", "truee", "databas", " on", "on "})
    EXPECT_EQ(parse_replication(word), std::nullopt) << word;
}

TEST(Protocol, Versions) {
  EXPECT_EQ(protocol(0), 0x30000u);
  EXPECT_EQ(protocol(kNewestMinor), 0x30002u);
}

}  // namespace
}  // namespace pgf::wire
