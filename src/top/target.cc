#include "top/target.h"

#include <fmt/format.h>

#include <optional>
#include <vector>

#include "auth/exchange.h"
#include "config/connstring.h"
#include "config/value.h"

namespace pgf::top {
namespace {

using Failure = std::unexpected<std::string>;

std::optional<Tls> tls_mode(std::string_view word) {
  if (word == "disable") return Tls::disable;
  if (word == "prefer" || word == "allow") return Tls::prefer;
  if (word == "require") return Tls::require;
  if (word == "verify-ca") return Tls::verify_ca;
  if (word == "verify-full") return Tls::verify_full;
  return std::nullopt;
}

// Sets one keyword of a connection string; the error text, or nothing.
std::string set(Target& t, const std::string& key, const std::string& value) {
  if (key == "host" || key == "hostaddr") {
    t.host = value;
  } else if (key == "port") {
    auto port = config::parse_int(value);
    if (!port || *port < 1 || *port > 65535) return fmt::format("bad port: {}", value);
    t.port = static_cast<int>(*port);
  } else if (key == "user") {
    t.user = value;
  } else if (key == "password") {
    t.password = value;
  } else if (key == "sslmode") {
    auto mode = tls_mode(value);
    if (!mode) return fmt::format("bad sslmode: {}", value);
    t.tls = *mode;
  } else if (key == "sslrootcert") {
    t.root_cert = value;
  } else if (key == "dbname") {
    if (value != "pgbouncer") return "dbname: the console's name is pgbouncer";
  } else {
    return fmt::format("unknown keyword: {}", key);
  }
  return {};
}

std::optional<std::string> percent_decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    auto code = text.size() > i + 2 ? config::parse_int("0x" + std::string(text.substr(i + 1, 2))) : std::nullopt;
    if (!code || *code <= 0) return std::nullopt;
    out += static_cast<char>(*code);
    i += 2;
  }
  return out;
}

// postgresql://user:password@host:port/pgbouncer?sslmode=require -> keywords and values.
std::optional<std::vector<config::Pair>> parse_uri(std::string_view text) {
  std::vector<config::Pair> pairs;
  bool good = true;
  auto add = [&](std::string_view key, std::string_view value) {
    auto decoded = percent_decoded(value);
    good &= decoded.has_value();
    if (decoded && !decoded->empty()) pairs.push_back({std::string(key), *decoded});
  };
  text.remove_prefix(text.find("://") + 3);
  if (std::size_t at = text.find('?'); at != text.npos) {
    for (std::string_view rest = text.substr(at + 1); !rest.empty();) {
      const std::size_t end = std::min(rest.find('&'), rest.size()), equals = rest.find('=');
      if (equals >= end) return std::nullopt;
      add(rest.substr(0, equals), rest.substr(equals + 1, end - equals - 1));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    text = text.substr(0, at);
  }
  if (std::size_t at = text.find('/'); at != text.npos) {
    add("dbname", text.substr(at + 1));
    text = text.substr(0, at);
  }
  if (std::size_t at = text.rfind('@'); at != text.npos) {
    std::string_view who = text.substr(0, at);
    const std::size_t colon = std::min(who.find(':'), who.size());
    add("user", who.substr(0, colon));
    if (colon < who.size()) add("password", who.substr(colon + 1));
    text.remove_prefix(at + 1);
  }
  if (std::size_t at = text.rfind(':'); at != text.npos && text.find(']', at) == text.npos) {
    add("port", text.substr(at + 1));
    text = text.substr(0, at);
  }
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  add("host", text);
  return good ? std::optional(pairs) : std::nullopt;
}

std::string first_of(std::string_view list) {
  auto names = config::split_list(list);
  return names.empty() ? "" : names[0];
}

// Address, user and password as an ini tells them.
std::string take_ini(Target& t, const std::string& path, const Outside& outside) {
  config::LoadResult loaded = outside.load(path);
  if (!loaded.config)
    return fmt::format("{} is no connection string and no ini that could be read: {}", path,
                       loaded.errors.empty() ? "" : loaded.errors[0]);
  const config::Settings& s = loaded.config->settings;
  t.port = static_cast<int>(s.listen_port);
  t.host = s.unix_socket_dir;
  if (t.host.empty()) {
    t.host = first_of(s.listen_addr);
    if (t.host == "*" || t.host == "0.0.0.0") t.host = "127.0.0.1";
    if (t.host == "::") t.host = "::1";
  }
  if (t.is_unix() && outside.is_ours(t.socket_path())) {
    t.user = "pgbouncer";
    return {};
  }
  t.user = first_of(s.stats_users);
  if (t.user.empty()) t.user = first_of(s.admin_users);
  if (auto stored = loaded.config->passwords.find(t.user); stored != loaded.config->passwords.end())
    if (auth::Secret secret = auth::parse_secret(stored->second); secret.kind == auth::Secret::Kind::plain)
      t.password = secret.text;
  return {};
}

}  // namespace

std::string Target::socket_path() const { return fmt::format("{}/.s.PGSQL.{}", host, port); }

std::expected<Target, std::string> parse_target(const std::string& argument, const Outside& outside) {
  Target t;
  static constexpr std::pair<const char*, const char*> kVariables[] = {
      {"PGHOST", "host"},         {"PGPORT", "port"},       {"PGUSER", "user"},
      {"PGPASSWORD", "password"}, {"PGSSLMODE", "sslmode"}, {"PGSSLROOTCERT", "sslrootcert"}};
  for (const auto& [variable, key] : kVariables)
    if (std::string value = outside.environment(variable); !value.empty())
      if (std::string error = set(t, key, value); !error.empty())
        return Failure(fmt::format("{}: {}", variable, error));

  const bool uri = argument.starts_with("postgresql://") || argument.starts_with("postgres://");
  if (!argument.empty() && !uri && argument.find('=') == argument.npos) {
    const Target given = t;
    if (std::string error = take_ini(t, argument, outside); !error.empty()) return Failure(error);
    if (!given.user.empty()) t.user = given.user;
    if (!given.password.empty()) t.password = given.password;
    t.tls = given.tls;
  } else if (!argument.empty()) {
    auto pairs = uri ? parse_uri(argument) : config::parse_connstring(argument);
    if (!pairs) return Failure("a connection string is host=… port=… user=…, or postgresql://user@host:port");
    for (const auto& [key, value] : *pairs)
      if (std::string error = set(t, key, value); !error.empty()) return Failure(error);
  }
  if (t.user.empty()) t.user = t.is_unix() && outside.is_ours(t.socket_path()) ? "pgbouncer" : outside.system_user;
  return t;
}

}  // namespace pgf::top
