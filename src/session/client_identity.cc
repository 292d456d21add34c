// Who a client is without a password: what auth_hba_file says about it, its operating-system user, its certificate.
#include <fmt/format.h>

#include <algorithm>

#include "net/socket.h"
#include "session/client_login.h"
#include "session/pool.h"

namespace pgf::session {

static config::AuthType to_auth_type(auth::HbaMethod method) {
  using config::AuthType;
  switch (method) {
    case auth::HbaMethod::trust:
      return AuthType::trust;
    case auth::HbaMethod::password:
      return AuthType::plain;
    case auth::HbaMethod::md5:
      return AuthType::md5;
    case auth::HbaMethod::scram_sha_256:
      return AuthType::scram_sha_256;
    case auth::HbaMethod::cert:
      return AuthType::cert;
    case auth::HbaMethod::peer:
      return AuthType::peer;
    case auth::HbaMethod::ldap:
      return AuthType::ldap;
    case auth::HbaMethod::reject:
      break;  // never gets here
  }
  return AuthType::ldap;
}

// The first rule that fits; null: there is none.
const auth::HbaRule* Client::hba_rule() const {
  const auto& hba = env_->config->hba;
  if (!hba) return nullptr;
  auth::HbaRequest request;
  request.local = is_unix;
  request.tls = stream->tls() != nullptr;
  request.database = login_->database;
  request.user = login_->user;
  request.physical_replication = replication == wire::Replication::physical;
  auto peer = is_unix ? std::nullopt : net::peer_address(stream->fd());
  if (peer) request.address = net::address_bytes(*peer);
  return hba->match(request);
}

// The rule says how this client has to prove itself. False: not at all, it has been told.
bool Client::choose_method() {
  const auth::HbaRule* rule = hba_rule();
  if (!rule) {
    fatal(say::no_hba_line);
    return false;
  }
  log(LogLevel::debug, fmt::format("HBA line {} is matched", rule->line));
  if (rule->method == auth::HbaMethod::reject) {
    fatal(say::login_rejected);
    return false;
  }
  login_->method = to_auth_type(rule->method);
  login_->map = rule->map;
  login_->map_name = rule->map_name;
  login_->ldap_options = rule->options;
  return true;
}

// Then neither the auth_file nor auth_query has a say.
bool Client::is_judged_elsewhere() const {
  using config::AuthType;
  const AuthType type = env_->settings().auth_type;
  if (type == AuthType::hba) {
    const auth::HbaRule* rule = hba_rule();
    return rule && rule->method == auth::HbaMethod::ldap;
  }
  return type == AuthType::pam || type == AuthType::ldap;
}

void Client::ask_judge(std::string_view password) {
  bool pam = login_->method == config::AuthType::pam;
  login_->password = password;
  login_->asked = env_->now();
  phase_ = Phase::judgement;
  using Method = auth::ExternalRequest::Method;
  if (env_->judge(*this,
                  {pam ? Method::pam : Method::ldap, login_->user, login_->password, address(), login_->ldap_options}))
    return;
  judged("too many passwords are being checked");
}

void Client::judged(const std::string& reason) {
  if (phase_ != Phase::judgement) return;
  login_->judge_time = env_->now() - login_->asked;
  if (!reason.empty()) {
    log(LogLevel::warning, reason);
    return auth_failed(login_->method == config::AuthType::pam ? say::bad_pam : say::bad_ldap);
  }
  // What was good for the judge is what servers will be told, as with PgBouncer.
  env_->shared.credentials.learn(login_->database, login_->user, login_->password);
  if (!user)
    if (auto counted = count_user(*env_->config); !counted) return fatal(counted.error());
  authenticated();
  if (phase_ != Phase::dead) consume_held();
}

// Does the map, or without one the name itself, let somebody with these outside names be login_->user?
template <class Has>
static bool may_be(const std::string& user, const auth::IdentMap* map, Has&& has) {
  if (!map) return has(user);
  return std::ranges::any_of(*map, [&](const auth::IdentMapping& m) { return has(m.system_user) && m.allows(user); });
}

void Client::login_as_system_user() {
  auto peer = is_unix ? net::peer_credentials(stream->fd()) : std::nullopt;
  auto name = peer ? net::user_name(peer->uid) : std::nullopt;
  if (!name || !login_->user_known) return fatal(say::bad_peer);
  if (!may_be(login_->user, login_->map.get(), [&](std::string_view n) { return n == *name; })) {
    if (login_->map) log(LogLevel::error, fmt::format("ident map {} cannot be matched", login_->map_name));
    return fatal(say::bad_peer);
  }
  authenticated();
}

void Client::login_by_certificate() {
  const net::Tls* tls = stream->tls();
  const bool certificate = tls && tls->has_peer_certificate();
  if (!tls)
    log(LogLevel::error, "TLS connection required");
  else if (!certificate)
    log(LogLevel::error, "TLS client certificate required");
  if (!certificate || !login_->user_known) return fatal(say::bad_certificate);
  if (!may_be(login_->user, login_->map.get(), [&](std::string_view n) { return tls->peer_is(n); })) {
    log(LogLevel::error, login_->map ? fmt::format("ident map: {} does not have a match", login_->map_name)
                                     : "TLS certificate name mismatch");
    return fatal(say::bad_certificate);
  }
  authenticated();
}

}  // namespace pgf::session
