#pragma once
// Watches that every worker comes back to its loop. Used by the control thread only.
#include <functional>
#include <string>
#include <vector>

#include "base/time.h"

namespace pgf::worker {

class Fleet;

class Watchdog {
 public:
  // `notify` tells the service manager, which expects a sign of life within manager_patience (0: never).
  Watchdog(Fleet& fleet, std::function<void(const std::string&)> notify, Usec manager_patience);

  // About three times a second. True: some worker has not come back for watchdog_abort; nothing else helps it.
  bool look(Usec now);
  // Hands the connections that wait at the sockets of stuck workers to others. To be called often while there are any.
  void accept_for_stuck();
  std::uint64_t stalls(int worker) const { return stalls_[static_cast<std::size_t>(worker)]; }

 private:
  struct Seen {
    std::uint64_t beat = 0;
    Usec stuck = 0;      // for so long it has not come back, as far as this thread itself ran
    Usec report_at = 0;  // next
  };
  void stuck(int worker, Seen& seen, Usec report_after);
  void back(int worker, Seen& seen);

  Fleet& fleet_;
  std::function<void(const std::string&)> notify_;
  const Usec manager_patience_;
  std::vector<Seen> seen_;
  std::vector<std::uint64_t> stalls_;  // since the start
  Usec last_ = 0, told_ = 0;
};

}  // namespace pgf::worker
