#pragma once
// What a client gets in BackendKeyData: 8 bytes in PgBouncer's layout (behaviour.md section 13), which say whose key it
// is; with protocol 3.2 more random bytes behind them (docs/decisions/0007-protocol-3.2.md).
#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "base/bytes.h"

namespace pgf::wire {

using CancelKey = std::array<std::uint8_t, 8>;
inline constexpr int kCancelTtl = 3;

// random: 8 fresh random bytes. peer_id 0 = peering off: only bit 7 of k[0] is cleared.
CancelKey make_cancel_key(std::span<const std::uint8_t, 8> random, int peer_id);
int cancel_key_peer(const CancelKey& key);
int cancel_key_ttl(const CancelKey& key);
void set_cancel_key_ttl(CancelKey& key, int ttl);  // how often it may still be forwarded

// As long in all as PostgreSQL 18's: a process id of 4 bytes and a secret of 32.
using KeyTail = std::array<std::uint8_t, 28>;

// The key of a CancelRequest, as it came.
struct SentKey {
  CancelKey key;
  std::optional<KeyTail> tail;
};
// nullopt: of a length that no key of ours has.
std::optional<SentKey> read_cancel_key(Bytes body);

}  // namespace pgf::wire
