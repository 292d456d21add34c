#pragma once
// The report as a page for Prometheus. Names: `pgflotilla_…` are ours; `pgbouncer_…` are what the PgBouncer exporter
// calls the same numbers, so that its dashboards work. docs/monitoring.md lists them.
#include <string>

#include "observe/exposition.h"
#include "observe/foremost.h"
#include "observe/report.h"
#include "observe/views.h"

namespace pgf::observe {

// What metrics() draws from.
inline constexpr unsigned kMetricsParts = kPools | kWorkers | kDatabases | kUsers | kSettings | kStats | kLatencies |
                                          kDns | kPeers | kHosts | kHostUse | kClientBudget;

// What is beyond `foremost` is summed up under the name "(others)".
std::string metrics(const Fleet& fleet, Exposition exposition, Foremost& foremost);

}  // namespace pgf::observe
