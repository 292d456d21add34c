#pragma once
#include <cstddef>
#include <string_view>

namespace pgf::config {

inline constexpr std::size_t kMaxDatabaseName = 63;
inline constexpr std::size_t kMaxUserName = 127;
inline constexpr std::size_t kMaxPassword = 65530;
inline constexpr std::string_view kConsoleDatabase = "pgbouncer";

}  // namespace pgf::config
