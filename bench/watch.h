#pragma once
// What a process has cost so far, read from /proc.
#include <cstdint>

namespace bench {

struct Usage {
  std::uint64_t cpu_ns = 0;   // all threads, user and system
  std::uint64_t wait_ns = 0;  // all threads: ready to run, but the core was busy with something else
  std::uint64_t rss_kb = 0;
};

Usage usage_of(int pid);  // zeros when there is no such process

}  // namespace bench
