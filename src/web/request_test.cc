#include "web/request.h"

#include <gtest/gtest.h>

namespace pgf::web {
namespace {

std::string shown(std::string_view bytes) {
  auto got = parse(bytes);
  if (std::holds_alternative<Unfinished>(got)) return "unfinished";
  if (auto* r = std::get_if<Refused>(&got)) return std::to_string(r->status);
  const Request& r = std::get<Request>(got);
  return (r.head_only ? "HEAD " : "GET ") + r.path + "|" + r.query + "|" + r.authorization;
}

TEST(Request, WhatAClientAsks) {
  EXPECT_EQ(shown("GET / HTTP/1.1\r\n\r\n"), "GET /||");
  EXPECT_EQ(shown("HEAD /metrics?a=1&b HTTP/1.0\r\nHost: x\r\n\r\n"), "HEAD /metrics|a=1&b|");
  EXPECT_EQ(shown("GET /a%20b HTTP/1.1\r\nAUTHORIZATION:  Bearer t \r\nContent-Length: 0\r\n\r\nrest"),
            "GET /a b||Bearer t");
}

TEST(Request, ItsHost) {
  EXPECT_EQ(std::get<Request>(parse("GET / HTTP/1.1\r\nhost: a:1 \r\n\r\n")).host, "a:1");
  EXPECT_EQ(std::get<Request>(parse("GET / HTTP/1.0\r\n\r\n")).host, "");
}

TEST(Request, EveryCutIsUnfinished) {
  const std::string whole = "GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n";
  for (std::size_t n = 0; n < whole.size(); ++n) EXPECT_EQ(shown(whole.substr(0, n)), "unfinished") << n;
  EXPECT_EQ(shown(whole), "GET /metrics||");
}

TEST(Request, WhatIsRefused) {
  EXPECT_EQ(shown("POST / HTTP/1.1\r\n\r\n"), "405");
  EXPECT_EQ(shown("GET / HTTP/2.0\r\n\r\n"), "505");
  EXPECT_EQ(shown("GET /\r\n\r\n"), "400");
  EXPECT_EQ(shown("GET\r\n\r\n"), "400");
  EXPECT_EQ(shown("GET http://x/ HTTP/1.1\r\n\r\n"), "400");
  EXPECT_EQ(shown("GET /%zz HTTP/1.1\r\n\r\n"), "400");
  EXPECT_EQ(shown("GET /%00 HTTP/1.1\r\n\r\n"), "400");
  EXPECT_EQ(shown("GET /%4 HTTP/1.1\r\n\r\n"), "400");
  EXPECT_EQ(shown("GET /a b HTTP/1.1\r\n\r\n"), "400");
  EXPECT_EQ(shown("GET / HTTP/1.1\r\nno colon\r\n\r\n"), "400");
  EXPECT_EQ(shown("GET / HTTP/1.1\r\nbad name: x\r\n\r\n"), "400");
  EXPECT_EQ(shown("GET / HTTP/1.1\r\n: x\r\n\r\n"), "400");
  EXPECT_EQ(shown("GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"), "400");
  EXPECT_EQ(shown("GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"), "400");
  EXPECT_EQ(shown("GET / HTTP/1.1\r\nx: " + std::string(kMaxHead, 'x')), "431");
}

TEST(Request, OtherProtocolsAreKnownByTheirFirstByte) {
  EXPECT_EQ(shown(std::string_view("\0\0\0\x08\x04\xd2\x16\x2f", 8)), "400");
  EXPECT_EQ(shown("\x16\x03\x01"), "400");
}

TEST(Request, QueryValues) {
  EXPECT_EQ(query_value("a=1&b=x%20y+z&c", "b"), "x y z");
  EXPECT_EQ(query_value("a=1&b=2&c", "c"), "");
  EXPECT_EQ(query_value("a=1", "b"), std::nullopt);
  EXPECT_EQ(query_value("ab=1", "a"), std::nullopt);
  EXPECT_EQ(query_value("a=%q1", "a"), std::nullopt);
}

}  // namespace
}  // namespace pgf::web
