#include "auth/ldap_options.h"

#include <charconv>

namespace pgf::auth {
namespace {

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// One side of a pair: quoted, or up to one of `ends`. False: a quote is missing.
template <class Ends>
bool take(std::string_view& text, std::string& out, Ends&& ends) {
  out.clear();
  if (!text.starts_with('"')) {
    std::size_t n = 0;
    while (n < text.size() && !ends(text[n])) ++n;
    out = text.substr(0, n);
    text.remove_prefix(n);
    return true;
  }
  for (std::size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '"') {
      if (i + 1 == text.size() || text[i + 1] != '"') {
        text.remove_prefix(i + 1);
        return true;
      }
      ++i;
    }
    out += text[i];
  }
  return false;
}

constexpr std::pair<std::string_view, std::optional<std::string> LdapOptions::*> kTexts[] = {
    {"ldapserver", &LdapOptions::server},
    {"ldapbinddn", &LdapOptions::bind_dn},
    {"ldapbindpasswd", &LdapOptions::bind_password},
    {"ldapsearchattribute", &LdapOptions::search_attribute},
    {"ldapsearchfilter", &LdapOptions::search_filter},
    {"ldapbasedn", &LdapOptions::base_dn},
    {"ldapprefix", &LdapOptions::prefix},
    {"ldapsuffix", &LdapOptions::suffix},
    {"ldapurl", &LdapOptions::url},
};

std::string set(LdapOptions& o, const std::string& key, const std::string& value) {
  if (key == "ldaptls") {
    o.start_tls = value == "1";
    return {};
  }
  if (key == "ldapscheme") {
    if (value != "ldap" && value != "ldaps") return "invalid ldapscheme value: \"" + value + "\"";
    o.scheme = value;
    return {};
  }
  if (key == "ldapport") {
    auto [stop, error] = std::from_chars(value.data(), value.data() + value.size(), o.port);
    if (error != std::errc{} || stop != value.data() + value.size() || o.port < 1 || o.port > 65535)
      return "invalid LDAP port number: \"" + value + "\"";
    return {};
  }
  for (const auto& [name, member] : kTexts)
    if (key == name) {
      o.*member = value;
      return {};
    }
  return "invalid LDAP option: \"" + key + "\"";
}

}  // namespace

std::expected<LdapOptions, std::string> parse_ldap_options(std::string_view text) {
  LdapOptions options;
  while (true) {
    while (!text.empty() && (is_space(text[0]) || text[0] == ',')) text.remove_prefix(1);
    if (text.empty() || text[0] == '#') return options;
    std::string key, value;
    bool good = take(text, key, [](char c) { return c == '=' || is_space(c); }) && text.starts_with('=');
    if (good) {
      text.remove_prefix(1);
      good = take(text, value, [](char c) { return c == ',' || is_space(c); });
    }
    // The text may hold a password: it is not repeated.
    if (!good || key.empty() || value.empty() || value.contains('\0'))
      return std::unexpected("LDAP options are not of the form key=value");
    if (std::string error = set(options, key, value); !error.empty()) return std::unexpected(error);
  }
}

std::string check_ldap_options(const LdapOptions& o) {
  if (o.prefix || o.suffix) {
    if (o.base_dn || o.bind_dn || o.bind_password || o.search_attribute || o.search_filter)
      return "cannot mix options for simple bind and search+bind modes";
    if (!o.server) return "LDAP server not specified, and no ldapbasedn";
    return {};
  }
  if (!o.base_dn)
    return "authentication method \"ldap\" requires argument \"ldapbasedn\", \"ldapprefix\", or \"ldapsuffix\" to be "
           "set";
  if (o.search_attribute && o.search_filter) return "cannot use ldapsearchattribute together with ldapsearchfilter";
  if (!o.server && o.base_dn->empty()) return "LDAP server not specified, and no ldapbasedn";
  return {};
}

std::optional<std::string> ldap_filter(const LdapOptions& o, std::string_view user) {
  if (user.find_first_of(std::string_view("*()\\/\0", 6)) != std::string_view::npos) return std::nullopt;
  if (!o.search_filter) return "(" + o.search_attribute.value_or("uid") + "=" + std::string(user) + ")";
  static constexpr std::string_view kPlace = "$username";
  std::string filter = *o.search_filter;
  for (std::size_t at = 0; (at = filter.find(kPlace, at)) != std::string::npos; at += user.size())
    filter.replace(at, kPlace.size(), user);
  return filter;
}

}  // namespace pgf::auth
