#include "session/cancel.h"

#include "session/client.h"
#include "session/pool.h"
#include "session/server.h"
#include "wire/startup.h"

namespace pgf::session {

void CancelLink::begin(Client& client, ClientHandle requester) {
  Env& env = client.env();
  Server* server = client.server;
  auto settle = [&](LogLevel level, std::string_view text) {
    env.log(level, "{}", text);
    env.cancel_done(requester, text);
  };
  if (client.phase() == Client::Phase::console || client.phase() == Client::Phase::asking) {
    env.cancel_console(client);
    return settle(LogLevel::log, "cancel request for console client");
  }
  // Not sent yet: queued, or behind the SETs of the pooler.
  if (client.phase() == Client::Phase::waiting || client.phase() == Client::Phase::setting) {
    client.cancel_in_queue();
    return settle(LogLevel::debug, "cancelled a queued client");
  }
  if (!server) return settle(LogLevel::debug, "cancel request for idle client");
  if (server->phase() != Server::Phase::active)
    return settle(LogLevel::debug, "cancel request for a server that is not at work");
  if (server->status() == 'I' && server->owed().empty())
    return settle(LogLevel::debug, "cancel request for idle client");
  if (server->backend_key().empty()) return settle(LogLevel::debug, "server gave no cancel key");
  Pool& pool = *client.pool;
  pool::Permit::Refused why;
  int limit = pool.policy().pool_size > 0 ? 2 * pool.policy().pool_size : 0;
  pool::Permit permit = pool::Permit::take(pool.shared, limit, pool.policy(), false, why);
  if (!permit) {
    pool.queue_cancel(client.id, requester);
    return;
  }
  auto* link = new CancelLink(pool, client, requester, std::move(permit));
  pool.cancel_links.push_back(link);
  link->stream_ = env.engine->connect(server->dialled().get(), server->dialled().length, link);
  if (!link->stream_) link->end("connect failed");
}

CancelLink::CancelLink(Pool& pool, Client& client, ClientHandle requester, pool::Permit permit)
    : pool_(&pool),
      target_(client.server),
      client_id_(client.id),
      requester_(requester),
      permit_(std::move(permit)),
      started_(pool.env.now()) {
  pool.shared.cancels.fetch_add(1, std::memory_order_relaxed);
}

// The key goes to the server as the session does: not in the clear if that is encrypted.
void CancelLink::on_connected(net::Stream&, int error) {
  if (error) return end("connect failed");
  bool secure = target_ && target_->stream && target_->stream->tls() && pool_->env.tls->server;
  if (!secure) return send();
  if (pool_->entry().sslnegotiation == config::SslNegotiation::direct) return start_tls(true);
  stream_->send(as_bytes(wire::ssl_request()));
  stream_->arm();
}

void CancelLink::on_bytes(net::Stream&, const net::Received& received) {
  if (sent_ || stream_->tls()) return stream_->arm();  // it has nothing to tell us
  if (as_text(received.bytes) != "S" || !target_ || !pool_->env.tls->server) return end("server refused SSL");
  start_tls(false);
}

void CancelLink::start_tls(bool direct) {
  stream_->start_tls(net::Tls::connect(*pool_->env.tls->server, target_->host(), direct));
  stream_->arm();
}

void CancelLink::send() {
  Client* client = target_ ? target_->client : nullptr;
  bool running = client && client->id == client_id_ && target_->phase() == Server::Phase::active &&
                 !(target_->status() == 'I' && target_->owed().empty());
  if (!running) return end("not sending cancel request for client that is now idle");
  sent_ = true;
  ++target_->cancels;
  stream_->send(as_bytes(wire::cancel_request(target_->backend_key())));
  stream_->arm();
}

void CancelLink::on_closed(net::Stream&, int) { end("successfully sent cancel request"); }

void CancelLink::end(std::string_view reason) {
  if (dead_) return;
  dead_ = true;
  pool_->env.log(LogLevel::debug, "cancel for client {}: {}", client_id_, reason);
  if (stream_) stream_->close();
  stream_ = nullptr;
  pool_->cancel_links.remove(this);
  pool_->shared.cancels.fetch_sub(1, std::memory_order_relaxed);
  permit_.reset();
  Env& env = pool_->env;
  env.bury(this);
  env.cancel_done(requester_, reason);
  if (sent_ && target_) target_->cancel_finished();
  pool_->next_cancel();
}

}  // namespace pgf::session
