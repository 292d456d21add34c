#include "config/ini.h"

#include <fmt/format.h>

#include <algorithm>

#include "config/value.h"

namespace pgf::config {
namespace {

constexpr int kMaxNesting = 10;
// Each level may include many: without a limit ten small files can keep a reload busy for ever.
constexpr int kMaxFiles = 10'000;

bool is_key_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
         c == '-' || c == '*';
}

std::string_view skip_blanks(std::string_view s) {
  s.remove_prefix(std::min(s.find_first_not_of(kBlanks), s.size()));
  return s;
}

// Cuts the leading key characters off `rest`.
std::string_view take_key(std::string_view& rest) {
  auto end = std::ranges::find_if_not(rest, is_key_char);
  std::string_view key = rest.substr(0, static_cast<std::size_t>(end - rest.begin()));
  rest.remove_prefix(key.size());
  return key;
}

class Reader {
 public:
  Reader(FileReader& files, IniVisitor& visitor, std::vector<std::string>& errors)
      : files_(files), visitor_(visitor), errors_(errors) {}

  bool file(const std::string& path, int level, const Place* from) {
    if (level > kMaxNesting) return fail(fmt::format("include nesting is deeper than {} levels", kMaxNesting), from);
    if (++count_ > kMaxFiles) return fail(fmt::format("more than {} included files", kMaxFiles), from);
    std::string reason;
    auto text = files_.read(path, reason);
    if (!text) return fail(fmt::format("could not load file {}: {}", path, reason), from);

    Place place{path, 0};
    std::string_view rest = *text;
    while (!rest.empty()) {
      std::size_t end = std::min(rest.find('\n'), rest.size());
      ++place.line;
      if (!line(rest.substr(0, end), level, place)) return false;
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    return true;
  }

 private:
  bool line(std::string_view s, int level, const Place& place) {
    if (s.find('\0') != std::string_view::npos) return syntax_error(place, "");
    for (s = skip_blanks(s); s.starts_with('['); s = skip_blanks(s)) {
      s.remove_prefix(1);
      std::string_view name = take_key(s);
      if (!s.starts_with(']')) return syntax_error(place, "");
      s.remove_prefix(1);
      if (!visitor_.section(name, place)) return false;
      in_section_ = true;
    }
    if (s.empty() || s[0] == '#' || s[0] == ';') return true;
    if (s[0] == '%') return directive(s, level, place);
    return assignment(s, place);
  }

  bool directive(std::string_view s, int level, const Place& place) {
    constexpr std::string_view kInclude = "%include";
    if (!s.starts_with(kInclude) || s.size() == kInclude.size() || !is_blank(s[kInclude.size()]))
      return syntax_error(place, "");
    std::string path(trim(s.substr(kInclude.size())));
    if (path.empty()) return syntax_error(place, "");
    return file(path, level + 1, &place);
  }

  bool assignment(std::string_view s, const Place& place) {
    std::string_view key;
    if (s[0] == '\'') {
      std::size_t end = s.find('\'', 1);
      if (end == std::string_view::npos) return syntax_error(place, "");
      key = s.substr(1, end - 1);
      s.remove_prefix(end + 1);
    } else {
      // PgBouncer's own documentation shows double quotes here, so say what works.
      if (s[0] == '"') return syntax_error(place, ": use single quotes around a name");
      key = take_key(s);
    }
    s = skip_blanks(s);
    if (key.empty() || !s.starts_with('=')) return syntax_error(place, "");
    if (!in_section_) return syntax_error(place, ": a key before any [section]");
    return visitor_.entry(key, trim(s.substr(1)), place);
  }

  bool syntax_error(const Place& place, std::string_view why) {
    errors_.push_back(fmt::format("syntax error in configuration ({}), stopping loading{}", to_text(place), why));
    return false;
  }
  bool fail(const std::string& what, const Place* from) {
    errors_.push_back(from ? fmt::format("{} ({})", what, to_text(*from)) : what);
    return false;
  }

  FileReader& files_;
  IniVisitor& visitor_;
  std::vector<std::string>& errors_;
  bool in_section_ = false;
  int count_ = 0;
};

}  // namespace

std::string to_text(const Place& place) { return fmt::format("{}:{}", place.file, place.line); }

bool read_ini(const std::string& path, FileReader& files, IniVisitor& visitor, std::vector<std::string>& errors) {
  return Reader(files, visitor, errors).file(path, 0, nullptr);
}

}  // namespace pgf::config
