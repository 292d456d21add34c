#include "session/client_login.h"

#include <fmt/format.h>
#include <unistd.h>

#include "base/version.h"
#include "config/budget.h"
#include "crypto/crypto.h"
#include "net/socket.h"
#include "session/pool.h"
#include "wire/read.h"
#include "wire/startup.h"
#include "wire/write.h"

namespace pgf::session {

static constexpr std::size_t kMaxUserName = 127;
static constexpr std::size_t kMaxDatabaseName = 63;
static constexpr std::uint32_t kMaxPassword = 65535;

std::size_t Client::consume_first(Bytes bytes) {
  wire::First first = wire::first_packet(bytes);
  using Kind = wire::FirstKind;
  switch (first.kind) {
    case Kind::need_more:
      return 0;
    case Kind::ssl_request:
    case Kind::gss_request:
      // Whatever came in the same breath was sent before the client could know our answer: an attacker's bytes
      // (CVE-2021-3935), or a client that must not be trusted.
      if (bytes.size() > first.size) {
        fatal(first.kind == Kind::ssl_request ? say::ssl_injection : say::gss_injection);
        return bytes.size();
      }
      if (first.kind == Kind::ssl_request && stream->tls()) {
        disconnect("SSL req inside SSL");
        return bytes.size();
      }
      if (first.kind == Kind::ssl_request && env_->tls->client && !is_unix) {
        stream->send(as_bytes("S"));
        stream->start_tls(net::Tls::accept(*env_->tls->client, false));
        return first.size;
      }
      stream->send(as_bytes("N"));
      return first.size;
    case Kind::cancel: {
      auto key = wire::read_cancel_key(first.body);
      if (!key) {  // also: longer than any key can be, and not all here
        disconnect("bad cancel request");
        return bytes.size();
      }
      phase_ = Phase::cancel;
      if (std::exchange(admitted_, false)) env_->shared.admitted.put();
      env_->cancel(*key, {env_->worker, slot, id});
      return first.size;
    }
    case Kind::old_v2:
      fatal(say::old_protocol);
      return bytes.size();
    case Kind::tls_hello:
      if (env_->tls->client && !is_unix && !stream->tls()) {
        stream->start_tls(net::Tls::accept(*env_->tls->client, true), bytes);
        return bytes.size();
      }
      [[fallthrough]];
    case Kind::bad:
      bad_header(bytes);
      return bytes.size();
    case Kind::startup: {
      std::size_t size = first.size;
      start_login(first.body, first.code);
      return size;
    }
  }
  return 0;
}

bool Client::take_parameter(const std::string& name, const std::string& value, bool in_options) {
  int index = env_->shared.names.find(name);
  if (index >= 0) {
    params_.set(index, value);
    return true;
  }
  const std::string& ignore = env_->settings().ignore_startup_parameters;
  if (config::in_list(ignore, name) || (in_options && config::in_list(ignore, "options"))) return true;
  std::string text = in_options ? fmt::format("unsupported startup parameter in options: {}", name)
                                : fmt::format("unsupported startup parameter: {}", name);
  log(LogLevel::warning, fmt::format("{}={}", text, value));
  fatal("08P01", text);
  return false;
}

// Steps 2 to 12 of behaviour.md section 3.
void Client::start_login(Bytes body, std::uint32_t code) {
  if (env_->tls->client_mode >= config::SslMode::require && !is_unix && !stream->tls()) return fatal(say::ssl_required);
  auto parsed = wire::parse_startup(body, code);
  if (!parsed) return fatal("08P01", parsed.error());
  params_ = wire::ParamSet(env_->shared.names.size());
  login_ = std::make_unique<Login>();
  login_->minor = parsed->minor;
  login_->pq_options = std::move(parsed->pq_options);
  for (auto& [name, value] : parsed->params)  // first of all: it decides what `options` may hold
    if (name == "replication") replication = wire::parse_replication(value).value_or(replication);
  for (auto& [name, value] : parsed->params) {
    if (name == "user") {
      login_->user = value;
    } else if (name == "database") {
      login_->database = value;
    } else if (name == "replication") {
      continue;
    } else if (name == "options" && replication != wire::Replication::none) {
      login_->options = value;  // its server is nobody else's: anything goes that the server takes
    } else if (name == "options") {
      auto options = wire::parse_options(value);
      if (!options) return fatal("08P01", options.error());
      for (auto& [k, v] : *options)
        if (!take_parameter(k, v, true)) return;
    } else if (!take_parameter(name, value, false)) {
      return;
    }
  }
  if (login_->user.empty()) return fatal(say::no_user);
  if (login_->database.empty()) login_->database = login_->user;
  login_->console = login_->database == "pgbouncer";
  if (login_->console) replication = wire::Replication::none;

  if (!admitted_) {
    int limit = login_->console ? 0 : config::max_client_conn(*env_->config);
    if (!env_->shared.admitted.take(limit)) return fatal(say::max_clients);
    admitted_ = true;
  }
  const bool too_new = login_->minor > wire::kNewestMinor;
  if (too_new) login_->minor = wire::kNewestMinor;
  if (too_new || !login_->pq_options.empty()) {
    std::string out;
    wire::negotiate_protocol_version(out, wire::protocol(login_->minor), login_->pq_options);
    stream->send(as_bytes(out));
  }
  if (login_->user.size() > kMaxUserName) return fatal(say::user_too_long);

  const config::Config& config = *env_->config;
  if (!login_->console && login_->database.size() <= kMaxDatabaseName)
    login_->entry = config::find_database(config, login_->database);
  login_->database_known = login_->console || login_->entry.has_value();

  if (login_->console && admit_console()) return;
  if (phase_ == Phase::dead) return;

  auto stored = config.passwords.find(login_->user);
  login_->user_known = stored != config.passwords.end();
  if (login_->user_known) login_->stored = stored->second;
  login_->secret = auth::parse_secret(login_->stored);

  if (auto counted = count_client(config); !counted) return fatal(counted.error());
  if (is_judged_elsewhere()) {
    if (login_->entry && login_->entry->auth_user) {
      log(LogLevel::error, "PAM and LDAP can't be used together with database authentication");
      return fatal(say::config_error);
    }
  } else if (const std::string* who = auth_user()) {
    return start_lookup(*who);
  }
  begin_authentication();
}

void Client::begin_authentication() {
  if (env_->settings().log_connections)
    log(LogLevel::log, fmt::format("login attempt: db={} user={} tls={} replication={}", login_->database, login_->user,
                                   stream->tls() ? stream->tls()->info() : "no",
                                   replication == wire::Replication::logical    ? "database"
                                   : replication == wire::Replication::physical ? "yes"
                                                                                : "no"));
  if (login_->console && !on_console_list()) return fatal(say::not_allowed);
  ask_password();
}

// Administrators on the console are exempt: they must get in when it matters.
config::ClientPolicy Client::limits(const config::Config& config) const {
  if (login_->console && config::in_list(config.settings.admin_users, login_->user)) return {};
  static const config::Database kNone;
  return config::resolve_client(config, login_->entry ? *login_->entry : kNone, login_->user);
}

// Takes this client's place in the limits of its database and user: the count first, then the comparison.
std::expected<void, Say> Client::count_client(const config::Config& config) {
  if (login_->entry || login_->console) {
    pool::DatabaseShared& shared = env_->shared.directory.database(login_->database);
    if (!shared.clients.take(limits(config).max_db_client_connections)) return std::unexpected(say::max_db_clients);
    database = &shared;
  }
  return login_->user_known ? count_user(config) : std::expected<void, Say>{};
}

std::expected<void, Say> Client::count_user(const config::Config& config) {
  pool::UserShared& shared = env_->shared.directory.user(login_->user);
  if (!shared.clients.take(limits(config).max_user_client_connections)) return std::unexpected(say::max_user_clients);
  user = &shared;
  return {};
}

bool Client::on_console_list() const {
  const config::Settings& s = env_->settings();
  return config::in_list(s.admin_users, login_->user) || config::in_list(s.stats_users, login_->user);
}

// The console lets its own operating-system user in without a password, over the Unix socket, as user pgbouncer.
bool Client::admit_console() {
  auto peer = is_unix ? net::peer_credentials(stream->fd()) : std::nullopt;
  if (login_->user == "pgbouncer" && peer && peer->uid == geteuid()) {
    log(LogLevel::log, "pgbouncer access from unix socket");
    is_admin = true;
    database = &env_->shared.directory.database(login_->database);
    database->clients.take(0);
    authenticated();
    return true;
  }
  if (env_->settings().auth_type == config::AuthType::any && on_console_list()) {
    is_admin = config::in_list(env_->settings().admin_users, login_->user);
    authenticated();
    return true;
  }
  return false;
}

void Client::ask_password() {
  const config::Settings& s = env_->settings();
  std::string out;
  login_->method = s.auth_type;
  if (s.auth_type == config::AuthType::hba && !choose_method()) return;
  switch (login_->method) {
    case config::AuthType::any:
      if (!login_->entry) break;  // told below: no such database
      if (!login_->entry->user) return fatal(say::config_error);
      return authenticated();
    case config::AuthType::trust:
      if (!login_->user_known) return auth_failed(say::bad_trust);
      return authenticated();
    case config::AuthType::peer:
      return login_as_system_user();
    case config::AuthType::cert:
      return login_by_certificate();
    case config::AuthType::ldap:
      if (s.auth_type == config::AuthType::ldap) login_->ldap_options = s.auth_ldap_options;
      if (login_->ldap_options.empty()) return fatal(say::no_ldap_options);
      [[fallthrough]];
    case config::AuthType::pam:
    case config::AuthType::plain:
      wire::auth_cleartext(out);
      break;
    case config::AuthType::md5:
      if (login_->secret.kind != auth::Secret::Kind::scram) {
        crypto::random_bytes(login_->salt);
        wire::auth_md5(out, login_->salt);
        break;
      }
      login_->method = config::AuthType::scram_sha_256;
      [[fallthrough]];
    case config::AuthType::scram_sha_256: {
      std::string binding = stream->tls() ? stream->tls()->channel_binding() : "";
      wire::auth_sasl(out, !binding.empty());
      int iterations = static_cast<int>(s.scram_iterations);
      std::string name = Credentials::name(*env_->config, login_->database, login_->user);
      using Kind = auth::Secret::Kind;
      if (login_->user_known && login_->secret.kind == Kind::scram) {
        login_->genuine_scram_secret = true;
        login_->scram.emplace(login_->secret.scram, true);
      } else if (login_->user_known && login_->secret.kind == Kind::plain) {
        login_->scram.emplace(env_->shared.credentials.verifier(name, login_->stored, iterations), true);
      } else {
        login_->scram.emplace(auth::mock_scram(login_->user, iterations, env_->shared.credentials.process_key), false);
      }
      login_->scram->bind_channel(std::move(binding));
      break;
    }
    default:
      return fatal(say::config_error);
  }
  if (out.empty()) return authenticated();
  stream->send(as_bytes(out));
  phase_ = Phase::password;
}

std::size_t Client::consume_password(Bytes bytes) {
  if (bytes.size() < 5) return 0;
  std::uint32_t length = load_be32(bytes.data() + 1);
  if (bytes[0] != 'p' || length < 4 || length > kMaxPassword + 64) {
    bad_header(bytes);
    return bytes.size();
  }
  std::size_t total = 1 + std::size_t{length};
  if (bytes.size() < total) return 0;
  check_password(bytes.subspan(5, length - 4));
  return total;
}

void Client::check_password(Bytes body) {
  if (login_->method == config::AuthType::scram_sha_256) {
    auto answer = login_->scram_first_done ? login_->scram->final(body) : login_->scram->first(body);
    if (!answer) {
      if (answer.error() == say::bad_sasl.text) return auth_failed(say::bad_sasl);
      return auth_failed({say::bad_sasl.sqlstate, answer.error()});
    }
    std::string out;
    if (!login_->scram_first_done) {
      login_->scram_first_done = true;
      wire::auth_sasl_continue(out, *answer);
      stream->send(as_bytes(out));
      return;
    }
    if (login_->genuine_scram_secret)
      env_->shared.credentials.keep_keys(Credentials::name(*env_->config, login_->database, login_->user),
                                         login_->stored, login_->scram->keys());
    wire::auth_sasl_final(out, *answer);
    stream->send(as_bytes(out));
    return authenticated();
  }

  auto password = wire::read_password(body);
  if (!password) return fatal("08P01", "bad password message");
  if (password->empty()) return auth_failed(say::empty_password);
  if (login_->method == config::AuthType::pam || login_->method == config::AuthType::ldap) return ask_judge(*password);
  bool good = false;
  if (login_->method == config::AuthType::plain)
    good = login_->user_known && auth::check_plain(login_->secret, login_->user, *password);
  else
    good = login_->user_known && auth::check_md5(login_->secret, login_->user, login_->salt, *password);
  if (!good) return auth_failed(say::bad_password);
  authenticated();
}

void Client::auth_failed(const Say& say) {
  log(LogLevel::log, fmt::format("login failed: db={} user={}", login_->database, login_->user));
  fatal(say);
}

void Client::authenticated() {
  if (login_->console) {
    if (!is_admin) is_admin = config::in_list(env_->settings().admin_users, login_->user);
    return enter_pool();
  }
  if (!login_->entry) {
    log(LogLevel::log, fmt::format("login failed: db={} user={}", login_->database, login_->user));
    return fatal("3D000", fmt::format("no such database: {}", login_->database));
  }
  if (database->disabled.load(std::memory_order_relaxed))
    return fatal("57P03", fmt::format("database \"{}\" is disabled", login_->database));
  // Whoever connected while the port was still open is one of those that a SIGTERM waits for.
  const int shutdown = env_->shared.shutdown.load(std::memory_order_relaxed);
  if (shutdown == 1 || (shutdown == 2 && is_unix)) return fatal(say::shutting_down);
  enter_pool();
}

void Client::note_auto_database(const config::Database& entry, pool::DatabaseShared& shared) {
  if (entry.is_auto && !shared.is_auto.exchange(true))
    log(LogLevel::log, fmt::format("registered new auto-database: {}", entry.name));
}

void Client::enter_pool() {
  do {  // the key is random: a clash is a matter of 2^-63, and then of a second try
    std::array<std::uint8_t, 8> random;
    crypto::random_bytes(random);
    cancel_key = wire::make_cancel_key(random, static_cast<int>(env_->settings().peer_id));
  } while (!env_->shared.cancels.add(cancel_key, {env_->worker, slot, id}));
  has_key = true;
  if (login_->minor >= wire::kLongKeysMinor) {
    key_tail = std::make_unique<wire::KeyTail>();
    crypto::random_bytes(*key_tail);
  }

  if (login_->console) {
    pool::PoolShared& shared = env_->shared.directory.pool("pgbouncer", "pgbouncer");
    pool = &env_->pool(shared);
    ++pool->counters.logins;
    phase_ = Phase::console;
    if (!database) (database = &shared.database)->clients.take(0);
    if (!user) (user = &env_->shared.directory.user(login_->user))->clients.take(0);
    pool->clients.push_back(this);
    counted_pool = true;
    std::string out;
    wire::auth_ok(out);
    wire::console_parameter_status(out, kPgBouncerVersion);
    append_key(out);
    wire::ready_for_query(out, 'I');
    stream->send(as_bytes(out));
    login_.reset();
    return;
  }

  const std::string& server_user = login_->entry->user ? *login_->entry->user : login_->user;
  note_auto_database(*login_->entry, *database);
  pool = &env_->pool(env_->shared.directory.pool(login_->database, server_user));
  if (!user) (user = &env_->shared.directory.user(login_->user))->clients.take(0);
  ++pool->counters.logins;
  login_->authenticated = env_->now();
  pool->latencies.login.record(login_->authenticated - connect_time);
  if (env_->settings().application_name_add_host) {
    int index = env_->shared.names.find("application_name");
    std::string given = params_.get(index) ? *params_.get(index) : "app";
    params_.set(index, fmt::format("{} - {}", given, peer_text()));
  }
  if (replication != wire::Replication::none) return pool->join(*this);
  if (pool->welcome()) {
    pool->clients.push_back(this);
    counted_pool = true;
    return send_welcome();
  }
  pool->queue_for_welcome(*this);
}

void Client::welcome_ready() {
  send_welcome();
  consume_held();
}

void Client::send_welcome() {
  const pool::Welcome& w = *pool->welcome();
  params_.fill_from(w.tracked);
  welcome(w.untracked, Phase::idle);
}

// The end of a login: params_ are what client and server agree upon, `untracked` what the server says besides.
void Client::welcome(std::string_view untracked, Phase then) {
  std::string& out = env_->scratch;
  out.clear();
  wire::auth_ok(out);
  out += untracked;
  for (int i = 0; i < params_.size(); ++i)
    if (params_.get(i)) wire::parameter_status(out, env_->shared.names.name(i), *params_.get(i));
  append_key(out);
  if (!env_->settings().login_notify_message.empty()) wire::notice(out, env_->settings().login_notify_message);
  wire::ready_for_query(out, 'I');
  stream->send(as_bytes(out));
  log(LogLevel::debug, "logged in");
  note_login();
  login_.reset();
  phase_ = then;
}

void Client::append_key(std::string& out) const {
  std::string key(as_text(cancel_key));
  if (key_tail) key += as_text(*key_tail);
  wire::backend_key_data(out, as_bytes(key));
}

bool Client::owns(const wire::SentKey& key) const {
  if (!has_key || key.tail.has_value() != (key_tail != nullptr)) return false;
  bool head = crypto::equal_constant_time(cancel_key, key.key);
  return (!key_tail || crypto::equal_constant_time(*key_tail, *key.tail)) && head;
}

}  // namespace pgf::session
