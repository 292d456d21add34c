#include "wire/params.h"

#include <algorithm>

namespace pgf::wire {
namespace {

// Place of standard_conforming_strings among the names; those before it and itself are settings of the server's making.
constexpr int kConformingStrings = 3;

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

bool equal_nocase(std::string_view a, std::string_view b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) { return lower(x) == lower(y); });
}

// In some client encodings (SJIS, BIG5, GBK) a backslash may be the second byte of a character. Doubled, the second one
// would stand alone and escape the quote behind it. So backslashes are left as they are wherever they mean nothing.
void quote(std::string& out, std::string_view value, bool conforming) {
  if (!conforming && value.find('\\') != std::string_view::npos) out += 'E';
  out += '\'';
  for (char c : value) {
    if (c == '\'' || (c == '\\' && !conforming)) out += c;
    out += c;
  }
  out += '\'';
}

// The server itself does not tell these apart by case: no SET for a different spelling. Of any other value, a name for
// example, case is a part.
bool same_value(int index, std::string_view a, std::string_view b) {
  return index <= kConformingStrings ? equal_nocase(a, b) : a == b;
}

}  // namespace

ParamNames::ParamNames(std::string_view track_extra) {
  for (std::string_view name :
       {"DateStyle", "client_encoding", "TimeZone", "standard_conforming_strings", "application_name"})
    names_.emplace_back(name);
  while (!track_extra.empty()) {
    std::size_t comma = std::min(track_extra.find(','), track_extra.size());
    std::string_view name = track_extra.substr(0, comma);
    track_extra.remove_prefix(std::min(comma + 1, track_extra.size()));
    auto blank = [](char c) { return c == ' ' || c == '\t'; };
    while (!name.empty() && blank(name.front())) name.remove_prefix(1);
    while (!name.empty() && blank(name.back())) name.remove_suffix(1);
    if (!name.empty() && find(name) < 0) names_.emplace_back(name);
  }
}

int ParamNames::find(std::string_view name) const {
  for (std::size_t i = 0; i < names_.size(); ++i)
    if (equal_nocase(names_[i], name)) return static_cast<int>(i);
  return -1;
}

void ParamSet::set(int index, std::string_view value) {
  Value& slot = values_[static_cast<std::size_t>(index)];
  if (slot && *slot == value) return;
  slot = std::make_shared<const std::string>(value);
}

void ParamSet::fill_from(const ParamSet& defaults) {
  for (std::size_t i = 0; i < values_.size() && i < defaults.values_.size(); ++i)
    if (!values_[i]) values_[i] = defaults.values_[i];
}

bool params_match(const ParamSet& client, ParamSet& server) {
  for (int i = 0; i < client.size(); ++i) {
    const ParamSet::Value &c = client.get(i), &s = server.get(i);
    if (c == s || !c || !s) continue;
    if (!same_value(i, *c, *s)) return false;
    if (*c == *s) server.set(i, c);
  }
  return true;
}

std::string params_diff_sql(const ParamNames& names, const ParamSet& client, const ParamSet& server) {
  std::string sql;
  // The whole text is scanned before its first SET runs: what the server has now counts.
  const ParamSet::Value& strings = server.get(kConformingStrings);
  const bool conforming = strings && *strings == "on";
  for (int i = 0; i < client.size(); ++i) {
    const ParamSet::Value &c = client.get(i), &s = server.get(i);
    if (!c || !s || c == s || same_value(i, *c, *s)) continue;
    if (equal_nocase(names.name(i), "search_path")) {
      // A list of names with quotes of their own: SET would want its elements one by one, set_config takes the text.
      sql.append("SELECT pg_catalog.set_config('search_path',");
      quote(sql, *c == "\"\"" ? "" : *c, conforming);
      sql.append(",false);");
      continue;
    }
    sql.append("SET ").append(names.name(i)).append(1, '=');
    quote(sql, *c, conforming);
    sql += ';';
  }
  return sql;
}

}  // namespace pgf::wire
