#pragma once
// THE table of reports: a SHOW command is one row in views.cc and its row function in rows_*.cc. SHOW, SHOW HELP and
// the dashboard all read the table.
#include <span>
#include <string>
#include <string_view>

#include "observe/report.h"
#include "wire/write.h"

namespace pgf::observe {

// Which parts of a Fleet a view draws from, so that nothing else is collected. Bits.
enum Gather : unsigned {
  kNothing = 0,
  kClients = 1u << 0,
  kServers = 1u << 1,
  kPools = 1u << 2,
  kWorkers = 1u << 3,
  kDatabases = 1u << 4,
  kUsers = 1u << 5,
  kLists = 1u << 6,
  kSettings = 1u << 7,
  kHanded = 1u << 9,
  kStats = 1u << 8,  // drawn from pools: merge() sums them, stats.h adds the growth
  kDns = 1u << 10,
  kPeers = 1u << 11,
  kHosts = 1u << 12,  // with kServers: for the counts
  kLatencies = 1u << 13,
  kHostUse = 1u << 14,  // with kHosts: the counts without kServers, and times per host
  kSlowWaits = 1u << 15,
  kBudget = 1u << 16,
  kClientBudget = 1u << 17,  // of that, max_client_conn only
};
// What is drawn from the pools of the workers.
inline constexpr unsigned kFromPools = kPools | kWorkers | kLists | kStats | kLatencies;

struct View {
  std::string_view name;  // as HELP shows it; typed in any case
  std::span<const wire::Column> columns;
  unsigned gather;
  bool admin_only;
  void (*rows)(std::string& out, const Fleet& fleet);  // appends DataRows
};

std::span<const View> views();
const View* find_view(std::string_view name);  // null: no such report

// The whole answer to a simple query: RowDescription, rows, CommandComplete `SHOW`, ReadyForQuery.
std::string render(const View& view, const Fleet& fleet);

}  // namespace pgf::observe
