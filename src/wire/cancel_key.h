#pragma once
// The 8 bytes that a client gets in BackendKeyData, in PgBouncer's layout (behaviour.md section 13).
#include <array>
#include <cstdint>
#include <span>

namespace pgf::wire {

using CancelKey = std::array<std::uint8_t, 8>;
inline constexpr int kCancelTtl = 3;

// random: 8 fresh random bytes. peer_id 0 = peering off: only bit 7 of k[0] is cleared.
CancelKey make_cancel_key(std::span<const std::uint8_t, 8> random, int peer_id);
int cancel_key_peer(const CancelKey& key);
int cancel_key_ttl(const CancelKey& key);
void set_cancel_key_ttl(CancelKey& key, int ttl);

}  // namespace pgf::wire
