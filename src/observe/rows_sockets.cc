#include <fmt/format.h>

#include <ctime>

#include "observe/rows.h"
#include "wire/write.h"

namespace pgf::observe {
namespace {

std::string local_time(Usec wall) {
  std::time_t seconds = wall / kSecond;
  std::tm broken_down;
  char text[64];
  std::size_t length = 0;
  if (localtime_r(&seconds, &broken_down)) length = std::strftime(text, sizeof text, "%F %T %Z", &broken_down);
  return {text, length};
}

std::string address(std::uint64_t ptr) { return ptr ? fmt::format("{:#x}", ptr) : std::string(); }

void fields(wire::RowWriter& w, const SocketRow& row, std::string_view state) {
  w.text({&row.type, 1}).text(row.user).text(row.database).text(row.replication).text(state);
  w.text(row.addr).number(row.port).text(row.local_addr).number(row.local_port);
  w.text(local_time(row.connect_time)).text(local_time(row.request_time));
  w.number(row.wait / kSecond).number(row.wait % kSecond).number(row.close_needed);
  w.text(address(row.ptr)).text(address(row.link)).number(row.remote_pid).text(row.tls).text(row.application_name);
  w.number(row.prepared_statements).number(static_cast<std::int64_t>(row.id));
}

// SHOW SOCKETS names the list a socket is on. Cancel requests and servers waiting for them are not listed: empty.
std::string_view list_name(const SocketRow& row) {
  const std::string& state = row.state;
  if (row.type == 'C') {
    if (state == "active" || state == "idle") return "cl_active";
    return state == "waiting" ? "cl_waiting" : "";
  }
  if (state == "active") return "sv_active";
  if (state == "idle") return "sv_idle";
  if (state == "used") return "sv_used";
  if (state == "tested") return "sv_tested";
  return state == "new" ? "sv_login" : "";
}

void rows(std::string& out, const std::vector<SocketRow>& sockets) {
  for (const SocketRow& row : sockets) {
    wire::RowWriter w(out);
    fields(w, row, row.state);
  }
}

// Buffers to receive are lent only while bytes move, so between two turns there is no position to tell: zeros. What a
// socket has not taken yet is send_avail, in the row of the socket that it is for.
void rows_with_buffers(std::string& out, const std::vector<SocketRow>& sockets, bool only_active) {
  for (const SocketRow& row : sockets) {
    std::string_view state = list_name(row);
    if (state.empty() || (only_active && !row.unsent)) continue;
    wire::RowWriter w(out);
    fields(w, row, state);
    for (int i = 0; i < 6; ++i) w.number(0);
    w.number(static_cast<std::int64_t>(row.unsent));
  }
}

}  // namespace

void host_rows(std::string& out, const Fleet& fleet) {
  for (const HostRow& row : fleet.hosts) {
    wire::RowWriter w(out);
    w.text(row.database).text(row.host).number(row.port);
    row.address.empty() ? w.null() : w.text(row.address);
    w.number(row.weight).text(row.role).text(row.state);
    row.since ? w.text(local_time(row.since)) : w.null();
    w.number(row.open).number(row.active).number(static_cast<std::int64_t>(row.failures));
    w.number((row.next_try + kSecond - 1) / kSecond);
    row.last_error.empty() ? w.null() : w.text(row.last_error);
    w.number(row.latency);
  }
}

void slow_wait_rows(std::string& out, const Fleet& fleet) {
  for (const SlowWaitRow& row : fleet.slow_waits) {
    wire::RowWriter w(out);
    w.text(local_time(row.ended)).number(row.waited).text(row.in_vain ? "none" : "served");
    w.text(row.database).text(row.user).number(row.servers).number(row.pool_size);
    w.number(static_cast<std::int64_t>(row.client)).text(row.addr).number(row.port).text(row.application_name);
    w.number(row.worker);
  }
}

void client_rows(std::string& out, const Fleet& fleet) { rows(out, fleet.clients); }

void server_rows(std::string& out, const Fleet& fleet) { rows(out, fleet.servers); }

void socket_rows(std::string& out, const Fleet& fleet) {
  rows_with_buffers(out, fleet.clients, false);
  rows_with_buffers(out, fleet.servers, false);
}

void active_socket_rows(std::string& out, const Fleet& fleet) {
  rows_with_buffers(out, fleet.clients, true);
  rows_with_buffers(out, fleet.servers, true);
}

}  // namespace pgf::observe
