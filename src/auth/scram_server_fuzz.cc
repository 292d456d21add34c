// A hostile client. First byte: what the second message gets in front (so that the fuzzer need not guess the nonce),
// next two: length of the first message.
#include "auth/exchange.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace pgf;
  Cursor in({data, size});
  bool help = in.u8() & 1;
  std::size_t split = in.u16();
  if (!in.ok()) return 0;
  Bytes first = in.rest().first(std::min(split, in.rest().size()));
  std::string final(as_text(in.rest().subspan(first.size())));

  auth::ScramSecret secret{1, "salt", {1}, {2}};
  auth::ScramServer server(secret, true, "server");
  auto answer = server.first(first);
  if (answer && help) {
    bool y = as_text(first).contains("y,,");
    final.insert(0, (y ? "c=eSws," : "c=biws,") + answer->substr(0, answer->find(',')) + ",");
  }
  if (server.final(as_bytes(final))) __builtin_trap();  // nobody can know the proof
  return 0;
}
