#pragma once
// How much CPU time the cgroups (v2) of a process allow. The files are read by a function, so that this stays pure.
#include <functional>
#include <optional>
#include <string>

namespace pgf {

using ReadText = std::function<std::optional<std::string>(const std::string& path)>;

// Cores, or 0 for no limit: the least cpu.max of the process's group and of those above it.
double cgroup_cores(const ReadText& read);

}  // namespace pgf
