#include "wire/read.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "wire/rules.h"
#include "wire/write.h"

namespace pgf::wire {
namespace {

using namespace std::string_literals;

// A body that ends exactly where its heap block ends, so that AddressSanitizer sees any step past it.
class Exact {
 public:
  explicit Exact(std::string_view text) : size_(text.size()), bytes_(new std::uint8_t[text.size()]) {
    std::copy(text.begin(), text.end(), bytes_.get());
  }
  operator Bytes() const { return {bytes_.get(), size_}; }

 private:
  std::size_t size_;
  std::unique_ptr<std::uint8_t[]> bytes_;
};

TEST(ReadError, AllFields) {
  Exact body("SERROR\0VERROR\0C42601\0Moops\0Dwhy\0Hdo\0P12\0Fscan.l\0\0"s);
  ErrorFields e = read_error(body);
  EXPECT_EQ(e.severity, "ERROR");
  EXPECT_EQ(e.sqlstate, "42601");
  EXPECT_EQ(e.message, "oops");
  EXPECT_EQ(e.detail, "why");
  EXPECT_EQ(e.hint, "do");
}

// CVE-2026-6666: no field can be relied on, nor any terminator.
TEST(ReadError, Broken) {
  for (const std::string& text : {""s, "\0"s, "\0\0\0"s}) {
    Exact body(text);
    ErrorFields e = read_error(body);
    EXPECT_EQ(e.severity, "");
    EXPECT_EQ(e.sqlstate, "");
    EXPECT_EQ(e.message, "");
  }
  Exact key_only("S"), empty_value("S\0M"s), open("SFATAL\0Mhalf a te"s), no_code("SFATAL\0Mx\0\0"s);
  EXPECT_EQ(read_error(key_only).severity, "");
  EXPECT_EQ(read_error(empty_value).message, "");
  EXPECT_EQ(read_error(open).severity, "FATAL");
  EXPECT_EQ(read_error(open).message, "half a te");
  EXPECT_EQ(read_error(no_code).sqlstate, "");
  EXPECT_EQ(read_error(no_code).message, "x");
}

TEST(ReadError, WhatFollowsTheEndIsNotRead) {
  Exact body("Ma\0\0Mb\0"s);
  EXPECT_EQ(read_error(body).message, "a");
}

TEST(ReadError, EveryCut) {
  std::string whole = "SERROR\0C42601\0Moops\0\0"s;
  for (std::size_t n = 0; n <= whole.size(); ++n) {
    Exact body(whole.substr(0, n));
    ErrorFields e = read_error(body);
    EXPECT_TRUE("ERROR"s.starts_with(e.severity) && "42601"s.starts_with(e.sqlstate) && "oops"s.starts_with(e.message));
  }
}

TEST(ReadParameterStatus, Good) {
  Exact body("TimeZone\0UTC\0"s), empty("a\0\0"s);
  auto s = read_parameter_status(body);
  ASSERT_TRUE(s);
  EXPECT_EQ(s->name, "TimeZone");
  EXPECT_EQ(s->value, "UTC");
  s = read_parameter_status(empty);
  ASSERT_TRUE(s);
  EXPECT_EQ(s->value, "");
}

TEST(ReadParameterStatus, Bad) {
  for (const std::string& text : {""s, "a"s, "a\0"s, "a\0b"s, "a\0b\0c"s, "a\0b\0\0"s})
    EXPECT_FALSE(read_parameter_status(Exact(text))) << testing::PrintToString(text);
}

TEST(ReadParse, HeadAndTail) {
  Exact body("s1\0select 1\0\0\0"s), unnamed("\0q\0\0\0"s), bare("s1\0"s);
  auto p = read_parse(body);
  ASSERT_TRUE(p);
  EXPECT_EQ(p->name, "s1");
  EXPECT_EQ(as_text(p->rest), "select 1\0\0\0"s);
  ASSERT_TRUE(read_parse(unnamed));
  EXPECT_EQ(read_parse(unnamed)->name, "");
  ASSERT_TRUE(read_parse(bare));
  EXPECT_TRUE(read_parse(bare)->rest.empty());
  for (const std::string& text : {""s, "s1"s}) EXPECT_FALSE(read_parse(Exact(text)));
}

TEST(ReadParse, Tail) {
  for (const std::string& good : {"\0\0\0"s, "select 1\0\0\0"s, "q\0\0\1abcd"s, "q\0\0\2abcdefgh"s})
    EXPECT_TRUE(valid_parse_tail(Exact(good))) << testing::PrintToString(good);
  for (const std::string& bad : {""s, "q"s, "q\0"s, "q\0\0"s, "q\0\0\1"s, "q\0\0\1abc"s, "q\0\0\1abcde"s, "q\0\0\0x"s,
                                 "q\0\xff\xff"s, "q\0\xff\xff"s + "abcd"})
    EXPECT_FALSE(valid_parse_tail(Exact(bad))) << testing::PrintToString(bad);
  EXPECT_TRUE(valid_parse_tail(Exact("q\0\xff\xff"s + std::string(65535 * 4, 'o'))));
}

TEST(ReadBind, HeadAndTail) {
  Exact body("p\0s\0\0\0\0\0\0\0"s), unnamed("\0\0"s);
  auto b = read_bind(body);
  ASSERT_TRUE(b);
  EXPECT_EQ(b->portal, "p");
  EXPECT_EQ(b->name, "s");
  EXPECT_EQ(as_text(b->rest), "\0\0\0\0\0\0"s);
  ASSERT_TRUE(read_bind(unnamed));
  EXPECT_EQ(read_bind(unnamed)->name, "");
  for (const std::string& text : {""s, "p"s, "p\0"s, "p\0s"s, "\0"s}) EXPECT_FALSE(read_bind(Exact(text)));
}

TEST(ReadBind, LongName) {
  std::string name(64 << 10, 'n');
  Exact body("\0"s + name + "\0rest"s), open("\0"s + name);
  ASSERT_TRUE(read_bind(body));
  EXPECT_EQ(read_bind(body)->name, name);
  EXPECT_FALSE(read_bind(open));
}

TEST(ReadDescribeOrClose, Kinds) {
  Exact statement("Sname\0"s), portal("P\0"s), other("x\0"s);
  auto d = read_describe_or_close(statement);
  ASSERT_TRUE(d);
  EXPECT_EQ(d->kind, 'S');
  EXPECT_EQ(d->name, "name");
  ASSERT_TRUE(read_describe_or_close(portal));
  EXPECT_EQ(read_describe_or_close(portal)->kind, 'P');
  // The server is the one to complain about a kind that is neither.
  ASSERT_TRUE(read_describe_or_close(other));
  EXPECT_EQ(read_describe_or_close(other)->kind, 'x');
  for (const std::string& text : {""s, "S"s, "Sname"s, "Sa\0b"s, "Sa\0\0"s})
    EXPECT_FALSE(read_describe_or_close(Exact(text))) << testing::PrintToString(text);
}

TEST(ReadAuth, Codes) {
  Exact ok("\0\0\0\0"s), md5("\0\0\0\5salt"s), negative("\xff\xff\xff\xff"s);
  ASSERT_TRUE(read_auth(ok));
  EXPECT_EQ(read_auth(ok)->code, 0);
  EXPECT_TRUE(read_auth(ok)->data.empty());
  ASSERT_TRUE(read_auth(md5));
  EXPECT_EQ(read_auth(md5)->code, 5);
  EXPECT_EQ(as_text(read_auth(md5)->data), "salt");
  ASSERT_TRUE(read_auth(negative));
  EXPECT_EQ(read_auth(negative)->code, -1);
  for (std::size_t n = 0; n < 4; ++n) EXPECT_FALSE(read_auth(Exact(std::string(n, '\0'))));
}

TEST(ReadPassword, ExactlyOneString) {
  Exact good("secret\0"s), empty("\0"s);
  EXPECT_EQ(read_password(good), "secret");
  EXPECT_EQ(read_password(empty), "");
  for (const std::string& text : {""s, "secret"s, "a\0b"s, "a\0\0"s}) EXPECT_FALSE(read_password(Exact(text)));
}

TEST(ReadWrite, ErrorComesBack) {
  std::string out;
  error(out, "FATAL", "57P01", "gone");
  Exact body(out.substr(5));
  EXPECT_EQ(read_error(body).severity, "FATAL");
  EXPECT_EQ(read_error(body).sqlstate, "57P01");
  EXPECT_EQ(read_error(body).message, "gone");
}

TEST(Rules, WholeTables) {
  for (int c = 0; c < 256; ++c) {
    bool client = c && std::string_view("QFdPBDCEHSXcf").contains(static_cast<char>(c));
    EXPECT_EQ(kFromClient[static_cast<std::size_t>(c)], client ? Rule::stream : Rule::reject) << c;
    bool streamed = c && std::string_view("DdTtVANnIs123GHWcE").contains(static_cast<char>(c));
    bool whole = c && std::string_view("CZSK").contains(static_cast<char>(c));
    EXPECT_EQ(kFromServer[static_cast<std::size_t>(c)], streamed ? Rule::stream
                                                        : whole  ? Rule::whole
                                                                 : Rule::reject)
        << c;
  }
}

TEST(Negotiated, ReadsWhatIsWritten) {
  for (std::vector<std::string> names : {std::vector<std::string>{}, {"_pq_.a"}, {"_pq_.a", "_pq_.long name"}}) {
    std::string out;
    negotiate_protocol_version(out, 0x30002, names);
    Bytes body = as_bytes(out).subspan(5);
    auto read = read_negotiated(body);
    ASSERT_TRUE(read);
    EXPECT_EQ(read->version, 0x30002u);
    EXPECT_EQ(read->unknown, names.size());
    for (std::size_t n = 0; n < body.size(); ++n) EXPECT_FALSE(read_negotiated(body.first(n))) << n;
    out += 'x';
    EXPECT_FALSE(read_negotiated(as_bytes(out).subspan(5)));
  }
  // A count that nobody can have sent ends with the bytes, not with the count.
  EXPECT_FALSE(read_negotiated(as_bytes(std::string_view("\0\3\0\0\xff\xff\xff\xff", 8))));
}

}  // namespace
}  // namespace pgf::wire
