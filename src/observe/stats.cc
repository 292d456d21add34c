#include "observe/stats.h"

#include <algorithm>
#include <iterator>

namespace pgf::observe {

static_assert(sizeof(Counters) == std::size(kCounters) * sizeof(std::uint64_t), "kCounters misses a counter");

namespace {

const Fleet::Stats* find(const std::vector<Fleet::Stats>& rows, const std::string& database) {
  auto it = std::ranges::lower_bound(rows, database, {}, &Fleet::Stats::database);
  return it != rows.end() && it->database == database ? &*it : nullptr;
}

// 128 bits, because bytes times microseconds leaves 64 bits at a few GB/s and long periods.
std::uint64_t per_second(std::uint64_t count, Usec period) {
  if (period <= 0) return 0;
  return static_cast<std::uint64_t>(static_cast<unsigned __int128>(count) * kSecond /
                                    static_cast<std::uint64_t>(period));
}

std::uint64_t per(std::uint64_t time, std::uint64_t count) { return count ? time / count : 0; }

}  // namespace

Counters& Counters::operator+=(const Counters& other) {
  for (auto counter : kCounters) this->*counter += other.*counter;
  return *this;
}

std::vector<Fleet::Stats> totals(const std::vector<PoolRow>& pools) {
  std::vector<Fleet::Stats> rows;
  for (const PoolRow& pool : pools) {
    if (rows.empty() || rows.back().database != pool.database) rows.push_back({pool.database, {}, {}});
    rows.back().total += pool.counters;
  }
  return rows;
}

void set_growth(std::vector<Fleet::Stats>& now, const std::vector<Fleet::Stats>& before) {
  for (Fleet::Stats& row : now) {
    row.period = row.total;
    const Fleet::Stats* old = find(before, row.database);
    if (!old) continue;
    for (auto counter : kCounters) row.period.*counter -= std::min(row.period.*counter, old->total.*counter);
  }
}

void copy_growth(std::vector<Fleet::Stats>& rows, const std::vector<Fleet::Stats>& last_tick) {
  for (Fleet::Stats& row : rows)
    if (const Fleet::Stats* old = find(last_tick, row.database)) row.period = old->period;
}

Counters averages(const Counters& growth, Usec period) {
  Counters out;
  for (auto counter : kCounters) out.*counter = per_second(growth.*counter, period);
  out.xact_time = per(growth.xact_time, growth.xact_count);
  out.query_time = per(growth.query_time, growth.query_count);
  out.wait_time = per(growth.wait_time, growth.server_assignment_count);
  return out;
}

}  // namespace pgf::observe
