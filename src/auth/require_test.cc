#include "auth/require.h"

#include <gtest/gtest.h>

namespace pgf::auth {

TEST(RequireAuth, EmptyAllowsAll) {
  auto r = RequireAuth::parse("");
  ASSERT_TRUE(r);
  EXPECT_EQ(*r, RequireAuth());
  for (auto m : {AskedFor::nothing, AskedFor::password, AskedFor::md5, AskedFor::scram}) EXPECT_TRUE(r->allows(m));
}

TEST(RequireAuth, List) {
  auto r = RequireAuth::parse("scram-sha-256,md5");
  ASSERT_TRUE(r);
  EXPECT_TRUE(r->allows(AskedFor::scram));
  EXPECT_TRUE(r->allows(AskedFor::md5));
  EXPECT_FALSE(r->allows(AskedFor::password));
  EXPECT_FALSE(r->allows(AskedFor::nothing));
  EXPECT_EQ(r->refusal(AskedFor::password),
            "server asks for the password in clear, which require_auth=scram-sha-256,md5 forbids");
}

TEST(RequireAuth, Negated) {
  auto r = RequireAuth::parse("!password,!none");
  ASSERT_TRUE(r);
  EXPECT_TRUE(r->allows(AskedFor::scram));
  EXPECT_TRUE(r->allows(AskedFor::md5));
  EXPECT_FALSE(r->allows(AskedFor::password));
  EXPECT_FALSE(r->allows(AskedFor::nothing));
}

TEST(RequireAuth, Refusals) {
  for (const char* bad : {"scram", "md5,!password", "!md5,password", "md5,md5", "md5,", ",", "!", "MD5", " md5"})
    EXPECT_FALSE(RequireAuth::parse(bad)) << bad;
}

}  // namespace pgf::auth
