// The answer to auth_query comes from a server, and decides who gets in.
#include "config/limits.h"
#include "session/auth_query.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace pgf;
  session::AuthQueryReply reply;
  Cursor in({data, size});
  while (in.ok()) {  // type, length of the body, body
    std::uint8_t type = in.u8();
    Bytes body = in.bytes(in.u16());
    if (!in.ok()) break;
    auto step = reply.read(type, body);
    if (step == session::AuthQueryReply::Step::bad && reply.trouble().empty()) __builtin_trap();
    if (step != session::AuthQueryReply::Step::more) break;
  }
  if (reply.found() != !reply.user().empty()) __builtin_trap();
  if (reply.user().size() > config::kMaxUserName || reply.secret().size() > config::kMaxPassword) __builtin_trap();
  return 0;
}
