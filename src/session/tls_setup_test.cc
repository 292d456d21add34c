#include "session/tls_setup.h"

#include <gtest/gtest.h>

namespace pgf::session {
namespace {

// Clients hold the context that they began with: a RELOAD that changes nothing must not make another one.
TEST(TlsSetup, WhatHasNotChangedIsUsedAgain) {
  config::Config config;
  config::set_defaults(config.settings);
  config.settings.server_tls_sslmode = config::SslMode::prefer;
  auto first = make_tls_setup(config);
  ASSERT_TRUE(first.has_value()) << first.error();
  ASSERT_TRUE((*first)->server);
  auto again = make_tls_setup(config, first->get());
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ((*first)->server, (*again)->server);
  config.settings.server_tls_sslmode = config::SslMode::verify_ca;
  auto other = make_tls_setup(config, first->get());
  ASSERT_TRUE(other.has_value());
  EXPECT_NE((*first)->server, (*other)->server);
  config.settings.server_tls_sslmode = config::SslMode::disable;
  auto none = make_tls_setup(config, first->get());
  ASSERT_TRUE(none.has_value());
  EXPECT_FALSE((*none)->server);
}

}  // namespace
}  // namespace pgf::session
