// SHOW FDS, in PgBouncer's format, and SHOW TAKEOVER, which says the rest to another pgflotilla. They hold cancel keys
// and SCRAM keys: for admins only.
#include <fmt/format.h>

#include "observe/rows.h"
#include "wire/write.h"

namespace pgf::observe {
namespace {

using session::Handed;

std::string hex(std::string_view bytes) {
  std::string text = "\\x";
  for (unsigned char c : bytes) fmt::format_to(std::back_inserter(text), "{:02x}", c);
  return text;
}

void add(wire::RowWriter& row, const Handed& h) {
  static constexpr std::string_view kTasks[] = {"pooler", "client", "server", "pool"};
  auto text = [&](const std::optional<std::string>& value) { value ? row.text(*value) : row.null(); };
  auto bytes = [&](const std::optional<std::string>& value) { value ? row.text(hex(*value)) : row.null(); };
  row.number(h.fd).text(kTasks[static_cast<int>(h.task)]);
  text(h.user);
  text(h.database);
  row.text(h.addr).number(h.port).number(static_cast<std::int64_t>(h.cancel)).number(h.link);
  text(h.client_encoding);
  text(h.std_strings);
  text(h.datestyle);
  text(h.timezone);
  text(h.password);
  bytes(h.scram_client_key);
  bytes(h.scram_server_key);
}

}  // namespace

void fd_rows(std::string& out, const Fleet& fleet) {
  for (const Handed& h : fleet.handed) {
    // A client that waits for an answer to what PgBouncer's format cannot carry is better off with a closed connection.
    if (h.task == Handed::Task::pool || (fleet.suspended && h.needs_state)) continue;
    wire::RowWriter row(out);
    add(row, h);
  }
}

void takeover_rows(std::string& out, const Fleet& fleet) {
  for (const Handed& h : fleet.handed) {
    wire::RowWriter row(out);
    add(row, h);
    row.text(hex(h.state));
  }
}

}  // namespace pgf::observe
