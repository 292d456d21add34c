#pragma once
// What in a report needs a person's attention, and why, in words. Pure.
#include <string>
#include <utility>
#include <vector>

#include "observe/report.h"

namespace pgf::observe {

struct Finding {
  bool bad = false;  // somebody suffers now; else: look at it before somebody does
  std::string title, reason;
  std::string database = {}, user = {};  // the pool, if it is about one
};

struct RecentHost {  // how an address answered lately
  std::string address;
  std::uint64_t queries = 0;
  Usec median = 0;
};

struct RecentPool {                         // how a pool was used lately
  double in_query = 0, in_transaction = 0;  // seconds
};

inline constexpr std::size_t kMaxFindings = 20;

// The worst first, at most kMaxFindings. `recent` says about the pools of the report, in its order; it may be shorter.
std::vector<Finding> findings(const Fleet& fleet, const std::vector<RecentPool>& recent,
                              const std::vector<RecentHost>& hosts);

int servers(const PoolRow& pool);  // all that count for its size

}  // namespace pgf::observe
