#include "observe/views.h"

#include <strings.h>

#include <algorithm>
#include <array>

#include "observe/rows.h"

namespace pgf::observe {
namespace {

using wire::Column;

// Column types: see wire::Column.
constexpr std::array<Column, 21> kSocket{{{"type", 's'},
                                          {"user", 's'},
                                          {"database", 's'},
                                          {"replication", 's'},
                                          {"state", 's'},
                                          {"addr", 's'},
                                          {"port", 'i'},
                                          {"local_addr", 's'},
                                          {"local_port", 'i'},
                                          {"connect_time", 'T'},
                                          {"request_time", 'T'},
                                          {"wait", 'i'},
                                          {"wait_us", 'i'},
                                          {"close_needed", 'i'},
                                          {"ptr", 's'},
                                          {"link", 's'},
                                          {"remote_pid", 'i'},
                                          {"tls", 's'},
                                          {"application_name", 's'},
                                          {"prepared_statements", 'i'},
                                          {"id", 'i'}}};

constexpr Column kBuffers[] = {{"recv_pos", 'i'},    {"pkt_pos", 'i'},   {"pkt_remain", 'i'}, {"send_pos", 'i'},
                               {"send_remain", 'i'}, {"pkt_avail", 'i'}, {"send_avail", 'i'}};

constexpr auto kSocketAndBuffers = [] {
  std::array<Column, kSocket.size() + std::size(kBuffers)> all{};
  std::ranges::copy(kBuffers, std::ranges::copy(kSocket, all.begin()).out);
  return all;
}();

constexpr Column kPoolColumns[] = {{"database", 's'},
                                   {"user", 's'},
                                   {"cl_active", 'i'},
                                   {"cl_waiting", 'i'},
                                   {"cl_active_cancel_req", 'i'},
                                   {"cl_waiting_cancel_req", 'i'},
                                   {"sv_active", 'i'},
                                   {"sv_active_cancel", 'i'},
                                   {"sv_being_canceled", 'i'},
                                   {"sv_idle", 'i'},
                                   {"sv_used", 'i'},
                                   {"sv_tested", 'i'},
                                   {"sv_login", 'i'},
                                   {"maxwait", 'i'},
                                   {"maxwait_us", 'i'},
                                   {"pool_mode", 's'},
                                   {"load_balance_hosts", 's'}};

constexpr Column kDatabaseColumns[] = {{"name", 's'},
                                       {"host", 's'},
                                       {"port", 'i'},
                                       {"database", 's'},
                                       {"force_user", 's'},
                                       {"pool_size", 'i'},
                                       {"min_pool_size", 'i'},
                                       {"reserve_pool_size", 'i'},
                                       {"server_lifetime", 'i'},
                                       {"pool_mode", 's'},
                                       {"load_balance_hosts", 's'},
                                       {"max_connections", 'i'},
                                       {"current_connections", 'i'},
                                       {"max_client_connections", 'i'},
                                       {"current_client_connections", 'i'},
                                       {"paused", 'i'},
                                       {"disabled", 'i'}};

constexpr Column kUserColumns[] = {{"name", 's'},
                                   {"pool_size", 's'},
                                   {"reserve_pool_size", 's'},
                                   {"pool_mode", 's'},
                                   {"max_user_connections", 'i'},
                                   {"current_connections", 'i'},
                                   {"max_user_client_connections", 'i'},
                                   {"current_client_connections", 'i'}};

constexpr Column kStatsColumns[] = {{"database", 's'},
                                    {"total_server_assignment_count", 'N'},
                                    {"total_xact_count", 'N'},
                                    {"total_query_count", 'N'},
                                    {"total_received", 'N'},
                                    {"total_sent", 'N'},
                                    {"total_xact_time", 'N'},
                                    {"total_query_time", 'N'},
                                    {"total_wait_time", 'N'},
                                    {"total_client_parse_count", 'N'},
                                    {"total_server_parse_count", 'N'},
                                    {"total_bind_count", 'N'},
                                    {"total_client_login_count", 'N'},
                                    {"avg_server_assignment_count", 'N'},
                                    {"avg_xact_count", 'N'},
                                    {"avg_query_count", 'N'},
                                    {"avg_recv", 'N'},
                                    {"avg_sent", 'N'},
                                    {"avg_xact_time", 'N'},
                                    {"avg_query_time", 'N'},
                                    {"avg_wait_time", 'N'},
                                    {"avg_client_parse_count", 'N'},
                                    {"avg_server_parse_count", 'N'},
                                    {"avg_bind_count", 'N'},
                                    {"avg_client_login_count", 'N'}};

constexpr Column kStatsTotalsColumns[] = {{"database", 's'},           {"server_assignment_count", 'N'},
                                          {"xact_count", 'N'},         {"query_count", 'N'},
                                          {"bytes_received", 'N'},     {"bytes_sent", 'N'},
                                          {"xact_time", 'N'},          {"query_time", 'N'},
                                          {"wait_time", 'N'},          {"client_parse_count", 'N'},
                                          {"server_parse_count", 'N'}, {"bind_count", 'N'},
                                          {"client_login_count", 'N'}};

// Only the last four say avg_; monitoring tools know them by these names.
constexpr Column kStatsAveragesColumns[] = {{"database", 's'},
                                            {"server_assignment_count", 'N'},
                                            {"xact_count", 'N'},
                                            {"query_count", 'N'},
                                            {"bytes_received", 'N'},
                                            {"bytes_sent", 'N'},
                                            {"xact_time", 'N'},
                                            {"query_time", 'N'},
                                            {"wait_time", 'N'},
                                            {"avg_client_parse_count", 'N'},
                                            {"avg_server_parse_count", 'N'},
                                            {"avg_bind_count", 'N'},
                                            {"avg_client_login_count", 'N'}};

constexpr Column kLatencyColumns[] = {{"database", 's'}, {"user", 's'},    {"what", 's'},
                                      {"count", 'q'},    {"p50_us", 'q'},  {"p90_us", 'q'},
                                      {"p99_us", 'q'},   {"p999_us", 'q'}, {"max_us", 'q'}};
constexpr Column kSlowWaitColumns[] = {
    {"ended", 's'}, {"waited_us", 'q'}, {"outcome", 's'},          {"database", 's'},
    {"user", 's'},  {"servers", 'i'},   {"pool_size", 'i'},        {"client_id", 'q'},
    {"addr", 's'},  {"port", 'i'},      {"application_name", 's'}, {"worker", 'i'}};
constexpr Column kTotalsColumns[] = {{"name", 's'}, {"value", 'N'}};
constexpr Column kListColumns[] = {{"list", 's'}, {"items", 'i'}};
constexpr Column kConfigColumns[] = {{"key", 's'}, {"value", 's'}, {"default", 's'}, {"changeable", 's'}};
constexpr Column kVersionColumns[] = {{"version", 's'}};
constexpr Column kStateColumns[] = {{"key", 's'}, {"value", 's'}};
constexpr Column kMemColumns[] = {{"name", 's'}, {"size", 'i'}, {"used", 'i'}, {"free", 'i'}, {"memtotal", 'i'}};
constexpr Column kPeerColumns[] = {{"peer_id", 'i'}, {"host", 's'}, {"port", 'i'}, {"pool_size", 'i'}};
constexpr Column kPeerPoolColumns[] = {{"peer_id", 'i'},
                                       {"cl_active_cancel_req", 'i'},
                                       {"cl_waiting_cancel_req", 'i'},
                                       {"sv_active_cancel", 'i'},
                                       {"sv_login", 'i'}};
constexpr Column kHostColumns[] = {{"database", 's'},   {"host", 's'},      {"port", 'i'},     {"address", 's'},
                                   {"weight", 'i'},     {"role", 's'},      {"state", 's'},    {"since", 'T'},
                                   {"open", 'i'},       {"active", 'i'},    {"failures", 'q'}, {"next_try", 'i'},
                                   {"last_error", 's'}, {"connect_us", 'q'}};
constexpr Column kBudgetColumns[] = {{"limit", 's'},      {"database", 's'}, {"user", 's'},
                                     {"configured", 'i'}, {"share", 'i'},    {"held_here", 'i'},
                                     {"held", 'i'},       {"members", 'i'},  {"members_waiting", 'i'}};
constexpr Column kDnsHostColumns[] = {{"hostname", 's'}, {"ttl", 'q'}, {"addrs", 's'}};
constexpr Column kDnsZoneColumns[] = {{"zonename", 's'}, {"serial", 'q'}, {"count", 'i'}};

constexpr Column kWorkerColumns[] = {{"worker", 'i'},
                                     {"engine", 's'},
                                     {"clients", 'i'},
                                     {"servers_active", 'i'},
                                     {"servers_idle", 'i'},
                                     {"waiting", 'i'},
                                     {"transactions", 'q'},
                                     {"received", 'q'},
                                     {"sent", 'q'},
                                     {"cpu_seconds", 'N'},
                                     {"busy", 'N'},
                                     {"loop_turns", 'q'},
                                     {"syscalls", 'q'},
                                     {"clients_moved_in", 'q'},
                                     {"clients_moved_out", 'q'},
                                     {"servers_moved_in", 'q'},
                                     {"servers_moved_out", 'q'},
                                     {"accept_in", 'q'},
                                     {"accept_out", 'q'},
                                     {"gather_in", 'q'},
                                     {"gather_out", 'q'},
                                     {"relieve_in", 'q'},
                                     {"relieve_out", 'q'},
                                     {"level_in", 'q'},
                                     {"level_out", 'q'},
                                     {"last_move", 's'}};

constexpr std::array<Column, 16> kHandedColumns{{{"fd", 'i'},
                                                 {"task", 's'},
                                                 {"user", 's'},
                                                 {"database", 's'},
                                                 {"addr", 's'},
                                                 {"port", 'i'},
                                                 {"cancel", 'q'},
                                                 {"link", 'i'},
                                                 {"client_encoding", 's'},
                                                 {"std_strings", 's'},
                                                 {"datestyle", 's'},
                                                 {"timezone", 's'},
                                                 {"password", 's'},
                                                 {"scram_client_key", 'b'},
                                                 {"scram_server_key", 'b'},
                                                 {"state", 'b'}}};  // only in SHOW TAKEOVER

constexpr bool kEveryone = false;  // for View::admin_only
constexpr bool kAdmins = true;

// name, columns, gather, who, rows. HELP keeps this order.
constexpr View kViews[] = {
    {"CLIENTS", kSocket, kClients, kEveryone, client_rows},
    {"SERVERS", kSocket, kServers, kEveryone, server_rows},
    {"POOLS", kPoolColumns, kPools, kEveryone, pool_rows},
    {"DATABASES", kDatabaseColumns, kDatabases, kEveryone, database_rows},
    {"HOSTS", kHostColumns, kHosts | kServers, kEveryone, host_rows},
    {"USERS", kUserColumns, kUsers, kEveryone, user_rows},
    {"WORKERS", kWorkerColumns, kWorkers, kEveryone, worker_rows},
    {"FLEET", kBudgetColumns, kBudget, kEveryone, budget_rows},
    {"STATS", kStatsColumns, kStats, kEveryone, stats_rows},
    {"STATS_TOTALS", kStatsTotalsColumns, kStats, kEveryone, stats_totals_rows},
    {"STATS_AVERAGES", kStatsAveragesColumns, kStats, kEveryone, stats_averages_rows},
    {"TOTALS", kTotalsColumns, kStats, kEveryone, totals_rows},
    {"LATENCY", kLatencyColumns, kLatencies, kEveryone, latency_rows},
    {"SLOW_WAITS", kSlowWaitColumns, kSlowWaits, kEveryone, slow_wait_rows},
    {"LISTS", kListColumns, kLists | kPools, kEveryone, list_rows},
    {"CONFIG", kConfigColumns, kSettings, kEveryone, config_rows},
    {"SOCKETS", kSocketAndBuffers, kClients | kServers, kEveryone, socket_rows},
    {"ACTIVE_SOCKETS", kSocketAndBuffers, kClients | kServers, kEveryone, active_socket_rows},
    {"FDS", std::span(kHandedColumns).first(15), kHanded, kAdmins, fd_rows},
    {"TAKEOVER", kHandedColumns, kHanded, kAdmins, takeover_rows},
    {"PEERS", kPeerColumns, kPeers, kEveryone, peer_rows},
    {"PEER_POOLS", kPeerPoolColumns, kPools, kEveryone, peer_pool_rows},
    {"DNS_HOSTS", kDnsHostColumns, kDns, kEveryone, dns_host_rows},
    {"DNS_ZONES", kDnsZoneColumns, kDns, kEveryone, dns_zone_rows},
    {"MEM", kMemColumns, kLists | kPools, kEveryone, memory_rows},
    {"STATE", kStateColumns, kNothing, kEveryone, state_rows},
    {"VERSION", kVersionColumns, kNothing, kEveryone, version_rows},
};

}  // namespace

std::span<const View> views() { return kViews; }

const View* find_view(std::string_view name) {
  for (const View& view : kViews)
    if (view.name.size() == name.size() && strncasecmp(view.name.data(), name.data(), name.size()) == 0) return &view;
  return nullptr;
}

std::string render(const View& view, const Fleet& fleet) {
  std::string out;
  wire::row_description(out, view.columns);
  view.rows(out, fleet);
  wire::command_complete(out, "SHOW");
  wire::ready_for_query(out, 'I');
  return out;
}

}  // namespace pgf::observe
