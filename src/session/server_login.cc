// Opening a server connection: resolve, connect, authenticate, learn what it says about itself.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "session/attempt.h"
#include "session/pool.h"
#include "session/server.h"
#include "wire/read.h"
#include "wire/startup.h"
#include "wire/write.h"

namespace pgf::session {

static constexpr std::size_t kMaxLoginMessage = 256 * 1024;
static constexpr std::size_t kMaxBackendKey = 256;

void Server::check_address() {
  if (host_.empty() || !address_.length) return;
  auto now = env().moved_hosts.find(host_);
  if (now == env().moved_hosts.end()) return;
  net::Address ours = address_;
  ours.set_port(0);
  if (std::ranges::find(now->second, ours) == now->second.end()) close_needed = true;
}

void Server::dial(const net::Address& address) {
  address_ = address;
  phase_ = Phase::connecting;
  stream = env().engine->connect(address_.get(), address_.length, this);
  if (!stream) {
    why_ = fmt::format("cannot make a socket: {}", std::strerror(errno));
    health_ = nullptr;  // not the host's fault
    log(LogLevel::warning, why_);
    return login_failed("", "connect failed", false);
  }
  net::set_tcp_options(stream->fd(), env().tcp_options());
}

void Server::on_connected(net::Stream&, int error) {
  if (error) {
    why_ = std::strerror(error);
    log(LogLevel::debug, fmt::format("connect: {}", why_));
    return login_failed("", "connect failed", false);
  }
  if (env().settings().log_connections) {
    auto local = net::local_address(stream->fd());
    if (address_.is_unix() || !local)
      log(LogLevel::log, "new connection to server");
    else
      log(LogLevel::log, fmt::format("new connection to server (from {})", net::format_address(*local)));
  }
  if (!env().tls->server || address_.is_unix()) return send_startup();
  phase_ = Phase::login;
  if (pool->entry().sslnegotiation == config::SslNegotiation::direct) return start_tls(true);
  asked_tls_ = true;
  stream->send(as_bytes(wire::ssl_request()));
  stream->arm();
}

void Server::start_tls(bool direct) {
  stream->start_tls(net::Tls::connect(*env().tls->server, host_, direct));
  stream->arm();
}

// One byte, alone: whatever came behind it came in the clear, and would be taken for what TLS protects
// (CVE-2021-23222).
std::size_t Server::tls_answer(Bytes bytes) {
  asked_tls_ = false;
  std::uint8_t answer = bytes[0];
  // S is a promise: where large packets get lost, nothing comes behind it. Our patience goes on.
  promised_tls_ = answer == 'S' && bytes.size() == 1;
  if (!promised_tls_) note_answer();
  if (answer != 'S' && answer != 'N') {  // also an error message: nobody vouches for its text
    login_failed("", "bad sslreq answer", false);
  } else if (bytes.size() > 1) {
    login_failed("", "received unencrypted data after SSL response", false);
  } else if (answer == 'S') {
    if (env().tls->server)
      start_tls(false);
    else  // RELOAD came between
      login_failed("", "connect string changed", false);
  } else if (env().tls->server_mode >= config::SslMode::require) {
    login_failed("", "server refused SSL", false);
  } else {
    send_startup();
  }
  return bytes.size();
}

void Server::on_secure(net::Stream&) {
  if (ended()) return;
  note_answer();
  if (env().settings().log_connections) log(LogLevel::log, fmt::format("SSL established: {}", stream->tls()->info()));
  send_startup();
}

void Server::send_startup() {
  const config::Database& entry = pool->entry();
  std::vector<std::pair<std::string, std::string>> params;
  params.emplace_back("database", entry.dbname.empty() ? entry.name : entry.dbname);
  if (!entry.client_encoding.empty()) params.emplace_back("client_encoding", entry.client_encoding);
  if (!entry.datestyle.empty()) params.emplace_back("datestyle", entry.datestyle);
  if (!entry.timezone.empty()) params.emplace_back("timezone", entry.timezone);
  if (!entry.application_name.empty()) params.emplace_back("application_name", entry.application_name);
  if (Client* first = pool->next_joining()) serve_replication(*first, params);
  params.emplace_back("user", pool->server_user());
  phase_ = Phase::login;
  minor_ = entry.protocol_minor;
  stream->send(as_bytes(wire::startup_message(wire::protocol(minor_), params)));
  stream->arm();
}

std::size_t Server::consume_login(Bytes bytes) {
  if (asked_tls_) return tls_answer(bytes);
  note_answer();
  if (bytes.size() < 5) return 0;
  std::uint32_t length = load_be32(bytes.data() + 1);
  if (length < 4 || length > kMaxLoginMessage) {
    login_failed("", "bad pkt header", false);
    return bytes.size();
  }
  std::size_t total = 1 + std::size_t{length};
  if (bytes.size() < total) return 0;
  if (!login_message(bytes[0], bytes.subspan(5, length - 4))) return bytes.size();
  return total;
}

bool Server::login_message(std::uint8_t type, Bytes body) {
  switch (type) {
    case 'R':
      auth_request(body);
      break;
    case 'S': {
      auto status = wire::read_parameter_status(body);
      if (!status) {
        login_failed("", "bad pkt header", false);
        break;
      }
      note_parameter(status->name, status->value);
      int index = env().shared.names.find(status->name);
      if (index >= 0)
        params_.set(index, status->value);
      else if (untracked_.size() < kMaxLoginMessage)
        wire::parameter_status(untracked_, status->name, status->value);
      break;
    }
    case 'K':
      // Process id and secret. A secret of another length than 4 is for protocol 3.2, but a server that says so
      // nevertheless means it, and wants to see it again.
      if (body.size() < 8 || body.size() > kMaxBackendKey + 4) {
        login_failed("", "bad cancel key", false);
        break;
      }
      backend_key_.assign(as_text(body));
      break;
    case 'E': {
      wire::ErrorFields e = wire::read_error(body);
      std::string_view text = e.message.empty() ? std::string_view("server login failed") : e.message;
      std::string_view severity = e.severity.empty() ? "FATAL" : e.severity;
      if (client)
        log(LogLevel::error, fmt::format("S: login failed: {}: {}", severity, text));
      else
        log(LogLevel::warning, fmt::format("server login failed: {} {}", severity, text));
      why_ = fmt::format("{}:  {}", severity, text);
      if (client) text = say::login_failed.text;
      login_failed(e.sqlstate.empty() ? "08P01" : e.sqlstate, text, true);
      break;
    }
    case 'N':
      break;
    case 'v': {  // an older server: it speaks what it says, and the login goes on
      auto answer = wire::read_negotiated(body);
      if (!answer || answer->unknown > 0 || answer->version >> 16 != 3 || answer->version > wire::protocol(minor_)) {
        login_failed("", "bad protocol negotiation", false);
        break;
      }
      minor_ = static_cast<std::uint16_t>(answer->version);
      break;
    }
    case 'Z': {
      if (body.size() != 1 || body[0] != 'I' || !authenticated_) {
        login_failed("", "bad pkt header", false);
        break;
      }
      ready_ = true;
      role_settled();
      break;
    }
    default:
      login_failed("", "unknown pkt from server", false);
  }
  return !ended();
}

std::optional<std::string> Server::stored_secret() const {
  const config::Database& entry = pool->entry();
  // The pool in which auth_query runs is not the forced user's.
  if (entry.user == pool->server_user() && entry.password) return entry.password;
  auto it = env().config->passwords.find(pool->server_user());
  if (it != env().config->passwords.end() && !it->second.empty()) return it->second;
  return env().shared.credentials.learned(pool->shared.database.name, pool->server_user());
}

// What an authentication request comes down to. Nothing if it only goes on with one that was allowed, or is unknown.
static std::optional<auth::AskedFor> asked_for(std::int32_t code, bool answered) {
  switch (code) {
    case 0:
      return answered ? std::nullopt : std::optional(auth::AskedFor::nothing);
    case 3:
      return auth::AskedFor::password;
    case 5:
      return auth::AskedFor::md5;
    case 7:
      return auth::AskedFor::gss;
    case 9:
      return auth::AskedFor::sspi;
    case 10:
      return auth::AskedFor::scram;
    default:
      return {};
  }
}

void Server::auth_request(Bytes body) {
  auto request = wire::read_auth(body);
  if (!request) return login_failed("", "failed to answer authreq", false);
  const std::string stored = stored_secret().value_or("");
  auth::Secret secret = auth::parse_secret(stored);
  using Kind = auth::Secret::Kind;
  std::string out;
  if (auto asked = asked_for(request->code, password_sent_); asked && !pool->entry().require_auth.allows(*asked)) {
    const std::string why = pool->entry().require_auth.refusal(*asked);
    log(LogLevel::error, why);
    return login_failed("28000", fmt::format("server login failed: {}", why), true);
  }
  auto wrong_kind = [&] { login_failed("08P01", "server login failed: wrong password type", true); };
  switch (request->code) {
    case 0:
      if (scram_ && !scram_->verified())
        return login_failed("08P01", "server login failed: failed to verify server signature", true);
      authenticated_ = true;
      return;
    case 3:
      if (secret.kind == Kind::md5 || secret.kind == Kind::scram) return wrong_kind();
      wire::password_message(out, secret.text);
      break;
    case 5: {
      if (secret.kind == Kind::scram || request->data.size() != 4) return wrong_kind();
      std::string md5 = secret.kind == Kind::md5 ? secret.text : auth::md5_stored(secret.text, pool->server_user());
      std::array<std::uint8_t, 4> salt;
      std::copy(request->data.begin(), request->data.end(), salt.begin());
      wire::password_message(out, auth::md5_answer(md5, salt));
      break;
    }
    case 10: {
      if (scram_) return login_failed("", "failed to answer authreq", false);
      if (secret.kind == Kind::scram) {
        auto keys = env().shared.credentials.keys(
            Credentials::name(*env().config, pool->shared.database.name, pool->server_user()), stored);
        if (!keys) {
          log(LogLevel::error,
              "cannot do SCRAM authentication: password is SCRAM secret but client authentication did not provide "
              "SCRAM keys");
          return wrong_kind();
        }
        scram_ = std::make_unique<auth::ScramClient>(*keys);
      } else if (secret.kind == Kind::md5) {
        return wrong_kind();
      } else {
        scram_ = std::make_unique<auth::ScramClient>(secret.text);
      }
      if (stream->tls()) scram_->bind_channel(stream->tls()->channel_binding());
      auto answer = scram_->start(request->data);
      if (!answer) return login_failed("08P01", fmt::format("server login failed: {}", answer.error()), true);
      wire::sasl_message(out, *answer);
      break;
    }
    case 11: {
      if (!scram_) return login_failed("", "failed to answer authreq", false);
      auto answer = scram_->respond(request->data);
      if (!answer) return login_failed("08P01", fmt::format("server login failed: {}", answer.error()), true);
      wire::sasl_message(out, *answer);
      break;
    }
    case 12: {
      if (!scram_) return login_failed("", "failed to answer authreq", false);
      auto done = scram_->finish(request->data);
      if (!done) return login_failed("08P01", fmt::format("server login failed: {}", done.error()), true);
      return;
    }
    default:
      log(LogLevel::error, fmt::format("unknown/unsupported auth method: {}", request->code));
      return login_failed("", "failed to answer authreq", false);
  }
  password_sent_ = true;
  stream->send(as_bytes(out));
}

// With this address. Maybe there is another one.
void Server::login_failed(std::string_view sqlstate, std::string_view text, bool from_server) {
  if (ended() || !attempt_) return;
  if (from_server && client) return replication_refused(sqlstate, text);
  if (!from_server) note_failure(why_.empty() ? text : why_);
  if (attempt_->choice) return try_next(sqlstate, text, from_server);
  attempt_over(sqlstate, text, from_server);
}

// What the server is may be known by now.
void Server::role_settled() {
  if (!check_role()) return;
  const std::string& query = pool->entry().connect_query;
  if (query.empty() || replication_ == wire::Replication::physical) return login_complete();  // which takes no SQL
  env().scratch.clear();
  wire::query(env().scratch, query);
  stream->send(as_bytes(env().scratch));
  phase_ = Phase::connect_query;
}

void Server::login_complete() {
  pool::PoolShared& shared = pool->shared;
  login_done_ = true;
  find_times();
  pool->latencies.connect.record(env().now() - connect_time);
  if (times_) times_->connect.record(env().now() - connect_time);
  check_address();  // it may have changed since it was asked for
  check_place();    // the list, too
  scram_.reset();
  attempt_.reset();
  // What a replication connection says and may do is no news about the others.
  if (replication_ == wire::Replication::none) {
    shared.usable.fetch_add(1, std::memory_order_acq_rel);
    shared.last_failed.store(false, std::memory_order_release);
    shared.retry_at.store(0, std::memory_order_relaxed);
    if (!pool->welcome()) {
      auto welcome = std::make_shared<pool::Welcome>();
      welcome->untracked = untracked_;
      welcome->tracked = params_;
      pool->learn_welcome(std::move(welcome));
    }
    untracked_.clear();
    untracked_.shrink_to_fit();
  }
  connecting_flag_ = false;
  shared.connecting.store(false, std::memory_order_release);
  phase_ = Phase::connect_query;  // still in the login list; place() takes it from there
  offer_ = true;
}

}  // namespace pgf::session
