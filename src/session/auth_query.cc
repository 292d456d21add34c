#include "session/auth_query.h"

#include <fmt/format.h>

#include <array>

#include "config/limits.h"
#include "session/client_login.h"
#include "session/pool.h"
#include "wire/read.h"
#include "wire/write.h"

namespace pgf::session {

// ---- the conversation ----

void write_auth_query(std::string& out, std::string_view query, std::string_view user) {
  std::string tail(query);
  tail.append(3, '\0');  // the end of the text, and no parameter types: the server knows them
  wire::parse(out, "", tail);
  wire::bind_text(out, std::array{user});
  wire::describe_portal(out);
  wire::execute(out);
  wire::sync(out);
}

AuthQueryReply::Step AuthQueryReply::row(Bytes body) {
  Cursor in(body);
  if (std::uint16_t columns = in.u16(); in.ok() && columns != 2)
    return bad(fmt::format("expected 2 columns from auth_query, not {}", columns));
  std::int32_t size = in.i32();
  if (in.ok() && size == -1) return bad("auth_query response contained null user name");
  if (size < 0) return bad("bad packet");
  Bytes user = in.bytes(static_cast<std::size_t>(size));
  size = in.i32();
  Bytes secret = size < 0 ? Bytes{} : in.bytes(static_cast<std::size_t>(size));
  if (!in.at_end() || size < -1) return bad("bad packet");
  // Cutting a name short could make it somebody else's, a secret that does not fit is none.
  if (user.empty() || user.size() > config::kMaxUserName) return bad("auth_query response contained a bad user name");
  if (secret.size() > config::kMaxPassword) return bad("auth_query response contained a password that is too long");
  // Whose password it is must be clear.
  if (found_) return bad("auth_query response contained more than one row");
  found_ = true;
  user_ = as_text(user);
  secret_ = as_text(secret);
  return Step::more;
}

AuthQueryReply::Step AuthQueryReply::read(std::uint8_t type, Bytes body) {
  switch (type) {
    case 'T': {
      Cursor in(body);
      std::uint16_t columns = in.u16();
      if (!in.ok()) return bad("bad packet");
      if (columns != 2) return bad(fmt::format("expected 2 columns from auth_query, not {}", columns));
      return Step::more;
    }
    case 'D':
      return row(body);
    case '1':
    case '2':
    case 'C':
    case 'N':
    case 'S':
    case 'A':
      return Step::more;
    case 'Z':
      // Whatever else it did, the query must not leave a transaction open for the next one.
      if (body.size() != 1 || body[0] != 'I') return bad("unexpected response from auth_query");
      return Step::done;
    case 'E': {
      wire::ErrorFields e = wire::read_error(body);
      server_error_ = fmt::format("{}: {}", e.severity, e.message);
      return bad("error response from auth_query");
    }
    default:
      return bad("unexpected response from auth_query");
  }
}

// ---- the client ----

// Users of the auth_file never need it. A database that does not exist cannot say whose password counts.
const std::string* Client::auth_user() const {
  const config::Settings& s = env_->settings();
  if (login_->user_known || !login_->database_known || s.auth_type == config::AuthType::any) return nullptr;
  if (login_->entry && login_->entry->auth_user) return &*login_->entry->auth_user;
  return s.auth_user.empty() ? nullptr : &s.auth_user;
}

// Joins the queue of the pool (auth database, auth user), like any client of that pool.
void Client::start_lookup(const std::string& auth_user) {
  const config::Settings& s = env_->settings();
  std::string name = login_->database;
  if (login_->entry && login_->entry->auth_dbname)
    name = *login_->entry->auth_dbname;
  else if (!s.auth_dbname.empty())
    name = s.auth_dbname;
  if (name == config::kConsoleDatabase) {
    log(LogLevel::error, fmt::format("cannot use the reserved \"{}\" database as an auth_dbname", name));
    return fatal(say::config_error);
  }
  auto entry = config::find_database(*env_->config, name);
  if (!entry) {
    log(LogLevel::error, fmt::format("authentication database \"{}\" is not configured.", name));
    return fatal(say::config_error);
  }
  pool::PoolShared& shared = env_->shared.directory.pool(name, auth_user);
  if (shared.database.disabled.load(std::memory_order_relaxed))
    return fatal(say::auth_database_disabled.sqlstate, fmt::format("authentication database \"{}\" is disabled", name));
  note_auto_database(*entry, shared.database);
  phase_ = Phase::lookup;
  login_->asked = env_->now();
  pool = &env_->pool(shared);
  pool->take(*this);
}

void Client::looked_up() {
  pool = nullptr;
  auto reply = std::move(login_->lookup);
  login_->lookup_time = env_->now() - login_->asked;
  if (!reply->found()) {
    if (env_->settings().log_connections) log(LogLevel::log, fmt::format("login failed: db={}", login_->database));
    return fatal(say::no_such_user);
  }
  login_->user = reply->user();
  login_->user_known = true;
  login_->stored = reply->secret();
  login_->secret = auth::parse_secret(login_->stored);
  env_->shared.credentials.learn(login_->database, login_->user, login_->stored);
  if (auto counted = count_user(*env_->config); !counted) return fatal(counted.error());
  begin_authentication();
  if (phase_ != Phase::dead) consume_held();
}

// ---- the server ----

void Server::look_up(Client* c) {
  client = c;
  c->server = this;
  was_used = true;
  status_ = 'I';
  error_pending_ = fatal_seen_ = popped_ = release_ = false;
  unnamed_ = {};  // the lookup's takes its place
  ++pool->counters.assignments;
  pool->list(*this, Phase::lookup);
  env().scratch.clear();
  c->write_lookup(env().scratch);
  stream->send(as_bytes(env().scratch));
  stream->arm();
}

void Client::write_lookup(std::string& out) {
  login_->lookup = std::make_unique<AuthQueryReply>();
  bool own = login_->entry && login_->entry->auth_query;
  write_auth_query(out, own ? *login_->entry->auth_query : env_->settings().auth_query, login_->user);
}

void Server::lookup_answer(std::uint8_t type, Bytes body) {
  if (type == 'S') parameter_status(body);
  AuthQueryReply& reply = client->lookup_reply();
  switch (reply.read(type, body)) {
    case AuthQueryReply::Step::more:
      return;
    case AuthQueryReply::Step::bad: {
      if (!reply.server_error().empty())
        log(LogLevel::error, fmt::format("S: error in auth_query: {}", reply.server_error()));
      // A copy: the reply ends with its client.
      std::string reason = reply.trouble();
      return disconnect(reason);
    }
    case AuthQueryReply::Step::done:
      release_ = true;  // lookup_done() when the buffer is
  }
}

// First the server goes on, so that the next one in the queue need not wait for what this client does.
void Server::lookup_done() {
  release_ = false;
  if (held_) return disconnect("idle server got dirty");
  Client* c = std::exchange(client, nullptr);
  c->server = nullptr;
  after_session();
  c->looked_up();
}

AuthQueryReply& Client::lookup_reply() { return *login_->lookup; }

}  // namespace pgf::session
