#pragma once
// How many lines about slow waits, logins and transactions a worker may write: a storm must not fill a disk.
#include <cstdint>

#include "base/time.h"

namespace pgf::session {

class SlowLines {
 public:
  static constexpr int kPerSecond = 10;

  bool take(Usec now);  // false: not this one, it is counted
  // How many were not written in a second that is over; each is told of once.
  std::uint64_t untold(Usec now);

 private:
  Usec since_ = 0;  // the second that counts began with a line
  int written_ = 0;
  std::uint64_t untold_ = 0;
};

}  // namespace pgf::session
