#include <string_view>

#include "observe/rows.h"
#include "observe/stats.h"
#include "wire/write.h"

namespace pgf::observe {
namespace {

void counters(wire::RowWriter& w, const Counters& values) {
  for (auto counter : kCounters) w.number(static_cast<std::int64_t>(values.*counter));
}

// In the order of kCounters.
constexpr std::string_view kTotalsNames[] = {"server_assignment_count",
                                             "xact_count",
                                             "query_count",
                                             "client_bytes",
                                             "server_bytes",
                                             "xact_time",
                                             "query_time",
                                             "wait_time",
                                             "ps_client_parse_count",
                                             "ps_server_parse_count",
                                             "ps_bind_count",
                                             "client_login_count"};
static_assert(std::size(kTotalsNames) == std::size(kCounters));

void named(std::string& out, std::string_view prefix, const Counters& values) {
  for (std::size_t i = 0; i < std::size(kCounters); ++i) {
    std::string name = std::string(prefix).append(kTotalsNames[i]);
    wire::RowWriter(out).text(name).number(static_cast<std::int64_t>(values.*kCounters[i]));
  }
}

}  // namespace

void stats_rows(std::string& out, const Fleet& fleet) {
  for (const Fleet::Stats& row : fleet.stats) {
    wire::RowWriter w(out);
    w.text(row.database);
    counters(w, row.total);
    counters(w, averages(row.period, fleet.period));
  }
}

void stats_totals_rows(std::string& out, const Fleet& fleet) {
  for (const Fleet::Stats& row : fleet.stats) {
    wire::RowWriter w(out);
    w.text(row.database);
    counters(w, row.total);
  }
}

void stats_averages_rows(std::string& out, const Fleet& fleet) {
  for (const Fleet::Stats& row : fleet.stats) {
    wire::RowWriter w(out);
    w.text(row.database);
    counters(w, averages(row.period, fleet.period));
  }
}

void totals_rows(std::string& out, const Fleet& fleet) {
  Fleet::Stats sum;
  for (const Fleet::Stats& row : fleet.stats) {
    sum.total += row.total;
    sum.period += row.period;
  }
  named(out, "total_", sum.total);
  named(out, "avg_", averages(sum.period, fleet.period));
}

// Three rows to a pool. Microseconds.
void latency_rows(std::string& out, const Fleet& fleet) {
  for (const PoolRow& pool : fleet.pools) {
    auto row = [&](std::string_view what, const Histogram& h) {
      wire::RowWriter w(out);
      w.text(pool.database).text(pool.user).text(what).number(static_cast<std::int64_t>(h.count()));
      for (double q : {0.5, 0.9, 0.99, 0.999}) w.number(h.quantile(q));
      w.number(h.max());
    };
    row("wait", pool.latencies.wait);
    row("query", pool.latencies.query);
    row("transaction", pool.latencies.xact);
  }
}

}  // namespace pgf::observe
