#include "auth/hba.h"

#include <gmock/gmock.h>

#include "auth/ip_literal.h"

namespace pgf::auth {
namespace {

using testing::Contains;
using testing::HasSubstr;

struct Files {
  std::map<std::string, std::string> content;
  std::optional<std::string> operator()(const std::string& path) const {
    auto it = content.find(path);
    return it == content.end() ? std::nullopt : std::optional(it->second);
  }
};

HbaParsed parse(std::string_view text, const IdentMaps& maps = {}, Files files = {}) {
  return parse_hba(text, "/etc/pool/hba.conf", maps, files);
}

// Line of the rule that decides, 0 = none. `from` is an address, empty for the Unix socket.
int line_of(const Hba& hba, std::string_view database, std::string_view user, std::string_view from = {},
            bool tls = false, bool physical = false) {
  std::array<std::uint8_t, 16> bytes;
  HbaRequest r;
  r.local = from.empty();
  r.tls = tls;
  r.physical_replication = physical;
  if (!r.local) {
    std::size_t size = parse_ip_literal(from, bytes);
    EXPECT_NE(size, 0u) << from;
    r.address = Bytes{bytes.data(), size};
  }
  r.database = database;
  r.user = user;
  const HbaRule* rule = hba.match(r);
  return rule ? rule->line : 0;
}

int decide(std::string_view text, std::string_view database, std::string_view user, std::string_view from = {},
           bool tls = false) {
  HbaParsed p = parse(text);
  EXPECT_FALSE(p.broken) << text << testing::PrintToString(p.warnings);
  return line_of(p.hba, database, user, from, tls);
}

bool broken(std::string_view text) {
  HbaParsed p = parse(text);
  EXPECT_EQ(p.hba.rules.size(), p.broken ? 0u : 1u) << text;
  return p.broken;
}

TEST(Hba, FirstMatchDecides) {
  std::string text = "host a u 10.0.0.0/8 trust\nhost a all 10.1.0.0/16 reject\nhost all all 0.0.0.0/0 md5\n";
  EXPECT_EQ(decide(text, "a", "u", "10.1.2.3"), 1);
  EXPECT_EQ(decide(text, "a", "v", "10.1.2.3"), 2);
  EXPECT_EQ(decide(text, "b", "v", "10.1.2.3"), 3);
  EXPECT_EQ(decide(text, "a", "u", "::1"), 0);
  EXPECT_EQ(decide(text, "a", "u"), 0);
}

TEST(Hba, Methods) {
  HbaParsed p = parse(
      "local all all trust\nlocal all all reject\nlocal all all password\nlocal all all md5\n"
      "local all all scram-sha-256\nlocal all all cert\nlocal all all peer\nlocal all all ldap ldapserver=x # y\n");
  ASSERT_FALSE(p.broken);
  using M = HbaMethod;
  std::vector<M> expected{M::trust, M::reject, M::password, M::md5, M::scram_sha_256, M::cert, M::peer, M::ldap};
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(p.hba.rules[i].method, expected[i]) << i;
  EXPECT_EQ(p.hba.rules.back().options, " ldapserver=x # y");
}

TEST(Hba, TypesOfConnection) {
  std::string text = "hostssl d all all md5\nhostnossl e all all md5\nhost f all all md5\nlocal g all md5\n";
  EXPECT_EQ(decide(text, "d", "u", "1.2.3.4", true), 1);
  EXPECT_EQ(decide(text, "d", "u", "1.2.3.4", false), 0);
  EXPECT_EQ(decide(text, "e", "u", "1.2.3.4", true), 0);
  EXPECT_EQ(decide(text, "e", "u", "fe80::1", false), 2);
  EXPECT_EQ(decide(text, "f", "u", "1.2.3.4", true), 3);
  EXPECT_EQ(decide(text, "f", "u", "1.2.3.4", false), 3);
  EXPECT_EQ(decide(text, "f", "u"), 0);
  EXPECT_EQ(decide(text, "g", "u"), 4);
  EXPECT_EQ(decide(text, "g", "u", "1.2.3.4"), 0);
}

TEST(Hba, Addresses) {
  EXPECT_EQ(decide("host all all 10.20.0.0/15 md5", "d", "u", "10.21.255.255"), 1);
  EXPECT_EQ(decide("host all all 10.20.0.0/15 md5", "d", "u", "10.22.0.0"), 0);
  EXPECT_EQ(decide("host all all 10.20.0.0 255.255.0.0 md5", "d", "u", "10.20.9.9"), 1);
  EXPECT_EQ(decide("host all all 10.20.0.0 255.255.0.0 md5", "d", "u", "10.21.0.1"), 0);
  EXPECT_EQ(decide("host all all 1.2.3.4/32 md5", "d", "u", "1.2.3.5"), 0);
  EXPECT_EQ(decide("host all all 0.0.0.0/0 md5", "d", "u", "255.1.2.3"), 1);
  EXPECT_EQ(decide("host all all fe80::/10 md5", "d", "u", "febf::1"), 1);
  EXPECT_EQ(decide("host all all fe80::/10 md5", "d", "u", "fec0::1"), 0);
  EXPECT_EQ(decide("host all all ::1/128 md5", "d", "u", "::1"), 1);
  EXPECT_EQ(decide("host all all ff00:: ff00:: md5", "d", "u", "ff12::9"), 1);
  EXPECT_EQ(decide("host all all ::/0 md5", "d", "u", "1.2.3.4"), 0);
  EXPECT_EQ(decide("host all all all md5", "d", "u", "1.2.3.4"), 1);
}

TEST(Hba, BitsOutsideOfTheMaskMatchNobody) {
  HbaParsed p = parse("host all all 10.0.0.1/8 trust\n");
  EXPECT_FALSE(p.broken);
  EXPECT_THAT(p.warnings, Contains(HasSubstr("address does not match mask")));
  EXPECT_EQ(line_of(p.hba, "d", "u", "10.0.0.1"), 0);
}

TEST(Hba, Names) {
  std::string text = "local a,b , c u1,u2 md5\nlocal sameuser all md5\n";
  for (const char* db : {"a", "b", "c"}) EXPECT_EQ(decide(text, db, "u2"), 1) << db;
  EXPECT_EQ(decide(text, "a", "u3"), 0);
  EXPECT_EQ(decide(text, "u9", "u9"), 2);
  EXPECT_EQ(decide("local all \"all\" md5", "d", "u"), 0);
  EXPECT_EQ(decide("local all \"all\" md5", "d", "all"), 1);
  EXPECT_EQ(decide("local \"x\"\"y\" \"a, b\" md5", "x\"y", "a, b"), 1);
  EXPECT_EQ(decide("local \"@f\" \"+g\" md5", "@f", "+g"), 1);
  EXPECT_EQ(decide("local D u md5", "d", "u"), 0);  // exactly as written
  EXPECT_EQ(decide("local all all trust # comment\n  # only that\n\t\n", "d", "u"), 1);
}

TEST(Hba, ReplicationIsNotAmongAll) {
  HbaParsed p = parse("local all all md5\nlocal replication rep md5\nlocal \"replication\" q md5\n");
  EXPECT_EQ(line_of(p.hba, "d", "rep"), 1);
  EXPECT_EQ(line_of(p.hba, "d", "rep", {}, false, true), 2);
  EXPECT_EQ(line_of(p.hba, "replication", "q", {}, false, true), 0);
}

TEST(Hba, BadLines) {
  for (const char* text : {"locale all all md5",
                           "local all md5",
                           "local all all",
                           "local all all gss",
                           "local all all md5 extra",
                           "local all all md5 map",
                           "local all all peer map=nowhere",
                           "local all all md5 \"map=x\"",
                           "local samerole all md5",
                           "local samegroup all md5",
                           "local all +group md5",
                           "local all @missing md5",
                           "local all, md5",
                           "local , all md5",
                           "host all all 10.0.0.0/33 md5",
                           "host all all 10.0.0.0/ md5",
                           "host all all 10.0.0.0/-1 md5",
                           "host all all 10.0.0.0/8x md5",
                           "host all all 10.0.0 255.0.0.0 md5",
                           "host all all 10.0.0.0 md5",
                           "host all all 10.0.0.0 ff:: md5",
                           "host all all ::1/129 md5",
                           "host all all samehost md5",
                           "host all all example.com md5",
                           "host all all \"all\" md5",
                           "host all all md5",
                           "local all \"open md5",
                           "LOCAL all all md5",
                           "local all all MD5",
                           "host all all 010.0.0.0/8 md5"})
    EXPECT_TRUE(broken(text)) << text;
  EXPECT_TRUE(broken(std::string_view("local a\0b all md5", 17)));
}

TEST(Hba, TheRestOfTheFileStillCounts) {
  HbaParsed p = parse("nonsense\nlocal all all md5\nhost all all nonsense md5\nlocal all all trust");
  EXPECT_TRUE(p.broken);
  EXPECT_EQ(p.hba.rules.size(), 2u);
  EXPECT_EQ(line_of(p.hba, "d", "u"), 2);
  EXPECT_THAT(p.warnings, Contains("could not parse hba config line 1"));
  EXPECT_THAT(p.warnings, Contains("could not parse hba config line 3"));
}

TEST(Hba, IncludedNames) {
  Files files{{{"/etc/pool/dbs", "a\n# comment\n\nb, c d\n\"e f\" @more\n"},
               {"/etc/pool/more", "all\n"},
               {"/abs/users", "u1\nu2"},
               {"/etc/pool/loop", "x @loop"}}};
  HbaParsed p = parse("local @dbs @/abs/users md5\n", {}, files);
  ASSERT_FALSE(p.broken) << testing::PrintToString(p.warnings);
  EXPECT_EQ(p.hba.rules[0].databases.names, (std::set<std::string, std::less<>>{"a", "b", "c", "d", "e f"}));
  EXPECT_TRUE(p.hba.rules[0].databases.all);
  EXPECT_EQ(line_of(p.hba, "zz", "u2"), 1);
  EXPECT_EQ(line_of(p.hba, "zz", "u3"), 0);
  EXPECT_TRUE(parse("local @loop all md5\n", {}, files).broken);
}

TEST(Ident, Maps) {
  IdentParsed p = parse_ident("m sys u1 # c\nm \"other sys\" all\n\nm2 sys \"all\"\n");
  ASSERT_FALSE(p.broken);
  ASSERT_EQ(p.maps.size(), 2u);
  const IdentMap& m = *p.maps["m"];
  ASSERT_EQ(m.size(), 2u);
  EXPECT_EQ(m[0].system_user, "sys");
  EXPECT_TRUE(m[0].allows("u1"));
  EXPECT_FALSE(m[0].allows("u2"));
  EXPECT_EQ(m[1].system_user, "other sys");
  EXPECT_TRUE(m[1].allows("anybody"));
  EXPECT_FALSE((*p.maps["m2"])[0].allows("u"));
  EXPECT_TRUE((*p.maps["m2"])[0].allows("all"));

  HbaParsed h = parse("local all all peer map=m\nlocal all all cert map=m2\n", p.maps);
  ASSERT_FALSE(h.broken);
  EXPECT_EQ(h.hba.rules[0].map.get(), p.maps["m"].get());
  EXPECT_EQ(h.hba.rules[0].map_name, "m");
}

TEST(Ident, BadLines) {
  for (const char* text : {"m", "m sys", "m sys u more", "\"m\" sys u", "m , u", "m sys \"u"}) {
    IdentParsed p = parse_ident(text);
    EXPECT_TRUE(p.broken) << text;
    EXPECT_TRUE(p.maps.empty()) << text;
    EXPECT_THAT(p.warnings, Contains("could not parse ident config line 1"));
  }
  EXPECT_EQ(parse_ident("m\nm s u\n").maps.size(), 1u);
}

TEST(IpLiteral, Forms) {
  auto text = [](std::string_view in) {
    std::array<std::uint8_t, 16> b;
    std::size_t n = parse_ip_literal(in, b);
    std::string out;
    for (std::size_t i = 0; i < n; ++i) out += "0123456789abcdef"[b[i] >> 4], out += "0123456789abcdef"[b[i] & 15];
    return out;
  };
  EXPECT_EQ(text("1.2.30.255"), "01021eff");
  EXPECT_EQ(text("::"), std::string(32, '0'));
  EXPECT_EQ(text("::1"), std::string(31, '0') + "1");
  EXPECT_EQ(text("1::"), "0001" + std::string(28, '0'));
  EXPECT_EQ(text("1:2::7:8"), "00010002000000000000000000070008");
  EXPECT_EQ(text("1:2:3:4:5:6:7:8"), "00010002000300040005000600070008");
  EXPECT_EQ(text("::ffff:1.2.3.4"), "00000000000000000000ffff01020304");
  EXPECT_EQ(text("1:2:3:4:5:6:1.2.3.4"), "00010002000300040005000601020304");
  for (const char* bad : {"",
                          "1",
                          "1.2.3",
                          "1.2.3.4.5",
                          "1.2.3.256",
                          "1.2.3.04",
                          "1..2.3",
                          "1.2.3.",
                          ":",
                          ":::",
                          "1::2::3",
                          "1:2:3:4:5:6:7",
                          "1:2:3:4:5:6:7:8:9",
                          "1:2:3:4:5:6:7::8",
                          "12345::",
                          "g::",
                          "1.2.3.4::",
                          "::1.2.3",
                          "1:",
                          ":1",
                          "+1.2.3.4",
                          " 1.2.3.4",
                          "1:2:3:4:5:6:7:1.2.3.4",
                          "::1%lo",
                          "fe80::1:",
                          "1.2.3.-4"})
    EXPECT_EQ(text(bad), "") << bad;
}

}  // namespace
}  // namespace pgf::auth
