// The auth_file: lines of `"user" "password"`, "" inside quotes for one quote, `;` comments. Reading stops at the first
// bad line; the lines before it count.
#include <fmt/format.h>

#include <algorithm>

#include "config/config.h"
#include "config/limits.h"
#include "config/value.h"

namespace pgf::config {
namespace {

std::string_view skip_blanks(std::string_view s) {
  s.remove_prefix(std::min(s.find_first_not_of(kBlanks), s.size()));
  return s;
}

// Cuts a quoted field off the front of `s`.
std::optional<std::string> take_field(std::string_view& s) {
  if (!s.starts_with('"')) return std::nullopt;
  std::string field;
  for (std::size_t i = 1; i < s.size(); ++i) {
    if (s[i] != '"') {
      field += s[i];
    } else if (i + 1 < s.size() && s[i + 1] == '"') {
      field += s[i++];
    } else {
      s.remove_prefix(i + 1);
      return field;
    }
  }
  return std::nullopt;
}

// Returns what is wrong, or nothing.
std::string_view parse_line(std::string_view line, std::map<std::string, std::string>& passwords) {
  line = skip_blanks(line);
  if (line.empty() || line[0] == ';') return {};
  if (line.find('\0') != std::string_view::npos) return "broken auth file";
  auto user = take_field(line);
  if (!user) return "broken auth file";
  if (user->size() > kMaxUserName) return "username too long in auth file";
  line = skip_blanks(line);
  auto password = take_field(line);
  if (!password) return "broken auth file";
  if (password->size() > kMaxPassword) return "password too long in auth file";
  passwords[*std::move(user)] = *std::move(password);
  return {};
}

}  // namespace

AuthFile parse_auth_file(std::string_view text) {
  AuthFile result;
  for (int number = 1; !text.empty(); ++number) {
    std::size_t end = std::min(text.find('\n'), text.size());
    if (auto error = parse_line(text.substr(0, end), result.passwords); !error.empty()) {
      result.errors.push_back(fmt::format("{} (line {})", error, number));
      break;
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return result;
}

}  // namespace pgf::config
