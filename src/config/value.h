#pragma once
// The value types of the ini: text to number and back, and what counts as a blank.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/time.h"

namespace pgf::config {

inline constexpr std::string_view kBlanks = " \t\n\v\f\r";

inline bool is_blank(char c) { return kBlanks.find(c) != std::string_view::npos; }
std::string_view trim(std::string_view s);
bool equals_ignoring_case(std::string_view a, std::string_view b);

// strtol with base 0 over the whole text: decimal, 0x.., leading 0 = octal.
std::optional<std::int64_t> parse_int(std::string_view text);
// Seconds with an optional decimal fraction, never negative. "Forever" in the shape of a huge number is capped, so
// that adding it to a clock cannot overflow.
std::optional<Usec> parse_seconds(std::string_view text);
// Seconds as printf's %g shows them.
std::string show_seconds(Usec time);
// What C's atoi makes of it: trailing junk ignored, no number = 0. Saturates where atoi would be undefined.
int lenient_int(std::string_view text);

struct Endpoint {
  std::string host;  // "*" = every address; an IPv6 literal without its brackets
  std::uint16_t port;
};
// "127.0.0.1:9127", "[::1]:9127", "*:9127", "host:9127".
std::optional<Endpoint> parse_endpoint(std::string_view text);

}  // namespace pgf::config
