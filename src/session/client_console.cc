#include <fmt/format.h>

#include "session/client.h"
#include "session/pool.h"
#include "wire/write.h"

namespace pgf::session {

static constexpr std::uint32_t kMaxCommand = 16 * 1024;

// The console's side of the protocol: simple queries only, one at a time (admin.md section 2). The command itself goes
// to the control thread; nothing is read from this client until it has answered.
std::size_t Client::consume_console(Bytes bytes) {
  if (bytes.size() < 5) return 0;
  std::uint32_t length = load_be32(bytes.data() + 1);
  if (length < 4 || length > kMaxCommand) {
    if (length >= 4 && bytes[0] == 'Q')
      disconnect("incomplete pkt");
    else
      bad_header(bytes);
    return bytes.size();
  }
  std::size_t total = 1 + std::size_t{length};
  if (bytes.size() < total) return 0;
  std::string_view body = as_text(bytes.subspan(5, length - 4));
  std::string out;
  switch (bytes[0]) {
    case 'Q': {
      if (env_->settings().disable_pqexec) {
        fatal(say::no_pqexec);
        return total;
      }
      std::string command(body.substr(0, body.find('\0')));
      phase_ = Phase::asking;
      ++pool->counters.queries;
      ++pool->counters.xacts;
      env_->console(*this, std::move(command));
      return total;
    }
    case 'X':
      disconnect("client close request");
      return total;
    case 'P':
    case 'B':
    case 'E':
      wire::error(out, "ERROR", "08P01", "extended query protocol not supported by admin console");
      break;
    default:
      wire::error(out, "ERROR", "08P01", fmt::format("unsupported packet type for admin console: {}", bytes[0]));
  }
  wire::ready_for_query(out, 'I');
  stream->send(as_bytes(out));
  fatal("08P01", "bad packet");
  return bytes.size();
}

}  // namespace pgf::session
