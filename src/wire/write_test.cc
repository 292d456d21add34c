#include "wire/write.h"

#include <gtest/gtest.h>

#include <limits>

#include "wire/cancel_key.h"

namespace pgf::wire {
namespace {

// "52 00000008" -> bytes. Literals with \0 and digits side by side are too easy to get wrong.
std::string hex(std::string_view digits) {
  std::string out;
  int half = -1;
  for (char c : digits) {
    if (c == ' ') continue;
    int v = c <= '9' ? c - '0' : c - 'a' + 10;
    if (half < 0) {
      half = v;
    } else {
      out += static_cast<char>(half << 4 | v);
      half = -1;
    }
  }
  return out;
}

std::string z(std::string_view text) { return std::string(text) + '\0'; }

// Every builder has to append: what stands in the buffer before it stays, and the length counts from its own start.
template <class F>
std::string built(F&& build) {
  std::string out = "before";
  build(out);
  EXPECT_TRUE(out.starts_with("before"));
  std::string message = out.substr(6);
  EXPECT_GE(message.size(), 5u);
  EXPECT_EQ(load_be32(as_bytes(message).data() + 1), message.size() - 1);
  return message;
}

TEST(Write, Authentication) {
  EXPECT_EQ(built([](auto& o) { auth_ok(o); }), hex("52 00000008 00000000"));
  EXPECT_EQ(built([](auto& o) { auth_cleartext(o); }), hex("52 00000008 00000003"));
  const std::uint8_t salt[4] = {0, 1, 0xfe, 0xff};
  EXPECT_EQ(built([&](auto& o) { auth_md5(o, salt); }), hex("52 0000000c 00000005 0001feff"));
  EXPECT_EQ(built([](auto& o) { auth_sasl(o); }), hex("52 00000017 0000000a") + z("SCRAM-SHA-256") + hex("00"));
  EXPECT_EQ(built([](auto& o) { auth_sasl(o, true); }),
            hex("52 0000002a 0000000a") + z("SCRAM-SHA-256-PLUS") + z("SCRAM-SHA-256") + hex("00"));
  EXPECT_EQ(built([](auto& o) { auth_sasl_continue(o, "r=x"); }), hex("52 0000000b 0000000b") + "r=x");
  EXPECT_EQ(built([](auto& o) { auth_sasl_final(o, "v=y"); }), hex("52 0000000b 0000000c") + "v=y");
  EXPECT_EQ(built([](auto& o) { password_message(o, "s3"); }), hex("70 00000007") + z("s3"));
  EXPECT_EQ(built([](auto& o) { password_message(o, ""); }), hex("70 00000005 00"));
  EXPECT_EQ(built([](auto& o) { sasl_message(o, "n,,"); }), hex("70 00000007") + "n,,");
}

TEST(Write, Login) {
  EXPECT_EQ(built([](auto& o) { parameter_status(o, "TimeZone", "UTC"); }),
            hex("53 00000011") + z("TimeZone") + z("UTC"));
  CancelKey key{1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(built([&](auto& o) { backend_key_data(o, key); }), hex("4b 0000000c 0102030405060708"));
  EXPECT_EQ(built([](auto& o) { ready_for_query(o, 'I'); }), hex("5a 00000005 49"));
  EXPECT_EQ(built([](auto& o) { negotiate_protocol_version(o, 3 << 16, {}); }), hex("76 0000000c 00030000 00000000"));
  const std::string unknown[] = {"_pq_.a", "_pq_.bc"};
  EXPECT_EQ(built([&](auto& o) { negotiate_protocol_version(o, 3 << 16, unknown); }),
            hex("76 0000001b 00030000 00000002") + z("_pq_.a") + z("_pq_.bc"));
}

TEST(Write, Simple) {
  EXPECT_EQ(built([](auto& o) { message(o, '?', std::string_view("\0x", 2)); }), hex("3f 00000006 0078"));
  EXPECT_EQ(built([](auto& o) { query(o, "select 1"); }), hex("51 0000000d") + z("select 1"));
  EXPECT_EQ(built([](auto& o) { terminate(o); }), hex("58 00000004"));
  EXPECT_EQ(built([](auto& o) { command_complete(o, "SHOW"); }), hex("43 00000009") + z("SHOW"));
  EXPECT_EQ(built([](auto& o) { empty_query(o); }), hex("49 00000004"));
}

TEST(Write, Error) {
  EXPECT_EQ(built([](auto& o) { error(o, "FATAL", "08P01", "bad"); }),
            hex("45 00000018") + "S" + z("FATAL") + "C" + z("08P01") + "M" + z("bad") + hex("00"));
  EXPECT_EQ(built([](auto& o) { notice(o, "hi"); }),
            hex("4e 00000018") + "S" + z("NOTICE") + "C" + z("00000") + "M" + z("hi") + hex("00"));
  EXPECT_EQ(built([](auto& o) { notice(o, "hi", "d"); }),
            hex("4e 0000001b") + "S" + z("NOTICE") + "C" + z("00000") + "M" + z("hi") + "D" + z("d") + hex("00"));
}

TEST(Write, Extended) {
  EXPECT_EQ(built([](auto& o) { parse(o, "PGBOUNCER_1", std::string_view("select $1\0\0\1\0\0\0\x19", 16)); }),
            hex("50 00000020") + z("PGBOUNCER_1") + z("select $1") + hex("0001 00000019"));
  EXPECT_EQ(built([](auto& o) { close_statement(o, "a"); }), hex("43 00000007") + "S" + z("a"));
  const std::string_view parameters[] = {"bob", ""};
  EXPECT_EQ(built([&](auto& o) { bind_text(o, parameters); }),
            hex("42 00000017 00 00 0000 0002 00000003") + "bob" + hex("00000000 0000"));
  EXPECT_EQ(built([](auto& o) { bind_text(o, {}); }), hex("42 0000000c 00 00 0000 0000 0000"));
  EXPECT_EQ(built([](auto& o) { describe_portal(o); }), hex("44 00000006 50 00"));
  EXPECT_EQ(built([](auto& o) { execute(o); }), hex("45 00000009 00 00000000"));
  EXPECT_EQ(built([](auto& o) { sync(o); }), hex("53 00000004"));
  EXPECT_EQ(built([](auto& o) { parse_complete(o); }), hex("31 00000004"));
  EXPECT_EQ(built([](auto& o) { close_complete(o); }), hex("33 00000004"));
}

// admin.md: table OID 0, column number 0, typmod -1, text format; length 4 for i, 8 for q, -1 otherwise.
TEST(Write, RowDescription) {
  const Column columns[] = {{"a", 's'}, {"b", 'i'}, {"c", 'q'}, {"d", 'N'}, {"e", 'b'}, {"f", 'T'}};
  auto column = [](std::string_view name, std::string_view oid, std::string_view size) {
    return z(name) + hex("00000000 0000") + hex(oid) + hex(size) + hex("ffffffff 0000");
  };
  std::string body = hex("0006") + column("a", "00000019", "ffff") + column("b", "00000017", "0004") +
                     column("c", "00000014", "0008") + column("d", "000006a4", "ffff") +
                     column("e", "00000011", "ffff") + column("f", "00000019", "ffff");
  EXPECT_EQ(built([&](auto& o) { row_description(o, columns); }), hex("54 0000007e") + body);
  EXPECT_EQ(built([](auto& o) { row_description(o, {}); }), hex("54 00000006 0000"));
}

TEST(Write, Row) {
  EXPECT_EQ(built([](auto& o) { RowWriter(o).text("ab").null().number(-12).text(""); }),
            hex("44 0000001b 0004 00000002") + "ab" + hex("ffffffff 00000003") + "-12" + hex("00000000"));
  EXPECT_EQ(built([](auto& o) { RowWriter row(o); }), hex("44 00000006 0000"));
  EXPECT_EQ(built([](auto& o) { RowWriter(o).number(std::numeric_limits<std::int64_t>::min()); }),
            hex("44 0000001e 0001 00000014") + "-9223372036854775808");
}

TEST(Write, RowEndsOnce) {
  std::string out;
  {
    RowWriter row(out);
    row.text("x");
    row.end();
    out += "after";  // the destructor must not count this
  }
  EXPECT_EQ(out, hex("44 0000000b 0001 00000001") + "xafter");
}

TEST(Write, ConsoleLoginParameters) {
  std::string out, expected;
  console_parameter_status(out, "1.25.2");
  for (auto [name, value] :
       std::initializer_list<std::pair<std::string_view, std::string_view>>{{"server_version", "1.25.2/bouncer"},
                                                                            {"client_encoding", "UTF8"},
                                                                            {"server_encoding", "UTF8"},
                                                                            {"DateStyle", "ISO"},
                                                                            {"TimeZone", "GMT"},
                                                                            {"standard_conforming_strings", "on"},
                                                                            {"is_superuser", "on"}})
    parameter_status(expected, name, value);
  EXPECT_EQ(out, expected);
}

TEST(Write, ManyMessagesInOneBuffer) {
  std::string out;
  parse_complete(out);
  command_complete(out, "SELECT 1");
  ready_for_query(out, 'T');
  EXPECT_EQ(out, hex("31 00000004 43 0000000d") + z("SELECT 1") + hex("5a 00000005 54"));
}

TEST(Write, BodyOverAMegabyte) {
  std::string big(3 << 20, 'x');
  EXPECT_EQ(built([&](auto& o) { query(o, big); }), hex("51 00300005") + z(big));
}

}  // namespace
}  // namespace pgf::wire
