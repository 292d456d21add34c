#include "config/connstring.h"

#include <algorithm>

#include "config/value.h"

namespace pgf::config {
namespace {

void skip_spaces(std::string_view& s) { s.remove_prefix(std::min(s.find_first_not_of(' '), s.size())); }

std::string_view take_until(std::string_view& s, std::string_view stops) {
  std::string_view taken = s.substr(0, s.find_first_of(stops));
  s.remove_prefix(taken.size());
  return taken;
}

// `s` stands on the opening quote. Behind the closing one only a space or the end may follow.
std::optional<std::string> take_quoted(std::string_view& s) {
  std::string value;
  for (std::size_t i = 1; i < s.size(); ++i) {
    if (s[i] != '\'') {
      value += s[i];
    } else if (i + 1 < s.size() && s[i + 1] == '\'') {
      value += s[i++];
    } else {
      s.remove_prefix(i + 1);
      if (!s.empty() && s[0] != ' ') return std::nullopt;
      return value;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::vector<Pair>> parse_connstring(std::string_view text) {
  std::vector<Pair> pairs;
  for (skip_spaces(text); !text.empty(); skip_spaces(text)) {
    Pair pair;
    pair.key = take_until(text, " =");
    skip_spaces(text);
    if (pair.key.empty() || !text.starts_with('=')) return std::nullopt;
    text.remove_prefix(1);
    skip_spaces(text);
    if (text.starts_with('\'')) {
      auto value = take_quoted(text);
      if (!value) return std::nullopt;
      pair.value = *std::move(value);
    } else {
      pair.value = take_until(text, " ");
    }
    if (pair.value.empty()) return std::nullopt;
    pairs.push_back(std::move(pair));
  }
  return pairs;
}

std::string without_secrets(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  // "pass" and not "password": the key may be what is misspelt.
  return lower.find("pass") == std::string::npos && lower.find("pw") == std::string::npos ? std::string(text)
                                                                                          : "(not shown)";
}

}  // namespace pgf::config
