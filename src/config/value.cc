#include "config/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>

namespace pgf::config {
namespace {

constexpr double kMaxSeconds = 1e12;

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string_view skip_blanks(std::string_view s) {
  s.remove_prefix(std::min(s.find_first_not_of(kBlanks), s.size()));
  return s;
}

}  // namespace

std::string_view trim(std::string_view s) {
  s = skip_blanks(s);
  return s.substr(0, s.find_last_not_of(kBlanks) + 1);
}

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](char x, char y) { return lower(x) == lower(y); });
}

std::optional<std::int64_t> parse_int(std::string_view text) {
  std::string copy(text);
  char* end = nullptr;
  errno = 0;
  std::int64_t value = std::strtoll(copy.c_str(), &end, 0);
  if (end == copy.c_str() || end != copy.c_str() + copy.size() || errno == ERANGE) return std::nullopt;
  return value;
}

std::optional<Usec> parse_seconds(std::string_view text) {
  text = skip_blanks(text);
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  double seconds = 0;
  const char* end = text.data() + text.size();
  auto [stop, error] = std::from_chars(text.data(), end, seconds);
  if (error != std::errc{} || stop != end || !std::isfinite(seconds) || seconds < 0) return std::nullopt;
  return static_cast<Usec>(std::llround(std::min(seconds, kMaxSeconds) * kSecond));
}

std::string show_seconds(Usec time) { return fmt::format("{:g}", static_cast<double>(time) / kSecond); }

int lenient_int(std::string_view text) {
  text = skip_blanks(text);
  bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  std::int64_t value = 0;
  for (char c : text) {
    if (c < '0' || c > '9') break;
    value = std::min<std::int64_t>(value * 10 + (c - '0'), std::numeric_limits<int>::max());
  }
  return static_cast<int>(negative ? -value : value);
}

std::optional<Endpoint> parse_endpoint(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  std::string_view host = text.substr(0, colon), port = text.substr(colon + 1);
  const bool brackets = host.starts_with('[') && host.ends_with(']');
  if (brackets) host = host.substr(1, host.size() - 2);
  unsigned number = 0;
  auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (error != std::errc() || end != port.data() + port.size() || number < 1 || number > 65535) return std::nullopt;
  if (host.empty() || host.find_first_of(" []") != std::string_view::npos) return std::nullopt;
  if ((host.find(':') != std::string_view::npos) != brackets) return std::nullopt;
  return Endpoint{std::string(host), static_cast<std::uint16_t>(number)};
}

}  // namespace pgf::config
