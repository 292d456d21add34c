// Where a cancel request goes that is for another process. The input: our peer_id, the peers that there are, the
// packet. However the peers point at each other, it makes three hops at most, and it never changes but in its hop
// count.
#include <cstring>

#include "base/fuzz_kit.h"
#include "config/config.h"
#include "session/peer.h"
#include "wire/cancel_key.h"
#include "wire/startup.h"

using pgf::must;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace pgf;
  Cursor in({data, size});
  config::Config config{};
  config.settings.peer_id = in.u8() % 4;
  const std::uint8_t known = in.u8();  // bit n: peer n; bit 0: "*"
  for (int id = 0; id < 4; ++id)
    if (known >> id & 1) config.peers[id].id = id;
  auto first = wire::first_packet(in.rest());
  std::string packet;
  if (first.kind == wire::FirstKind::cancel)
    packet = as_text(first.body);
  else  // the key alone, so that the fuzzer need not find the packet's head
    packet = as_text(in.rest());
  auto key = wire::read_cancel_key(as_bytes(packet));
  must(key.has_value() == (packet.size() == 8 || packet.size() == 36));
  if (!key) return 0;

  std::array<std::uint8_t, 8> random;
  std::memcpy(random.data(), packet.data(), random.size());
  const int own = static_cast<int>(config.settings.peer_id);
  const wire::CancelKey made = wire::make_cancel_key(random, own);
  must(!(made[0] & 0x80));
  if (own > 0) must(wire::cancel_key_peer(made) == own && wire::cancel_key_ttl(made) == wire::kCancelTtl);

  int hops = 0;
  while (auto forward = session::route_cancel(config, *key)) {
    must(++hops <= wire::kCancelTtl);
    must(config.peers.contains(forward->peer) && own != 0);
    must(forward->peer == 0 || (forward->peer == wire::cancel_key_peer(key->key) && forward->peer != own));
    must(wire::cancel_key_ttl(forward->key.key) < wire::cancel_key_ttl(key->key));
    wire::SentKey same = forward->key;
    wire::set_cancel_key_ttl(same.key, wire::cancel_key_ttl(key->key));
    must(same.key == key->key && same.tail == key->tail);
    key = forward->key;
  }
  return 0;
}
