#pragma once
// What fills the rows of each view; only views.cc needs these. The order of values is the order of columns there.
#include <string>

#include "observe/report.h"

namespace pgf::observe {

// rows_sockets.cc
void client_rows(std::string& out, const Fleet& fleet);
void server_rows(std::string& out, const Fleet& fleet);
void socket_rows(std::string& out, const Fleet& fleet);
void active_socket_rows(std::string& out, const Fleet& fleet);
void host_rows(std::string& out, const Fleet& fleet);
void slow_wait_rows(std::string& out, const Fleet& fleet);

// rows_handed.cc
void fd_rows(std::string& out, const Fleet& fleet);
void takeover_rows(std::string& out, const Fleet& fleet);

// rows_stats.cc
void stats_rows(std::string& out, const Fleet& fleet);
void stats_totals_rows(std::string& out, const Fleet& fleet);
void stats_averages_rows(std::string& out, const Fleet& fleet);
void totals_rows(std::string& out, const Fleet& fleet);
void latency_rows(std::string& out, const Fleet& fleet);

// rows_fleet.cc
void pool_rows(std::string& out, const Fleet& fleet);
void database_rows(std::string& out, const Fleet& fleet);
void user_rows(std::string& out, const Fleet& fleet);
void peer_rows(std::string& out, const Fleet& fleet);
void peer_pool_rows(std::string& out, const Fleet& fleet);
void budget_rows(std::string& out, const Fleet& fleet);
void dns_host_rows(std::string& out, const Fleet& fleet);
void dns_zone_rows(std::string& out, const Fleet& fleet);
void memory_rows(std::string& out, const Fleet& fleet);
void list_rows(std::string& out, const Fleet& fleet);
void config_rows(std::string& out, const Fleet& fleet);
void version_rows(std::string& out, const Fleet& fleet);
void state_rows(std::string& out, const Fleet& fleet);
void worker_rows(std::string& out, const Fleet& fleet);

}  // namespace pgf::observe
