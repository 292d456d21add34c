#include <fmt/format.h>

#include <numeric>
#include <string_view>
#include <utility>

#include "observe/rows.h"
#include "wire/write.h"

namespace pgf::observe {
namespace {

wire::RowWriter& text_or_null(wire::RowWriter& w, std::string_view value) {
  return value.empty() ? w.null() : w.text(value);
}

wire::RowWriter& big(wire::RowWriter& w, std::uint64_t value) { return w.number(static_cast<std::int64_t>(value)); }

std::string_view yes_no(bool value) { return value ? "yes" : "no"; }

// All but shuffle, which is for tests. The columns in views.cc are in this order.
constexpr pool::MoveReason kShownReasons[] = {pool::MoveReason::accept, pool::MoveReason::gather,
                                              pool::MoveReason::relieve, pool::MoveReason::level};

// An unset size is an empty text, a set one nine wide: scripts were written against that.
std::string padded(int size) { return size < 0 ? std::string() : fmt::format("{:9d}", size); }

}  // namespace

void pool_rows(std::string& out, const Fleet& fleet) {
  for (const PoolRow& row : fleet.pools) {
    wire::RowWriter w(out);
    w.text(row.database).text(row.user);
    w.number(row.cl_active).number(row.cl_waiting).number(row.cl_active_cancel_req).number(row.cl_waiting_cancel_req);
    w.number(row.sv_active).number(row.sv_active_cancel).number(row.sv_being_canceled).number(row.sv_idle);
    w.number(row.sv_used).number(row.sv_tested).number(row.sv_login);
    w.number(row.maxwait / kSecond).number(row.maxwait % kSecond).text(config::to_text(row.pool_mode));
    text_or_null(w, row.load_balance_hosts);
  }
}

void database_rows(std::string& out, const Fleet& fleet) {
  for (const DatabaseRow& row : fleet.databases) {
    wire::RowWriter w(out);
    w.text(row.name);
    text_or_null(w, row.host).number(row.port).text(row.database);
    text_or_null(w, row.force_user).number(row.pool_size).number(row.min_pool_size).number(row.reserve_pool_size);
    w.number(row.server_lifetime);
    text_or_null(w, row.pool_mode);
    text_or_null(w, row.load_balance_hosts);
    w.number(row.max_connections).number(row.current_connections);
    w.number(row.max_client_connections).number(row.current_client_connections);
    w.number(row.paused).number(row.disabled);
  }
}

void user_rows(std::string& out, const Fleet& fleet) {
  for (const UserRow& row : fleet.users) {
    wire::RowWriter w(out);
    w.text(row.name).text(padded(row.pool_size)).text(padded(row.reserve_pool_size));
    text_or_null(w, row.pool_mode);
    w.number(row.max_user_connections).number(row.current_connections);
    w.number(row.max_user_client_connections).number(row.current_client_connections);
  }
}

void peer_rows(std::string& out, const Fleet& fleet) {
  for (const PeerRow& row : fleet.peers)
    wire::RowWriter(out).number(row.peer_id).text(row.host).number(row.port).number(row.pool_size);
}

void peer_pool_rows(std::string& out, const Fleet& fleet) {
  for (const PeerPoolRow& row : fleet.peer_pools) {
    wire::RowWriter w(out);
    w.number(row.peer_id).number(row.cl_active_cancel_req).number(row.cl_waiting_cancel_req);
    w.number(row.sv_active_cancel).number(row.sv_login);
  }
}

void budget_rows(std::string& out, const Fleet& fleet) {
  for (const BudgetRow& row : fleet.budget) {
    wire::RowWriter w(out);
    w.text(row.limit);
    text_or_null(text_or_null(w, row.database), row.user).number(row.configured).number(row.share).number(row.here);
    row.held < 0 ? w.null() : w.number(row.held);
    w.number(row.members).number(row.waiting);
  }
}

void dns_host_rows(std::string& out, const Fleet& fleet) {
  for (const DnsHostRow& row : fleet.dns_hosts) wire::RowWriter(out).text(row.hostname).number(row.ttl).text(row.addrs);
}

void dns_zone_rows(std::string& out, const Fleet& fleet) {
  for (const DnsZoneRow& row : fleet.dns_zones)
    wire::RowWriter(out).text(row.zonename).number(row.serial).number(row.count);
}

// `free` stays 0: nothing is kept in reserve.
void memory_rows(std::string& out, const Fleet& fleet) {
  for (const MemoryRow& row : fleet.memory) {
    const auto size = static_cast<std::int64_t>(row.size);
    wire::RowWriter(out).text(row.name).number(size).number(row.used).number(0).number(size * row.used);
  }
}

void list_rows(std::string& out, const Fleet& fleet) {
  static constexpr std::pair<std::string_view, int Lists::*> kItems[] = {{"databases", &Lists::databases},
                                                                         {"users", &Lists::users},
                                                                         {"peers", &Lists::peers},
                                                                         {"pools", &Lists::pools},
                                                                         {"peer_pools", &Lists::peer_pools},
                                                                         {"free_clients", &Lists::free_clients},
                                                                         {"used_clients", &Lists::used_clients},
                                                                         {"login_clients", &Lists::login_clients},
                                                                         {"free_servers", &Lists::free_servers},
                                                                         {"used_servers", &Lists::used_servers},
                                                                         {"dns_names", &Lists::dns_names},
                                                                         {"dns_zones", &Lists::dns_zones},
                                                                         {"dns_queries", &Lists::dns_queries},
                                                                         {"dns_pending", &Lists::dns_pending}};
  for (auto [name, item] : kItems) wire::RowWriter(out).text(name).number(fleet.lists.*item);
}

void config_rows(std::string& out, const Fleet& fleet) {
  for (const config::ShownSetting& row : fleet.settings) {
    wire::RowWriter w(out);
    w.text(row.key);
    row.value_null ? w.null() : w.text(row.value);
    row.default_null ? w.null() : w.text(row.default_value);
    w.text(yes_no(row.changeable));
  }
}

void version_rows(std::string& out, const Fleet& fleet) { wire::RowWriter(out).text(fleet.version); }

void state_rows(std::string& out, const Fleet& fleet) {
  wire::RowWriter(out).text("active").text(yes_no(!fleet.paused && !fleet.suspended));
  wire::RowWriter(out).text("paused").text(yes_no(fleet.paused));
  wire::RowWriter(out).text("suspended").text(yes_no(fleet.suspended));
}

void worker_rows(std::string& out, const Fleet& fleet) {
  for (const WorkerRow& row : fleet.workers) {
    wire::RowWriter w(out);
    w.number(row.worker).text(row.engine).number(row.clients).number(row.servers_active).number(row.servers_idle);
    w.number(row.waiting);
    big(big(big(w, row.transactions), row.received), row.sent);
    w.text(fmt::format("{:.3f}", row.cpu_seconds)).text(fmt::format("{:.3f}", row.busy));
    big(big(w, row.loop_turns), row.syscalls);
    auto sum = [](const MoveCounts& counts) { return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0}); };
    big(big(big(big(w, sum(row.clients_in)), sum(row.clients_out)), row.servers_in), row.servers_out);
    for (pool::MoveReason reason : kShownReasons) {
      auto i = static_cast<std::size_t>(reason);
      big(big(w, row.clients_in[i]), row.clients_out[i]);
    }
    text_or_null(w, row.why);
  }
}

}  // namespace pgf::observe
