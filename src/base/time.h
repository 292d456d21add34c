#pragma once
#include <cstdint>

namespace pgf {

// Times and durations are whole microseconds in 64 bits. `Usec` of the monotonic clock unless a name says wall.
// sans-I/O code never reads a clock: it is told the time.
using Usec = std::int64_t;

inline constexpr Usec kSecond = 1'000'000;
inline constexpr Usec kMillisecond = 1'000;

}  // namespace pgf
