#pragma once
// Tracked parameters: what each client wants and what each server has, and the SET that makes them equal
// (behaviour.md section 8).
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace pgf::wire {

// The tracked names, fixed at start: DateStyle, client_encoding, TimeZone, standard_conforming_strings,
// application_name, then track_extra_parameters in the spelling given. A name given twice counts once.
class ParamNames {
 public:
  explicit ParamNames(std::string_view track_extra);  // comma list; blanks ignored
  int find(std::string_view name) const;              // case-insensitive; -1 = not tracked
  int size() const { return static_cast<int>(names_.size()); }
  const std::string& name(int index) const { return names_[static_cast<std::size_t>(index)]; }

 private:
  std::vector<std::string> names_;
};

// Values by index; null = unknown. Values are shared, never changed in place, so a set is cheap to copy and two equal
// values are usually the same pointer.
class ParamSet {
 public:
  using Value = std::shared_ptr<const std::string>;

  explicit ParamSet(int size = 0) : values_(static_cast<std::size_t>(size)) {}
  const Value& get(int index) const { return values_[static_cast<std::size_t>(index)]; }
  void set(int index, Value value) { values_[static_cast<std::size_t>(index)] = std::move(value); }
  void set(int index, std::string_view value);  // keeps the old pointer if equal
  void fill_from(const ParamSet& defaults);     // takes over what is unknown here
  int size() const { return static_cast<int>(values_.size()); }

 private:
  std::vector<Value> values_;
};

// True if every parameter known on both sides is equal (case-insensitively). Equal but distinct values are made the
// same pointer in `server`, so that the next look is a pointer compare. This is on the hot path.
bool params_match(const ParamSet& client, ParamSet& server);

// "SET name='value';SET …;" for the parameters that differ, or empty. Literal quoting, E'' form when a backslash
// occurs; search_path is inserted raw ("" becomes ''). Unlike PgBouncer long values are applied too.
std::string params_diff_sql(const ParamNames& names, const ParamSet& client, const ParamSet& server);

}  // namespace pgf::wire
