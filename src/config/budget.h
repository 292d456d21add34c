#pragma once
// `budget = fleet`: the limits are for several processes together. With fleet_file they count together
// (pool/ledger.h); with fleet_size each has its part of every limit, which is what this is about.
#include <string>

#include "config/config.h"

namespace pgf::config {

bool counts_together(const Settings& settings);  // by fleet_file
bool divides(const Settings& settings);          // by fleet_size

// This process's part of a limit: an equal one, and of what is left over one for each of the lowest peer_ids. 0, which
// is no limit, stays 0.
int part_of(const Config& config, int whole);
int max_client_conn(const Config& config);

// What is wrong with these settings, or empty: a limit of which some process would have nothing.
std::string check_budget(const Config& config);

}  // namespace pgf::config
