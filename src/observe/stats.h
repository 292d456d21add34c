#pragma once
// Arithmetic on counters: sums per database, growth over a stats period, averages.
#include <vector>

#include "observe/report.h"

namespace pgf::observe {

// Every counter, in the column order of SHOW STATS. Sums, averages and reports all walk this list.
inline constexpr std::uint64_t Counters::*kCounters[] = {
    &Counters::server_assignment_count,
    &Counters::xact_count,
    &Counters::query_count,
    &Counters::received,
    &Counters::sent,
    &Counters::xact_time,
    &Counters::query_time,
    &Counters::wait_time,
    &Counters::client_parse_count,
    &Counters::server_parse_count,
    &Counters::bind_count,
    &Counters::client_login_count,
};

// One row per database that has a pool; `period` stays zero. `pools` sorted by database.
std::vector<Fleet::Stats> totals(const std::vector<PoolRow>& pools);

// For the tick at the end of a stats period: sets now[].period to what was added since `before`. Never negative,
// although a deleted pool takes its numbers with it. Both sorted by database.
void set_growth(std::vector<Fleet::Stats>& now, const std::vector<Fleet::Stats>& before);

// For a SHOW between two ticks: takes over the growth that the last tick found. Both sorted by database.
void copy_growth(std::vector<Fleet::Stats>& rows, const std::vector<Fleet::Stats>& last_tick);

// Counts and bytes become "per second"; times become "per query", "per transaction" and "per assignment".
Counters averages(const Counters& growth, Usec period);

}  // namespace pgf::observe
