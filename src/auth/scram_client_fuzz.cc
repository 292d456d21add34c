// A hostile server. First byte: start with good messages, or with those from the input; next two: length of the
// mechanism list; two more: length of the server-first-message.
#include "auth/exchange.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace pgf;
  Cursor in({data, size});
  bool help = in.u8() & 1;
  std::size_t list_length = in.u16(), first_length = in.u16();
  if (!in.ok()) return 0;
  Bytes rest = in.rest();
  Bytes list = rest.first(std::min(list_length, rest.size()));
  rest = rest.subspan(list.size());
  std::string first(as_text(rest.first(std::min(first_length, rest.size()))));
  Bytes final = rest.subspan(first.size());

  // Keys and not a password: PBKDF2 would take all the time.
  auth::ScramKeys keys{{1}, {2}};
  auth::ScramClient client(keys, "nonce");
  constexpr std::string_view kGood("SCRAM-SHA-256\0\0", 15);
  (void)client.start(help ? as_bytes(kGood) : list);
  if (help) first.insert(0, "r=nonce");
  (void)client.respond(as_bytes(first));
  if (client.finish(final) || client.verified()) __builtin_trap();  // nobody can know the signature
  return 0;
}
