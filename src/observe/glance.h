#pragma once
// What the web page shows: a report, what has changed since the last ones, and a choice of the rows. Used by one
// thread.
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "observe/findings.h"
#include "observe/report.h"
#include "observe/views.h"

namespace pgf::observe {

class Json;

struct Choice {  // of one viewer
  enum class Order { waiting, servers, rate, name };
  Order order = Order::waiting;
  std::string find = {};                 // in the name of database or user, ASCII letters in any case
  std::size_t from = 0;                  // the first row of the pools; a page begins at a multiple of kRows
  std::string database = {}, user = {};  // a pool that is told in any case
};

class Glance {
 public:
  // What update() draws from.
  static constexpr unsigned kParts = kPools | kWorkers | kDatabases | kUsers | kSettings | kStats | kLatencies |
                                     kPeers | kHosts | kHostUse | kSlowWaits | kBudget;
  static constexpr std::size_t kRows = 25;     // pools on a page
  static constexpr std::size_t kTop = 10;      // databases, users
  static constexpr std::size_t kWaits = 20;    // slow waits
  static constexpr std::size_t kMaxRows = 64;  // hosts, peers, workers

  // A new report; the clocks are monotonic and wall time.
  void update(std::shared_ptr<const Fleet> fleet, Usec now, Usec wall);
  bool is_fresh(Usec now) const { return report_ && now - now_ < 2 * kSecond; }

  // One line of JSON. With the settings if they are not those of `settings`, which then is made to be.
  std::string json(const Choice& choice, std::uint64_t& settings) const;

 private:
  struct Sums {  // of all workers
    session::Latencies latencies;
    std::uint64_t received = 0, sent = 0;
  };
  struct Before {  // a pool, in the report before this
    std::string database, user;
    Counters counters;
  };
  struct Rate {  // a pool's, per second
    double transactions = 0, queries = 0;
    Usec mean_wait = 0, mean_query = 0;
  };
  struct Past {
    Usec at;
    session::Latencies latencies;
    std::map<std::string, Histogram> host_queries;
  };

  void count_rates(double seconds);
  void write_totals(Json& out) const;
  void write_workers(Json& out) const;
  void write_latencies(Json& out) const;
  void write_pools(Json& out, const Choice& choice) const;
  void write_pool(Json& out, std::size_t i) const;
  void write_tops(Json& out) const;
  void write_hosts(Json& out) const;
  void write_peers(Json& out) const;
  void write_slow_waits(Json& out) const;
  void write_findings(Json& out) const;
  void write_settings(Json& out) const;

  std::shared_ptr<const Fleet> report_;
  Usec now_ = 0, wall_ = 0;
  Sums sums_, last_sums_;
  double seconds_ = 0;  // since the last report; 0: there is none that could be compared
  std::vector<Before> before_;
  std::vector<Rate> rates_;               // of report_->pools, in their order; all 0 at first
  std::vector<RecentPool> recent_pools_;  // the same
  std::deque<Past> past_;                 // about a minute, for what is lately
  std::map<std::string, Histogram> recent_hosts_;
  std::vector<Finding> findings_;
  std::uint64_t settings_number_ = 0;
};

}  // namespace pgf::observe
