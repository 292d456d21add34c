#include <algorithm>
#include <cstdlib>

#include "wire/cancel_key.h"
#include "wire/startup.h"

// The first bytes of a connection: whatever is decided early must stay so when more arrives, and what is taken for a
// startup packet can be built again from its parts.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace pgf::wire;
  pgf::Bytes all{data, size};
  First last = first_packet(all);
  if (last.kind != FirstKind::need_more && last.kind != FirstKind::bad && last.kind != FirstKind::tls_hello)
    if (last.size < 8 || last.size > 65535) std::abort();
  bool decided = false;
  for (std::size_t n = 0; n <= std::min<std::size_t>(size, 300); ++n) {
    First f = first_packet(all.first(n));
    if (decided && f.kind != last.kind) std::abort();
    if (f.kind == FirstKind::need_more) continue;
    if (f.kind != last.kind || f.size != last.size) std::abort();
    decided = true;
  }
  if (bad_header_text(all).size() > 37) std::abort();

  if (last.kind == FirstKind::cancel)
    if (auto key = read_cancel_key(last.body)) {
      std::string back = cancel_request(key->key);
      if (key->tail) back += pgf::as_text(*key->tail);
      if (back.substr(8) != pgf::as_text(last.body)) std::abort();
    }
  if (last.kind != FirstKind::startup) return 0;
  if (last.size > size || last.size > kMaxStartup || last.body.size() != last.size - 8) std::abort();
  auto startup = parse_startup(last.body, last.code);
  if (!startup) return 0;
  for (const auto& [key, value] : startup->params)
    if (key == "options")
      (void)parse_options(value);
    else if (key == "replication")
      (void)parse_replication(value);
  if (startup->pq_options.empty() && startup_message(last.code, startup->params) != pgf::as_text(all.first(last.size)))
    std::abort();
  return 0;
}
