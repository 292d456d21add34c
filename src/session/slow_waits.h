#pragma once
// The last clients that waited long for a server, for SHOW SLOW_WAITS and the web page. Of one worker.
#include <cstdint>
#include <deque>
#include <string>

#include "session/slow_lines.h"

namespace pgf::session {

struct SlowWait {
  Usec ended, waited;
  bool in_vain;                // no server came
  std::string database, user;  // of the pool
  int servers, pool_size;      // of the pool, at that time
  std::uint64_t client;
  std::string addr;
  int port;
  std::string application_name;
};

class SlowWaits {
 public:
  static constexpr std::size_t kKept = 50;
  static constexpr Usec kLong = 100 * kMillisecond;  // if log_slow_wait does not say what is

  // A few per second are enough: whoever is refused costs nothing.
  bool wants_one(Usec now) { return pace_.take(now); }
  void add(SlowWait wait) {
    if (last_.size() == kKept) last_.pop_front();
    last_.push_back(std::move(wait));
  }
  const std::deque<SlowWait>& last() const { return last_; }  // oldest first

 private:
  SlowLines pace_;
  std::deque<SlowWait> last_;
};

}  // namespace pgf::session
