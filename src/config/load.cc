#include <fmt/format.h>

#include <array>

#include "config/budget.h"
#include "config/config.h"
#include "config/connstring.h"
#include "config/entries.h"
#include "config/ini.h"
#include "config/nearest.h"

namespace pgf::config {
namespace {

constexpr std::array<std::string_view, 4> kSections{"pgbouncer", "databases", "users", "peers"};

// Fills a Config with what the ini says.
class Builder : public IniVisitor {
 public:
  Builder(Config& config, std::vector<std::string>& errors) : config_(config), errors_(errors) {}

  bool section(std::string_view name, const Place& place) override {
    section_ = name;
    if (name == "pgbouncer") {
      has_main_ = true;
      reset_non_null(config_.settings);
      std::erase_if(config_.given, [](const std::string& key) { return !has_null_default(key); });
      return true;
    }
    if (name == "databases" || name == "users" || name == "peers") return true;
    errors_.push_back(fmt::format("unknown section: {} in configuration ({}){}", name, to_text(place),
                                  hint(nearest(name, kSections))));
    return false;
  }

  bool entry(std::string_view key, std::string_view value, const Place& place) override {
    if (section_ == "pgbouncer") return setting(key, value, place);
    if (section_ == "databases") return database(key, value, place);
    if (section_ == "users") return user(key, value, place);
    return peer(key, value, place);
  }

  bool has_main() const { return has_main_; }

 private:
  bool setting(std::string_view key, std::string_view value, const Place& place) {
    if (!is_known(key)) {
      errors_.push_back(fmt::format("unknown parameter: pgbouncer/{} in configuration ({}){}", key, to_text(place),
                                    hint(nearest_setting(key))));
      return false;
    }
    if (auto done = set(config_.settings, key, value); !done) return invalid(key, value, place, ": " + done.error());
    config_.given.emplace(key);
    return true;
  }

  bool database(std::string_view name, std::string_view value, const Place& place) {
    auto db = parse_database(name, value);
    if (!db) return bad_entry(name, value, place, db.error());
    if (name == "*") {
      config_.wildcard = *std::move(db);
    } else {
      config_.databases[std::string(name)] = *std::move(db);
    }
    return true;
  }
  bool user(std::string_view name, std::string_view value, const Place& place) {
    auto entry = parse_user(name, value);
    if (!entry) return bad_entry(name, value, place, entry.error());
    config_.users[std::string(name)] = *std::move(entry);
    return true;
  }
  bool peer(std::string_view name, std::string_view value, const Place& place) {
    auto entry = parse_peer(name, value);
    if (!entry) return bad_entry(name, value, place, entry.error());
    const int id = entry->id;
    config_.peers[id] = *std::move(entry);
    return true;
  }

  bool bad_entry(std::string_view name, std::string_view value, const Place& place, const std::string& reason) {
    errors_.push_back(fmt::format("{} ({})", reason, to_text(place)));
    return invalid(name, without_secrets(value), place, "");
  }
  bool invalid(std::string_view key, std::string_view value, const Place& place, std::string_view reason) {
    errors_.push_back(fmt::format("invalid value \"{}\" for parameter {} in configuration ({}){}", value, key,
                                  to_text(place), reason));
    return false;
  }

  Config& config_;
  std::vector<std::string>& errors_;
  std::string section_;
  bool has_main_ = false;
};

void read_auth_file(Config& config, FileReader& files) {
  const Settings& s = config.settings;
  if (s.auth_file.empty() || s.auth_type == AuthType::any || s.auth_type == AuthType::pam) return;
  std::string reason;
  auto text = files.read(s.auth_file, reason);
  if (!text) {
    config.warnings.push_back(fmt::format("could not open auth_file {}: {}", s.auth_file, reason));
    config.auth_file_broken = true;
    return;
  }
  AuthFile parsed = parse_auth_file(*text);
  config.passwords = std::move(parsed.passwords);
  config.auth_file_broken = !parsed.errors.empty();
  for (const std::string& error : parsed.errors) config.warnings.push_back(fmt::format("{}: {}", s.auth_file, error));
}

// Lines that cannot be used are skipped, as PgBouncer does. A RELOAD that finds some is refused, or keeps the rules
// that it has if they were broken before (keep_on_reload): half of new rules may let in whom the other half would have
// refused.
void read_hba(Config& config, FileReader& files) {
  const Settings& s = config.settings;
  if (s.auth_type != AuthType::hba) return;
  auto read = [&](const std::string& path, std::string_view what) {
    std::string reason;
    auto text = files.read(path, reason);
    if (!text) config.warnings.push_back(fmt::format("could not open {} config file {}: {}", what, path, reason));
    return text;
  };
  auto note = [&](const auto& parsed) {
    config.hba_broken |= parsed.broken;
    config.warnings.insert(config.warnings.end(), parsed.warnings.begin(), parsed.warnings.end());
  };
  auth::IdentMaps maps;
  if (!s.auth_ident_file.empty()) {
    auto text = read(s.auth_ident_file, "ident");
    auth::IdentParsed parsed = auth::parse_ident(text.value_or(""));
    config.hba_broken |= !text;
    note(parsed);
    maps = std::move(parsed.maps);
  }
  auto text = read(s.auth_hba_file, "hba");
  config.hba_broken |= !text;
  auto parsed = auth::parse_hba(text.value_or(""), s.auth_hba_file, maps,
                                [&](const std::string& path) { return read(path, "hba"); });
  note(parsed);
  config.hba = std::make_shared<auth::Hba>(std::move(parsed.hba));
}

// A setting that is accepted but ignored must not pass in silence, unless it says what happens anyway.
void warn_without_effect(Config& config) {
  for (const ShownSetting& row : show(config.settings)) {
    if (!config.given.contains(row.key) || has_effect(row.key)) continue;
    if (row.value != row.default_value)
      config.warnings.push_back(fmt::format("{} is accepted, but has no effect in this version", row.key));
  }
  if (!config.peers.empty() && config.settings.peer_id == 0)
    config.warnings.push_back("[peers] has no effect without peer_id: cancel requests are not forwarded");
  const Settings& s = config.settings;
  if (s.budget == Budget::process && (s.fleet_size > 0 || !s.fleet_file.empty()))
    config.warnings.push_back("fleet_size and fleet_file have no effect without budget = fleet");
}

}  // namespace

LoadResult load(const std::string& path, FileReader& files) {
  LoadResult result;
  auto config = std::make_shared<Config>();
  set_defaults(config->settings);
  config->settings.conffile = path;
  Builder builder(*config, result.errors);
  if (!read_ini(path, files, builder, result.errors)) return result;
  if (!builder.has_main()) {
    result.errors.push_back(fmt::format("no [pgbouncer] section in configuration ({})", path));
    return result;
  }
  if (std::string problem = check_budget(*config); !problem.empty()) {
    result.errors.push_back(std::move(problem));
    return result;
  }
  warn_without_effect(*config);
  read_auth_file(*config, files);
  read_hba(*config, files);
  result.config = std::move(config);
  return result;
}

}  // namespace pgf::config
