#include "session/slow_lines.h"

#include <utility>

namespace pgf::session {

bool SlowLines::take(Usec now) {
  if (since_ == 0 || now - since_ >= kSecond) {
    since_ = now;
    written_ = 0;
  }
  if (written_ < kPerSecond) {
    ++written_;
    return true;
  }
  ++untold_;
  return false;
}

std::uint64_t SlowLines::untold(Usec now) {
  if (untold_ == 0 || now - since_ < kSecond) return 0;
  return std::exchange(untold_, 0);
}

}  // namespace pgf::session
