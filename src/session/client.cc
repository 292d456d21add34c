#include "session/client.h"

#include <fmt/format.h>

#include "config/budget.h"
#include "net/socket.h"
#include "session/client_login.h"
#include "session/pool.h"
#include "wire/rules.h"
#include "wire/startup.h"
#include "wire/write.h"

namespace pgf::session {

// While nobody takes them, a client's bytes are kept up to here; then its socket is left unread.
static constexpr std::size_t kHoldLimit = 64 * 1024;
static constexpr std::size_t kPreLoginLimit = 70 * 1024;  // above any legal startup or password message

const char* Client::name(Phase phase) {
  static constexpr const char* names[] = {"first",   "lookup",  "judgement", "password", "lookup_wait",
                                          "welcome", "joining", "idle",      "waiting",  "setting",
                                          "active",  "console", "asking",    "cancel",   "dead"};
  return names[static_cast<int>(phase)];
}

Client::Client(Env& env, int fd, bool unix_socket)
    : env_(&env),
      id(env.shared.next_id.fetch_add(1, std::memory_order_relaxed)),
      connect_time(env.now()),
      request_time(env.now()),
      is_unix(unix_socket) {
  env.shared.clients.take(0);
  // The place is taken, not compared: of many that arrive at once exactly as many get in as there are places. Who finds
  // none is told so when it says what it wants; the console and a cancel need none.
  seek_place();
  stream = env.engine->adopt(fd, net::Kind::client, this);
  slot = env.add_client(this);
  stream->resume();
}

void Client::seek_place() {
  if (!admitted_) admitted_ = env_->shared.admitted.take(config::max_client_conn(*env_->config));
}

Client::~Client() {
  env_->shared.clients.put();
  if (admitted_) env_->shared.admitted.put();
}

void Client::on_bytes(net::Stream&, const net::Received& received) {
  request_time = env_->now();
  env_->stirring = true;
  if (frozen_) return hold(received.bytes);  // came in before the engine let go of the socket
  if (pool && phase_ != Phase::console && phase_ != Phase::asking && !looking_up())
    pool->counters.received += received.bytes.size();
  if (held_) {
    hold(received.bytes);
    consume_held();
    return;
  }
  std::size_t used = consume(received);
  if (phase_ != Phase::dead && used < received.bytes.size()) hold(received.bytes.subspan(used));
}

// Feeds bytes to the phase; a phase may end in the middle of them. Returns how many were used.
std::size_t Client::consume(const net::Received& received) {
  std::size_t used = 0;
  while (used < received.bytes.size()) {
    net::Received rest{received.bytes.subspan(used), received.buffer};
    Phase before = phase_;
    std::size_t n = 0;
    switch (phase_) {
      case Phase::first:
        n = consume_first(rest.bytes);
        break;
      case Phase::password:
        n = consume_password(rest.bytes);
        break;
      case Phase::idle:
      case Phase::active:
        n = consume_ready(rest);
        break;
      case Phase::console:
        n = consume_console(rest.bytes);
        break;
      case Phase::cancel:
        n = rest.bytes.size();
        break;  // nothing more is expected from it
      case Phase::lookup:
      case Phase::lookup_wait:
      case Phase::judgement:
      case Phase::welcome:
      case Phase::joining:
      case Phase::waiting:
      case Phase::setting:
      case Phase::asking:
      case Phase::dead:
        break;
    }
    used += n;
    if (phase_ == Phase::dead || (n == 0 && phase_ == before)) break;
  }
  return used;
}

// What lies here is the beginning of a message that this phase waits for: its rest has to be read, whatever its size.
bool Client::wants_bytes() const {
  return phase_ == Phase::first || phase_ == Phase::password || phase_ == Phase::idle || phase_ == Phase::active;
}

void Client::hold(Bytes bytes) {
  if (!held_) held_ = env_->take_buffer();
  held_->append(as_text(bytes));
  if ((phase_ == Phase::first || phase_ == Phase::password) && held_->size() > kPreLoginLimit)
    return bad_header(as_bytes(*held_));
  if (held_->size() >= kHoldLimit && !paused_ && !wants_bytes()) {
    paused_ = true;
    stream->pause();
  }
}

void Client::consume_held() {
  if (!held_) return;
  std::unique_ptr<std::string> bytes = std::move(held_);
  std::size_t used = consume({as_bytes(*bytes), nullptr});
  if (phase_ == Phase::dead) return env_->give_buffer(std::move(bytes));
  if (used < bytes->size()) {
    bytes->erase(0, used);
    held_ = std::move(bytes);
  } else {
    env_->give_buffer(std::move(bytes));
  }
  bool may_read = !held_ || held_->size() < kHoldLimit || wants_bytes();
  bool server_full = server && server->stream && server->stream->queued() >= net::Stream::kHighMark;
  if (paused_ && may_read && !server_full) {
    paused_ = false;
    read_on();
  }
}

void Client::read_on() {
  if (!frozen_) stream->resume();
}

bool Client::freeze() {
  if (phase_ == Phase::console || phase_ == Phase::asking || phase_ == Phase::cancel || phase_ == Phase::dead)
    return true;
  if (!frozen_) {
    if (body_left_) return false;
    frozen_ = true;
    move_to_ = -1;
    stream->pause();
  }
  if (stream->tls()) return stream->queued() == 0;  // not for another process
  // Another process may read this socket next: not even a receive that the kernel has begun may be left.
  if (!parked_) stream->detach();
  return parked_ && stream->queued() == 0;
}

void Client::thaw() {
  if (!std::exchange(frozen_, false)) return;
  parked_ = false;
  if (held_) consume_held();
  if (phase_ != Phase::dead && !paused_) stream->resume();
}

void Client::on_closed(net::Stream&, int error) {
  log_tls_error();
  if (phase_ <= Phase::lookup_wait || phase_ == Phase::cancel) {
    finish();  // a stranger who leaves is no news
    return;
  }
  disconnect(error ? "unexpected eof" : "client unexpected eof");
}

void Client::on_drained(net::Stream&) {
  if (server && server->stream && (!env_->freezing || server->mid_message())) server->stream->arm();
}

void Client::disconnect(std::string_view reason) {
  if (phase_ == Phase::dead) return;
  if (env_->settings().log_disconnections)
    log(LogLevel::log, fmt::format("closing because: {} (age={}s)", reason, (env_->now() - connect_time) / kSecond));
  finish();
}

void Client::fatal(const Say& say, std::string_view text) { fatal(say.sqlstate, text.empty() ? say.text : text); }

void Client::fatal_waiting(const Say& say) {
  const bool down = pool && pool->shared.usable.load(std::memory_order_relaxed) == 0;
  fatal(say.sqlstate, say.text, down ? pool->shared.unreachable() : std::string());
}

void Client::fatal(std::string_view sqlstate, std::string_view text, std::string_view detail) {
  if (phase_ == Phase::dead) return;
  if (login_) ++env_->refused_logins;
  std::string out;
  wire::error(out, "FATAL", sqlstate, text, detail);
  // Not in the middle of a message that is being relayed: the client could not read it anyway. Nor behind a FATAL.
  if (!cut_ && !(server && server->has_the_word())) stream->send(as_bytes(out));
  if (env_->settings().log_disconnections)
    log(LogLevel::log, fmt::format("closing because: {} (age={}s)", text, (env_->now() - connect_time) / kSecond));
  if (env_->settings().log_pooler_errors) log(LogLevel::warning, fmt::format("pooler error: {}", text));
  finish();
}

// The one way out of every phase.
void Client::finish() {
  if (phase_ == Phase::dead) return;
  note_unfinished();
  if (pool) {
    if (queued())
      pool->leave_queue(*this);
    else if (counted_pool)
      pool->clients.remove(this);
  }
  phase_ = Phase::dead;
  if (has_key) env_->shared.cancels.remove(cancel_key);
  if (database) database->clients.put();
  if (user) user->clients.put();
  stream->close_after_flush();
  stream = nullptr;
  if (held_) env_->give_buffer(std::move(held_));
  if (Server* s = std::exchange(server, nullptr)) s->client_gone(body_left_ > 0);
  env_->bury(this);
}

void Client::bad_header(Bytes bytes) { fatal("08P01", wire::bad_header_text(bytes)); }

void Client::server_lost(const Say& reason, std::string_view text) {
  cut_ = server && server->has_the_word();
  server = nullptr;
  if (looking_up()) return fatal(say::config_error);  // why the server went is not for strangers
  fatal(reason, text);
}

void Client::console_reply(std::string_view bytes, bool close) {
  if (phase_ != Phase::asking) return;
  stream->send(as_bytes(bytes));
  if (close) return disconnect("shutdown");
  phase_ = Phase::console;
  consume_held();
}

void Client::cancel_settled(std::string_view reason) {
  if (phase_ == Phase::cancel) disconnect(reason);
}

std::string Client::address() const {
  if (is_unix) return "unix";
  auto peer = stream ? net::peer_address(stream->fd()) : std::nullopt;
  return peer ? net::format_host(*peer) : "";
}

int Client::port() const {
  if (is_unix) return static_cast<int>(env_->settings().listen_port);
  auto peer = stream ? net::peer_address(stream->fd()) : std::nullopt;
  return peer ? peer->port() : 0;
}

int Client::unix_pid() const {
  auto peer = is_unix && stream ? net::peer_credentials(stream->fd()) : std::nullopt;
  return peer ? static_cast<int>(peer->pid) : 0;
}

void Client::log_tls_error() const {
  const net::Tls* tls = stream->tls();
  if (!tls || tls->state() != net::Tls::State::failed) return;
  bool stranger = phase_ <= Phase::password;
  log(stranger ? LogLevel::warning : LogLevel::log, fmt::format("TLS handshake error: {}", tls->error()));
}

std::string Client::peer_text() const {
  if (!stream) return "?";
  if (is_unix) return fmt::format("unix({}):{}", unix_pid(), env_->settings().listen_port);
  auto peer = net::peer_address(stream->fd());
  return peer ? net::format_address(*peer) : "?";
}

void Client::log(LogLevel level, std::string_view text, std::span<const LogField> more) const {
  if (!env_->log.enabled(level)) return;
  std::string_view db = login_     ? std::string_view(login_->shown_database())
                        : database ? std::string_view(database->name)
                                   : "(nodb)";
  std::string_view who = login_ ? std::string_view(login_->user) : user ? std::string_view(user->name) : "(nouser)";
  if (db.empty()) db = "(nodb)";
  if (who.empty()) who = "(nouser)";
  const std::string peer = peer_text();
  std::vector<LogField> fields{{"worker", env_->worker}, {"client", static_cast<std::int64_t>(id)}};
  if (db != "(nodb)") fields.push_back({"database", db});
  if (who != "(nouser)") fields.push_back({"user", who});
  if (peer != "?") fields.push_back({"address", peer});
  fields.insert(fields.end(), more.begin(), more.end());
  env_->log.write(level, text, fmt::format("C-{}: {}/{}@{} ", fmt::ptr(this), db, who, peer), fields);
}

void Client::on_query_wait_notify() {
  notified = true;
  std::string out;
  wire::notice(out, "No server connection available in postgres backend, client being queued");
  stream->send(as_bytes(out));
}

}  // namespace pgf::session
