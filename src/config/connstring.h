#pragma once
// `key=value key='value with ''quotes'''`, the right-hand sides of [databases], [users] and [peers]. Only the space
// separates; blanks may stand around the =; an empty value is an error.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pgf::config {

struct Pair {
  std::string key, value;
};
// nullopt = syntax error.
std::optional<std::vector<Pair>> parse_connstring(std::string_view text);
// The text as it may be logged: one that may hold a password, even if malformed, is not shown.
std::string without_secrets(std::string_view text);

}  // namespace pgf::config
