#include "auth/ldap_options.h"

#include <gmock/gmock.h>

namespace pgf::auth {
namespace {

std::string error_of(std::string_view text) {
  auto o = parse_ldap_options(text);
  return o ? check_ldap_options(*o) : o.error();
}

TEST(LdapOptions, Forms) {
  auto o = parse_ldap_options(
      " ldapserver=\"a b\"  \"ldapport\"=390,ldapbasedn=\"dc=x,dc=y\" , ldapsearchfilter=\"(a=\"\"$username\"\")\" "
      "ldaptls=1\n");
  ASSERT_TRUE(o) << o.error();
  EXPECT_EQ(o->server, "a b");
  EXPECT_EQ(o->port, 390);
  EXPECT_EQ(o->base_dn, "dc=x,dc=y");
  EXPECT_EQ(o->search_filter, "(a=\"$username\")");
  EXPECT_TRUE(o->start_tls);
  EXPECT_FALSE(o->prefix);
  EXPECT_EQ(check_ldap_options(*o), "");
  o = parse_ldap_options("ldapserver=x ldapprefix=uid= # ldapport=nonsense");
  ASSERT_TRUE(o);
  EXPECT_EQ(o->prefix, "uid=");
  EXPECT_EQ(check_ldap_options(*o), "");
}

TEST(LdapOptions, Errors) {
  for (const char* text : {"ldapserver", "ldapserver=", "ldapserver= x", "=x", "\"ldapserver=x", "ldapserver=\"x",
                           "\"ldapserver\" =x", "ldap server=x"})
    EXPECT_EQ(error_of(text), "LDAP options are not of the form key=value") << text;
  EXPECT_EQ(error_of("ldapfoo=x"), "invalid LDAP option: \"ldapfoo\"");
  EXPECT_EQ(error_of("ldapscheme=http"), "invalid ldapscheme value: \"http\"");
  for (const char* port : {"0", "-1", "65536", "1x", "x"})
    EXPECT_EQ(error_of(std::string("ldapport=") + port), std::string("invalid LDAP port number: \"") + port + "\"");
  EXPECT_EQ(error_of("ldapserver=x ldapprefix=a ldapbasedn=b"),
            "cannot mix options for simple bind and search+bind modes");
  EXPECT_EQ(error_of("ldapserver=x ldapbasedn=b ldapsearchattribute=a ldapsearchfilter=f"),
            "cannot use ldapsearchattribute together with ldapsearchfilter");
  EXPECT_THAT(error_of("ldapserver=x"), testing::HasSubstr("requires argument"));
  EXPECT_EQ(error_of("ldapprefix=a"), "LDAP server not specified, and no ldapbasedn");
}

TEST(LdapOptions, PasswordsAreNotRepeated) {
  EXPECT_THAT(error_of("ldapbindpasswd=\"secret"), testing::Not(testing::HasSubstr("secret")));
  EXPECT_THAT(error_of("ldapbindpasswd=secret word"), testing::Not(testing::HasSubstr("secret")));
}

TEST(LdapOptions, Filter) {
  LdapOptions o;
  EXPECT_EQ(ldap_filter(o, "joe"), "(uid=joe)");
  o.search_attribute = "cn";
  EXPECT_EQ(ldap_filter(o, "joe"), "(cn=joe)");
  o.search_filter = "(|(uid=$username)(mail=$username))";
  EXPECT_EQ(ldap_filter(o, "joe"), "(|(uid=joe)(mail=joe))");
  EXPECT_EQ(ldap_filter(o, "$username"), "(|(uid=$username)(mail=$username))");
  for (const char* name : {"*", "a)(b", "a\\2a", "a/b"}) EXPECT_EQ(ldap_filter(o, name), std::nullopt) << name;
  EXPECT_EQ(ldap_filter(o, std::string_view("a\0b", 3)), std::nullopt);
}

}  // namespace
}  // namespace pgf::auth
