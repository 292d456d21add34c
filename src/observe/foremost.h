#pragma once
// Which pools, databases, users and hosts have series of their own in /metrics, so that a page stays small whatever
// clients invent. The busiest, as they come; who has been chosen stays chosen, because a series that comes and goes
// makes "(others)" go up and down, and counters must not.
#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "observe/report.h"

namespace pgf::observe {

inline constexpr std::string_view kOthers = "(others)";

class Foremost {
 public:
  explicit Foremost(std::size_t limit) : limit_(limit) {}
  void update(const Fleet& fleet);

  bool has(const PoolRow& p) const { return pools_.contains({p.database, p.user}); }
  bool has_database(const std::string& name) const { return databases_.contains(name); }
  bool has_user(const std::string& name) const { return users_.contains(name); }
  bool has_host(const std::string& address) const { return hosts_.contains(address); }

 private:
  const std::size_t limit_;  // of each
  std::set<std::pair<std::string, std::string>> pools_;
  std::set<std::string> databases_, users_, hosts_;
};

}  // namespace pgf::observe
