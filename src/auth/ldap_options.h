#pragma once
// The options of LDAP authentication: auth_ldap_options, or what follows "ldap" in a line of auth_hba_file. Pairs
// key=value with blanks or commas between them; keys and values may be in double quotes ("" is a quote).
#include <expected>
#include <optional>
#include <string>
#include <string_view>

namespace pgf::auth {

struct LdapOptions {
  bool start_tls = false;
  int port = 0;  // 0 = the scheme's own
  std::optional<std::string> scheme, server, bind_dn, bind_password, search_attribute, search_filter, base_dn, prefix,
      suffix, url;
};
std::expected<LdapOptions, std::string> parse_ldap_options(std::string_view text);

// Once the parts of the url are in their places: is it one of the two ways, and one only? The error text, or empty.
std::string check_ldap_options(const LdapOptions& options);

// "(uid=NAME)", or the filter with each $username replaced. Nothing if the name could change the filter's meaning.
std::optional<std::string> ldap_filter(const LdapOptions& options, std::string_view user);

}  // namespace pgf::auth
