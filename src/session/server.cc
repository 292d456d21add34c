#include "session/server.h"

#include <fmt/format.h>
#include <string.h>

#include "session/attempt.h"
#include "session/cancel.h"
#include "session/client.h"
#include "session/pool.h"
#include "wire/write.h"

namespace pgf::session {

const char* Server::name(Phase phase) {
  static constexpr const char* names[] = {"resolving",      "connecting", "login",   "connect_query", "idle",
                                          "setting",        "active",     "lookup",  "resetting",     "checking",
                                          "being_canceled", "moving",     "closing", "dead"};
  return names[static_cast<int>(phase)];
}

Server::Server(Pool& pool_, pool::Permit permit)
    : pool(&pool_),
      id(pool_.env.shared.next_id.fetch_add(1, std::memory_order_relaxed)),
      connect_time(pool_.env.now()),
      request_time(connect_time),
      generation(pool_.shared.generation.load(std::memory_order_relaxed)),
      connecting_flag_(true),
      params_(pool_.env.shared.names.size()),
      permit_(std::move(permit)) {}

Server::~Server() { take_place(nullptr); }

Env& Server::env() const { return pool->env; }

wire::ServerStatements& Server::statements() {
  if (!statements_) statements_ = std::make_unique<wire::ServerStatements>();
  return *statements_;
}

void Server::on_closed(net::Stream&, int error) {
  if (phase_ == Phase::closing) return gone();
  if (const net::Tls* tls = stream->tls(); tls && tls->state() == net::Tls::State::failed)
    log(LogLevel::warning, fmt::format("TLS handshake error: {}", tls->error()));
  if (!login_done_) {
    why_ = error ? strerror(error) : "server closed the connection unexpectedly";
    return login_failed("", error ? "connect failed" : "server conn crashed?", false);
  }
  lost_ = true;
  disconnect(phase_ == Phase::moving || phase_ == Phase::idle ? "server connection closed" : say::server_gone.text);
}

void Server::on_drained(net::Stream&) {
  if (client) return client->server_drained();
  if (!ended()) pool->drained(*this);
}

void Server::link(Client* c) {
  client = c;
  c->server = this;
  was_used = true;
  status_ = 'I';
  error_pending_ = fatal_seen_ = popped_ = release_ = false;
  plan_error_.clear();
  ++pool->counters.assignments;
  if (wire::params_match(c->params(), params_)) {
    pool->list(*this, Phase::active);
    stream->arm();
    return;
  }
  std::string sql = wire::params_diff_sql(env().shared.names, c->params(), params_);
  log(LogLevel::debug, fmt::format("varcache_apply: {}", sql));
  run_own(sql, Phase::setting);
}

void Server::run_own(std::string_view sql, Phase phase) {
  own_error_ = false;
  idle_since = env().now();
  unnamed_ = {};  // a simple query drops it
  pool->list(*this, phase);
  env().scratch.clear();
  wire::query(env().scratch, sql);
  stream->send(as_bytes(env().scratch));
  stream->arm();
}

void Server::client_gone(bool mid_message) {
  Client* gone = client;
  client = nullptr;
  if (!gone || phase_ == Phase::dead) return;
  if (replication_ != wire::Replication::none && !login_done_) return disconnect("replication client disconnected");
  // status_ is as old as the last ReadyForQuery: a batch without its Sync, all answered, is a transaction too.
  const bool asked_since = gone->query_start() != 0;
  if (phase_ == Phase::active && status_ == 'I' && owed_.empty() && !asked_since && !copy_in_ && !error_pending_ &&
      !mid_message && body_left_ == 0 && !held_) {
    release_ = false;
    return after_session();
  }
  disconnect("client disconnect while server was not ready");
}

void Server::release() {
  Client* c = client;
  client = nullptr;
  c->unlinked();
  after_session();
  c->after_release();
}

// The server is nobody's: what becomes of it (behaviour.md section 5).
void Server::after_session() {
  release_ = false;
  if (replication_ != wire::Replication::none) return disconnect("replication client was closed");
  if (held_) return disconnect("idle server got dirty");
  if (cancels > 0) {
    pool->unlist(*this);
    pool->list(*this, Phase::being_canceled);
    stream->arm();
    return;
  }
  const config::Settings& s = env().settings();
  bool session = pool->policy().pool_mode == config::PoolMode::session;
  pool->unlist(*this);
  if (!close_needed && !s.server_reset_query.empty() && (session || s.server_reset_query_always))
    return run_own(s.server_reset_query, Phase::resetting);
  if (session && statements_) statements_->clear();
  pool->offer(*this);
}

void Server::cancel_finished() {
  --cancels;
  if (phase_ == Phase::being_canceled && cancels == 0) after_session();
}

void Server::settle() {
  offer_ = false;
  const bool opened = phase_ == Phase::connect_query;
  if (held_) return disconnect("idle server got dirty");
  pool->unlist(*this);
  if (replication_ != wire::Replication::none)
    pool->joined(*this);
  else
    pool->offer(*this);
  if (opened) pool->opened();
}

void Server::run_check() {
  std::string_view sql = env().settings().server_check_query;
  if (sql == "<empty>") sql = "";
  pool->unlist(*this);
  run_own(sql, Phase::checking);
}

void Server::move_to(int worker) {
  move_to_ = worker;
  pool->cancels_lost(*this);
  pool->list(*this, Phase::moving);
  stream->detach();
}

void Server::on_detached(int fd, std::unique_ptr<net::Tls> tls) {
  if (phase_ != Phase::moving) {  // SUSPEND
    stream = env().engine->adopt(fd, net::Kind::server, this);
    parked_ = env().freezing;
    if (!parked_ && busy()) stream->arm();
    return;
  }
  stream = nullptr;
  moving_tls_ = std::move(tls);
  pool->unlist(*this);
  env().ship(this, fd, move_to_);
}

void Server::find_times() { times_ = health_ ? &env().host_times[health_->text] : nullptr; }

void Server::arrive(Pool& here, int fd) {
  pool = &here;
  stream = here.env.engine->adopt(fd, net::Kind::server, this);
  if (moving_tls_) stream->start_tls(std::move(moving_tls_));
  find_times();
  if (outdated() || (place_ && place_->left.load(std::memory_order_relaxed))) close_needed = true;
  check_address();
}

void Server::disconnect(std::string_view reason) {
  if (ended()) return;
  Client* c = std::exchange(client, nullptr);
  if (env().settings().log_disconnections)
    log(LogLevel::log, fmt::format("closing because: {} (age={}s)", reason, (env().now() - connect_time) / kSecond));
  pool->unlist(*this);
  const Phase before = phase_;
  phase_ = Phase::dead;
  pool->cancels_lost(*this);
  if (connecting_flag_) pool->shared.connecting.store(false, std::memory_order_release);
  if (login_done_ && replication_ == wire::Replication::none)
    pool->shared.usable.fetch_sub(1, std::memory_order_acq_rel);
  connecting_flag_ = false;
  held_.reset();
  // A backend that is not busy ends at once when told to, and closes its side when it is gone from the server's own
  // count. Until then its place stays taken, so that the server never sees one connection too many.
  bool polite = stream && ready_ && owed_.empty() && !lost_ && before != Phase::moving;
  if (polite) {
    env().scratch.clear();
    wire::terminate(env().scratch);
    stream->send(as_bytes(env().scratch));
    idle_since = env().now();
    pool->list(*this, Phase::closing);
    stream->arm();
    // Whoever waited for it looks around: another one may be idle.
    if (before == Phase::checking || before == Phase::resetting) env().poke_after_close(pool->shared);
  } else {
    pool->list(*this, Phase::closing);
    gone();
  }
  if (c) {
    if (fatal_seen_) {
      c->server = nullptr;
      c->disconnect(reason);
    } else {
      c->server_lost(say::server_gone, reason);
    }
  }
}

void Server::gone() {
  if (phase_ != Phase::closing) return;
  pool->unlist(*this);
  phase_ = Phase::dead;
  if (stream) stream->close_after_flush();
  stream = nullptr;
  take_place(nullptr);
  permit_.reset();
  env().bury(this);
  env().poke_after_close(pool->shared);
}

std::string Server::address() const {
  return address_.is_unix() || !address_.length ? "unix" : net::format_host(address_);
}

int Server::port() const {
  if (address_.is_unix() || !address_.length) return port_ ? port_ : pool->entry().ports[0];
  return address_.port();
}

std::string Server::peer_text() const {
  if (address_.is_unix() || !address_.length) return fmt::format("unix:{}", port());
  return net::format_address(address_);
}

int Server::backend_pid() const {
  return backend_key_.size() >= 4 ? static_cast<int>(load_be32(as_bytes(backend_key_).data())) : 0;
}

void Server::log(LogLevel level, std::string_view text) const {
  if (!env().log.enabled(level)) return;
  const std::string &db = pool->shared.database.name, &who = pool->server_user(), peer = peer_text();
  const LogField fields[] = {{"worker", env().worker},
                             {"server", static_cast<std::int64_t>(id)},
                             {"database", db},
                             {"user", who},
                             {"address", peer}};
  env().log.write(level, text, fmt::format("S-{}: {}/{}@{} ", fmt::ptr(this), db, who, peer), fields);
}

}  // namespace pgf::session
