#pragma once
#include <string_view>

namespace pgf {

// The PgBouncer whose console, texts and rules this program keeps; clients and exporters look at it.
inline constexpr std::string_view kPgBouncerVersion = "1.25.2";

}  // namespace pgf
