#include "wire/cancel_key.h"

#include <algorithm>

namespace pgf::wire {

CancelKey make_cancel_key(std::span<const std::uint8_t, 8> random, int peer_id) {
  CancelKey key;
  std::copy(random.begin(), random.end(), key.begin());
  key[0] &= 0x7f;  // drivers take the first four bytes for a positive process id
  if (peer_id > 0) {
    key[1] = static_cast<std::uint8_t>(peer_id);
    key[2] = static_cast<std::uint8_t>(peer_id >> 8);
    set_cancel_key_ttl(key, kCancelTtl);
  }
  return key;
}

int cancel_key_peer(const CancelKey& key) { return key[1] | key[2] << 8; }
int cancel_key_ttl(const CancelKey& key) { return key[7] & 3; }
void set_cancel_key_ttl(CancelKey& key, int ttl) { key[7] = static_cast<std::uint8_t>((key[7] & ~3) | (ttl & 3)); }

std::optional<SentKey> read_cancel_key(Bytes body) {
  SentKey sent;
  if (body.size() != sent.key.size() && body.size() != sent.key.size() + sizeof(KeyTail)) return std::nullopt;
  std::copy_n(body.begin(), sent.key.size(), sent.key.begin());
  if (body.size() > sent.key.size()) {
    sent.tail.emplace();
    std::copy_n(body.begin() + sent.key.size(), sent.tail->size(), sent.tail->begin());
  }
  return sent;
}

}  // namespace pgf::wire
