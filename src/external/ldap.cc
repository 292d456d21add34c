#include <fmt/format.h>
#include <ldap.h>

#include <memory>
#include <sstream>

#include "auth/ldap_options.h"
#include "external/judges.h"

namespace pgf::external {
namespace {

constexpr timeval kConnectTime{3, 0}, kAnswerTime{10, 0};

struct Unbind {
  void operator()(LDAP* ldap) const { ldap_unbind_ext_s(ldap, nullptr, nullptr); }
};
using Connection = std::unique_ptr<LDAP, Unbind>;

template <auto free>
struct Free {
  template <class T>
  void operator()(T* p) const {
    free(p);
  }
};

struct Login {
  auth::LdapOptions options;
  int scope = LDAP_SCOPE_SUBTREE;
  std::string error;  // of the last step that failed
  const char* server() const { return options.server ? options.server->c_str() : ""; }

  bool fail(std::string text) {
    error = std::move(text);
    return false;
  }
  bool read_options(const std::string& text);
  bool read_url();
  std::string uris();
  Connection connect();
  bool bind(LDAP* ldap, const std::string& dn, const std::string& password, int& status);
  bool find_user(const std::string& user, std::string& dn);
};

// Options that are given by name win over the url's.
bool Login::read_url() {
  LDAPURLDesc* raw = nullptr;
  if (int rc = ldap_url_parse(options.url->c_str(), &raw); rc != LDAP_SUCCESS)
    return fail(fmt::format("could not parse LDAP URL \"{}\": error {}", *options.url, rc));
  std::unique_ptr<LDAPURLDesc, Free<ldap_free_urldesc>> url(raw);
  std::string_view scheme = url->lud_scheme ? url->lud_scheme : "";
  if (scheme != "ldap" && scheme != "ldaps") return fail(fmt::format("unsupported LDAP URL scheme: {}", scheme));
  auto fill = [](std::optional<std::string>& to, const char* from) {
    if (!to && from && *from) to = from;
  };
  fill(options.scheme, url->lud_scheme);
  fill(options.server, url->lud_host);
  fill(options.base_dn, url->lud_dn);
  if (url->lud_attrs) fill(options.search_attribute, url->lud_attrs[0]);
  fill(options.search_filter, url->lud_filter);
  if (!options.port) options.port = url->lud_port;
  if (url->lud_scope != LDAP_SCOPE_DEFAULT) scope = url->lud_scope;
  return true;
}

bool Login::read_options(const std::string& text) {
  auto parsed = auth::parse_ldap_options(text);
  if (!parsed) return fail(parsed.error());
  options = *std::move(parsed);
  if (options.url && !read_url()) return false;
  if (std::string no = auth::check_ldap_options(options); !no.empty()) return fail(std::move(no));
  if (!options.port) options.port = options.scheme == "ldaps" ? LDAPS_PORT : LDAP_PORT;
  return true;
}

// Every server of the list, as URIs. Without a list the DNS may know some for the domain that the base names.
std::string Login::uris() {
  std::string scheme = options.scheme.value_or("ldap"), result;
  std::string list = options.server.value_or("");
  bool with_port = !list.empty();
  if (list.empty()) {
    char *domain = nullptr, *hosts = nullptr;
    if (ldap_dn2domain(options.base_dn->c_str(), &domain) != 0 || !domain || !*domain) {
      error = "could not extract domain name from ldapbasedn";
      return {};
    }
    std::unique_ptr<char, Free<ldap_memfree>> free_domain(domain);
    if (ldap_domain2hostlist(domain, &hosts) != 0 || !hosts) {
      error = fmt::format("LDAP authentication could not find DNS SRV records for \"{}\"", domain);
      return {};
    }
    std::unique_ptr<char, Free<ldap_memfree>> free_hosts(hosts);
    list = hosts;
  }
  std::istringstream words(list);
  for (std::string host; words >> host;)
    result += fmt::format("{}{}://{}{}", result.empty() ? "" : " ", scheme, host,
                          with_port ? fmt::format(":{}", options.port) : "");
  return result;
}

Connection Login::connect() {
  std::string where = uris();
  if (where.empty()) return nullptr;
  LDAP* raw = nullptr;
  if (int rc = ldap_initialize(&raw, where.c_str()); rc != LDAP_SUCCESS) {
    error = fmt::format("could not initialize LDAP: {}", ldap_err2string(rc));
    return nullptr;
  }
  Connection ldap(raw);
  int version = LDAP_VERSION3;
  ldap_set_option(raw, LDAP_OPT_PROTOCOL_VERSION, &version);
  ldap_set_option(raw, LDAP_OPT_NETWORK_TIMEOUT, &kConnectTime);
  ldap_set_option(raw, LDAP_OPT_TIMEOUT, &kAnswerTime);
  ldap_set_option(raw, LDAP_OPT_REFERRALS, LDAP_OPT_OFF);  // nobody else gets to see the password
  if (options.start_tls)
    if (int rc = ldap_start_tls_s(raw, nullptr, nullptr); rc != LDAP_SUCCESS) {
      error = fmt::format("could not start LDAP TLS session: {}, server: {}, port: {}", ldap_err2string(rc), server(),
                          options.port);
      return nullptr;
    }
  return ldap;
}

bool Login::bind(LDAP* ldap, const std::string& dn, const std::string& password, int& status) {
  berval secret{password.size(), const_cast<char*>(password.data())};
  status = ldap_sasl_bind_s(ldap, dn.c_str(), LDAP_SASL_SIMPLE, &secret, nullptr, nullptr, nullptr);
  return status == LDAP_SUCCESS;
}

bool Login::find_user(const std::string& user, std::string& dn) {
  auto filter = auth::ldap_filter(options, user);
  if (!filter) return fail("invalid character in user name for LDAP authentication");
  Connection ldap = connect();
  if (!ldap) return false;
  int rc;
  if (!bind(ldap.get(), options.bind_dn.value_or(""), options.bind_password.value_or(""), rc))
    return fail(fmt::format("could not perform initial LDAP bind for ldapbinddn \"{}\" on server \"{}\": {}",
                            options.bind_dn.value_or(""), server(), ldap_err2string(rc)));
  char nothing[] = LDAP_NO_ATTRS;  // the name of the entry is enough
  char* attributes[] = {nothing, nullptr};
  timeval limit = kAnswerTime;
  LDAPMessage* found = nullptr;
  rc = ldap_search_ext_s(ldap.get(), options.base_dn->c_str(), scope, filter->c_str(), attributes, 0, nullptr, nullptr,
                         &limit, 2, &found);
  std::unique_ptr<LDAPMessage, Free<ldap_msgfree>> free_found(found);
  if (rc != LDAP_SUCCESS && rc != LDAP_SIZELIMIT_EXCEEDED)
    return fail(fmt::format("could not search LDAP for filter \"{}\" on server \"{}\": {}", *filter, server(),
                            ldap_err2string(rc)));
  int count = ldap_count_entries(ldap.get(), found);
  if (count != 1) return fail(fmt::format("LDAP user \"{}\" {}", user, count > 1 ? "is not unique" : "does not exist"));
  std::unique_ptr<char, Free<ldap_memfree>> name(ldap_get_dn(ldap.get(), ldap_first_entry(ldap.get(), found)));
  if (!name) return fail(fmt::format("could not get dn for the entry matching \"{}\"", *filter));
  dn = name.get();
  return true;
}

}  // namespace

std::string ask_ldap(const auth::ExternalRequest& request) {
  // A bind without a password always succeeds: it proves nothing.
  if (request.password.empty()) return "empty password";
  Login login;
  if (!login.read_options(request.options)) return login.error;
  std::string dn;
  if (login.options.base_dn) {
    if (!login.find_user(request.user, dn)) return login.error;
  } else {
    dn = login.options.prefix.value_or("") + request.user + login.options.suffix.value_or("");
  }
  Connection ldap = login.connect();
  if (!ldap) return login.error;
  if (int rc; !login.bind(ldap.get(), dn, request.password, rc))
    return fmt::format("LDAP login failed for user {} on server {}: {}", dn, login.server(), ldap_err2string(rc));
  return {};
}

}  // namespace pgf::external
