#include "session/peer.h"

#include <gtest/gtest.h>

namespace pgf::session {
namespace {

config::Config configured(int own, std::initializer_list<int> peers) {
  config::Config config;
  config::set_defaults(config.settings);
  config.settings.peer_id = own;
  for (int id : peers) config.peers[id] = {.id = id, .host = "h", .pool_size = {}};
  return config;
}

wire::SentKey key_of(int peer, int ttl) {
  wire::SentKey sent;
  sent.key = {0x12, static_cast<std::uint8_t>(peer), static_cast<std::uint8_t>(peer >> 8), 0x34, 0x56, 0x78, 0x9a,
              0xbc};
  wire::set_cancel_key_ttl(sent.key, ttl);
  return sent;
}

// "peer/ttl", or why not.
std::string routed(const config::Config& config, int peer, int ttl) {
  auto forward = route_cancel(config, key_of(peer, ttl));
  if (!forward) return std::string(forward.error());
  wire::CancelKey same = forward->key.key;
  wire::set_cancel_key_ttl(same, ttl);
  EXPECT_EQ(same, key_of(peer, ttl).key) << "nothing but the TTL changes";
  return peer_name(forward->peer) + "/" + std::to_string(wire::cancel_key_ttl(forward->key.key));
}

constexpr auto kFailed = "failed cancel request";
constexpr auto kExhausted = "failed to forward cancel request because its TTL was exhausted";
constexpr auto kUnknown = "could not find peer to forward request to";

TEST(RouteCancel, ToThePeerThatTheKeyNames) {
  auto config = configured(1, {1, 2, 300, 65535});
  EXPECT_EQ(routed(config, 2, 3), "2/2");
  EXPECT_EQ(routed(config, 2, 2), "2/1");
  EXPECT_EQ(routed(config, 300, 1), "300/0");
  EXPECT_EQ(routed(config, 65535, 3), "65535/2");
  EXPECT_EQ(routed(config, 2, 0), kExhausted);
  EXPECT_EQ(routed(config, 3, 3), kUnknown);
  EXPECT_EQ(routed(config, 3, 0), kExhausted);
  EXPECT_EQ(routed(config, 0, 3), kUnknown);
}

TEST(RouteCancel, OwnNumberGoesNowhere) {
  for (int ttl = 0; ttl <= 3; ++ttl) {
    EXPECT_EQ(routed(configured(1, {1, 2}), 1, ttl), kFailed);
    EXPECT_EQ(routed(configured(1, {2}), 1, ttl), kFailed);
  }
}

TEST(RouteCancel, WithoutPeerIdPeeringIsOff) {
  for (int ttl = 0; ttl <= 3; ++ttl)
    for (int peer : {0, 1, 2, 9}) EXPECT_EQ(routed(configured(0, {0, 1, 2}), peer, ttl), kFailed);
}

// One hop for whatever goes to all: its copies end where they arrive.
TEST(RouteCancel, EveryoneIsAskedOnceForWhatHasNoEntry) {
  auto config = configured(1, {0, 2});
  for (int ttl = 1; ttl <= 3; ++ttl) {
    EXPECT_EQ(routed(config, 9, ttl), "*/0");
    EXPECT_EQ(routed(config, 1, ttl), "*/0") << "the others may have the same number";
    EXPECT_EQ(routed(config, 0, ttl), "*/0");
    EXPECT_EQ(routed(config, 2, ttl), "2/" + std::to_string(ttl - 1));
  }
  EXPECT_EQ(routed(config, 9, 0), kExhausted);
  EXPECT_EQ(routed(config, 2, 0), kExhausted);
  EXPECT_EQ(routed(config, 1, 0), kFailed);
}

TEST(RouteCancel, TheRestOfALongKeyStays) {
  wire::SentKey key = key_of(2, 3);
  key.tail.emplace().fill(0x77);
  auto forward = route_cancel(configured(1, {2}), key);
  ASSERT_TRUE(forward);
  EXPECT_EQ(forward->key.tail, key.tail);
}

}  // namespace
}  // namespace pgf::session
