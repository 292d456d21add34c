#include "session/auth_query.h"

#include <gmock/gmock.h>

#include <optional>
#include <vector>

namespace pgf::session {
namespace {

using Step = AuthQueryReply::Step;

std::string be32(std::int32_t n) {
  std::string s(4, '\0');
  store_be32(reinterpret_cast<std::uint8_t*>(s.data()), static_cast<std::uint32_t>(n));
  return s;
}
std::string be16(std::uint16_t n) { return be32(n).substr(2); }

std::string row(std::vector<std::optional<std::string>> values) {
  std::string s = be16(static_cast<std::uint16_t>(values.size()));
  for (const auto& v : values) s += v ? be32(static_cast<std::int32_t>(v->size())) + *v : be32(-1);
  return s;
}

Step read(AuthQueryReply& reply, char type, std::string_view body = {}) {
  return reply.read(static_cast<std::uint8_t>(type), as_bytes(body));
}

std::string trouble(char type, std::string_view body) {
  AuthQueryReply reply;
  return read(reply, type, body) == Step::bad ? reply.trouble() : "";
}

TEST(AuthQuery, WhatIsSent) {
  std::string out;
  write_auth_query(out, "SELECT $1", "o'neil");
  std::string expected;
  auto message = [&](char type, const std::string& body) {
    expected += type + be32(static_cast<std::int32_t>(body.size()) + 4) + body;
  };
  using namespace std::string_literals;
  message('P', "\0SELECT $1\0\0\0"s);
  message('B', "\0\0"s + be16(0) + be16(1) + be32(6) + "o'neil" + be16(0));
  message('D', "P\0"s);
  message('E', "\0"s + be32(0));
  message('S', "");
  EXPECT_EQ(out, expected);
}

TEST(AuthQueryReply, Found) {
  AuthQueryReply reply;
  for (char type : {'1', '2'}) EXPECT_EQ(read(reply, type), Step::more);
  EXPECT_EQ(read(reply, 'N', "SNOTICE\0\0"), Step::more);
  EXPECT_EQ(read(reply, 'T', be16(2)), Step::more);
  EXPECT_EQ(read(reply, 'D', row({"joe", "secret"})), Step::more);
  EXPECT_EQ(read(reply, 'C', "SELECT 1"), Step::more);
  EXPECT_EQ(read(reply, 'S', "x"), Step::more);
  EXPECT_EQ(read(reply, 'Z', "I"), Step::done);
  EXPECT_TRUE(reply.found());
  EXPECT_EQ(reply.user(), "joe");
  EXPECT_EQ(reply.secret(), "secret");
}

TEST(AuthQueryReply, NobodyAndNoPassword) {
  AuthQueryReply nobody;
  EXPECT_EQ(read(nobody, 'T', be16(2)), Step::more);
  EXPECT_EQ(read(nobody, 'Z', "I"), Step::done);
  EXPECT_FALSE(nobody.found());
  AuthQueryReply bare;
  EXPECT_EQ(read(bare, 'D', row({"joe", std::nullopt})), Step::more);
  EXPECT_TRUE(bare.found());
  EXPECT_EQ(bare.secret(), "");
}

TEST(AuthQueryReply, Trouble) {
  EXPECT_EQ(trouble('T', be16(3)), "expected 2 columns from auth_query, not 3");
  EXPECT_EQ(trouble('D', row({"joe"})), "expected 2 columns from auth_query, not 1");
  EXPECT_EQ(trouble('D', row({std::nullopt, "x"})), "auth_query response contained null user name");
  EXPECT_EQ(trouble('D', row({"", "x"})), "auth_query response contained a bad user name");
  EXPECT_EQ(trouble('D', row({std::string(127, 'x'), "x"})), "");
  EXPECT_EQ(trouble('D', row({std::string(128, 'x'), "x"})), "auth_query response contained a bad user name");
  EXPECT_NE(trouble('D', row({"joe", std::string(70'000, 'x')})), "");
  EXPECT_EQ(trouble('Z', "T"), "unexpected response from auth_query");
  for (char type : {'G', 'H', 'W', 'd', 's', 'I', 'n', 'R', 'x'})
    EXPECT_EQ(trouble(type, ""), "unexpected response from auth_query") << type;
  AuthQueryReply twice;
  EXPECT_EQ(read(twice, 'D', row({"joe", "x"})), Step::more);
  EXPECT_EQ(read(twice, 'D', row({"joe", "x"})), Step::bad);
}

TEST(AuthQueryReply, ServerError) {
  AuthQueryReply reply;
  EXPECT_EQ(read(reply, 'E', std::string_view("SERROR\0C42601\0Msyntax error\0\0", 30)), Step::bad);
  EXPECT_EQ(reply.trouble(), "error response from auth_query");
  EXPECT_EQ(reply.server_error(), "ERROR: syntax error");
}

TEST(AuthQueryReply, BrokenRows) {
  std::string good = row({"joe", "secret"});
  for (std::size_t n = 0; n < good.size(); ++n) EXPECT_EQ(trouble('D', good.substr(0, n)), "bad packet") << n;
  EXPECT_EQ(trouble('D', good + "x"), "bad packet");
  EXPECT_EQ(trouble('D', be16(2) + be32(-2) + be32(0)), "bad packet");
  EXPECT_EQ(trouble('D', be16(2) + be32(1) + "a" + be32(-2)), "bad packet");
  EXPECT_EQ(trouble('D', be16(2) + be32(0x7fffffff) + "a"), "bad packet");
  EXPECT_EQ(trouble('T', ""), "bad packet");
}

}  // namespace
}  // namespace pgf::session
