// Pool::tick: the timeouts of clients and servers, and the sizes that pools keep.
#include <algorithm>

#include "session/attempt.h"
#include "session/cancel.h"
#include "session/pool.h"

namespace pgf::session {

// A server idle for longer than this has its socket watched, so that its death is noticed at once.
static constexpr Usec kWatchAge = 300 * kMillisecond;
// How long a server may take to say goodbye before its place is given away.
static constexpr Usec kFarewellTime = kSecond;

void Pool::tick(Usec now) {
  const config::Settings& s = env.settings();
  if (shared.database.name == "pgbouncer") return;
  tick_servers(now);

  auto look = [&](Client& c) {
    Usec waited = now - (c.query_start() ? c.query_start() : c.queued_at);
    Usec limit = client_policy(c).query_wait_timeout;
    if (limit > 0 && waited > limit) return c.fatal_waiting(say::query_wait_timeout);
    if (policy_.query_timeout > 0 && waited > policy_.query_timeout) return c.fatal(say::query_timeout_queued);
    if (c.phase() != Client::Phase::waiting) {
      if (s.client_login_timeout > 0 && now - c.connect_time > s.client_login_timeout)
        c.fatal_waiting(welcome_ ? say::client_login_timeout : say::client_login_timeout_server);
      return;
    }
    if (s.query_wait_notify > 0 && !c.notified && (now - c.queued_at) / kSecond > s.query_wait_notify)
      c.on_query_wait_notify();
  };
  waiting.each(look);
  joining.each(look);
  active.each([&](Server& server) {
    Client* c = server.client;
    if (!c || server.phase() == Server::Phase::lookup) return;  // a login has its own time limit
    // It may live as long as its client, so "when it is free" would be never.
    if (server.replication() != wire::Replication::none && server.close_needed)
      return server.disconnect(say::database_changed.text);
    bool in_transaction = server.status() != 'I', running = !server.owed().empty();
    if (s.server_fast_close && server.close_needed && policy_.pool_mode == config::PoolMode::session &&
        !in_transaction && !running) {
      server.client = nullptr;
      c->server_lost(say::database_changed);
      return server.disconnect(say::database_changed.text);
    }
    if (policy_.query_timeout > 0 && running && c->query_start() && now - c->query_start() > policy_.query_timeout) {
      server.client = nullptr;
      c->server_lost(say::query_timeout);
      return server.disconnect("query timeout");
    }
    if (policy_.idle_transaction_timeout > 0 && in_transaction && !running &&
        now - server.request_time > policy_.idle_transaction_timeout)
      return c->fatal(say::idle_transaction_timeout);
    if (policy_.transaction_timeout > 0 && c->xact_start() && (in_transaction || running) &&
        now - c->xact_start() > policy_.transaction_timeout)
      return c->fatal(say::transaction_timeout);
  });
  if (s.client_idle_timeout > 0 || !env.config->users.empty())
    clients.each([&](Client& c) {
      Usec limit = client_policy(c).client_idle_timeout;
      if (limit > 0 && !c.server && c.phase() == Client::Phase::idle && now - c.request_time > limit)
        c.fatal(say::client_idle_timeout);
    });
  cancel_links.each([&](CancelLink& link) {
    if (s.cancel_wait_timeout > 0 && now - link.started() > s.cancel_wait_timeout) link.end("cancel_wait_timeout");
  });
  while (!queued_cancels_.empty() && s.cancel_wait_timeout > 0 &&
         now - queued_cancels_.front().since > s.cancel_wait_timeout) {
    env.cancel_done(queued_cancels_.front().requester, "cancel_wait_timeout");
    queued_cancels_.pop_front();
  }
  // What stood in the way may have been another worker's or process's, of whose end nobody tells.
  next_cancel();
  if (wanted()) service();
}

bool Pool::disused(Usec now) {
  const Usec limit = env.settings().pool_idle_timeout;
  if (limit <= 0 || shared.database.name == "pgbouncer" || (entry_.user && policy_.min_pool_size > 0)) return false;
  bool empty = waiting.empty() && joining.empty() && clients.empty() && cancel_links.empty() && queued_cancels_.empty();
  for (auto* l : {&idle, &active, &tested, &login, &held_back, &moving, &closing}) empty &= l->empty();
  if (!empty || shared.servers.value() > 0) {
    shared.last_used.store(now, std::memory_order_relaxed);
    return false;
  }
  Usec used = shared.last_used.load(std::memory_order_relaxed);
  if (used && now - used <= limit) return false;
  if (used && shared.last_used.exchange(0, std::memory_order_relaxed))  // the first worker says it for all
    env.log(LogLevel::log, "cleaning up idle pool for user {} on db {} because: pool idle timeout (age={}s)",
            server_user(), shared.database.name, (now - used) / kSecond);
  return true;
}

void Pool::tick_servers(Usec now) {
  const config::Settings& s = env.settings();
  Usec connect_limit = policy_.connect_timeout > 0 ? policy_.connect_timeout : s.server_connect_timeout;
  login.each([&](Server& server) { server.look_at_login_time(connect_limit); });
  closing.each([&](Server& server) {
    if (now - server.idle_since > kFarewellTime) server.gone();
  });
  // While one of these hangs no other connection is opened in its stead: clients would wait for it.
  tested.each([&](Server& server) {
    if (connect_limit > 0 && now - server.idle_since > connect_limit)
      server.disconnect(server.phase() == Server::Phase::resetting ? "reset query timeout" : "test query timeout");
  });
  int keep = std::min(policy_.min_pool_size, policy_.pool_size > 0 ? policy_.pool_size : policy_.min_pool_size);
  if (env.shared.ledger) keep = env.shared.ledger->part(keep);
  // Servers of a pool made in one burst do not all die in one tick: their ends are spread over the lifetime.
  Usec spacing = policy_.pool_size > 0 ? policy_.server_lifetime / policy_.pool_size : 0;
  idle.each([&](Server& server) {
    Usec age = now - server.idle_since;
    if (server.close_needed) return server.disconnect("database configuration changed");
    if (!server.role_fits()) return server.disconnect("its host is no longer what target_session_attrs asks for");
    if (s.server_idle_timeout > 0 && age > s.server_idle_timeout && shared.servers.value() > keep)
      return server.disconnect("server idle timeout");
    if (now - server.connect_time > policy_.server_lifetime && now - last_lifetime_kill_ >= spacing) {
      last_lifetime_kill_ = now;
      return server.disconnect("server lifetime over");
    }
    // A cancel request may open a connection beyond the size of the pool, and ends by itself.
    const int cancels = shared.cancels.load(std::memory_order_relaxed),
              most = policy_.pool_size + policy_.reserve_pool_size;
    if (policy_.pool_size > 0 && shared.servers.value() - cancels > most)
      return server.disconnect("too many servers in the pool");
    // All processes together: those that have more than their part close what they have too many.
    pool::Ledger* ledger = env.shared.ledger;
    if (ledger && policy_.pool_size > 0 && (ledger->lost.load() || shared.servers.total() - cancels > most) &&
        shared.servers.value() - static_cast<int>(closing.size()) > ledger->part(most))
      return server.disconnect("too many servers in the pool");
    if (server.check_role_now_and_then()) return;
    if (age > kWatchAge && !server.stream->armed()) server.stream->arm();
  });
  rebalance(now);
  // Several workers may try: there is one attempt at a time, and the count is the fleet's.
  if (keep > 0 && shared.servers.value() < keep && (entry_.user || shared.database.clients.value() > 0))
    launch(nullptr);
}

// After a host's return, idle connections leave the others for it, one by one.
void Pool::rebalance(Usec now) {
  const bool choice = entry_.load_balance_hosts != config::LoadBalance::disable ||
                      entry_.target_session_attrs == config::TargetSession::prefer_standby;
  if (entry_.hosts.size() < 2 || !choice || idle.empty()) return;
  const auto elements = list_hosts(env, entry_);  // keeps the places alive
  std::vector<pool::Place*> places;
  for (const auto& element : elements) places.push_back(element.place.get());
  pool::Place* full = env.shared.hosts.too_full(places, entry_.target_session_attrs, shared.database.writer, now);
  if (!full) return;
  Server* longest = nullptr;
  idle.each([&](Server& s) {
    if (s.place() == full) longest = &s;
  });
  if (longest && full->claim_move(now, pool::Hosts::kMovePeriod))
    longest->disconnect("makes room for a host that is back");
}

config::ClientPolicy Pool::client_policy(const Client& client) const {
  return config::resolve_client(*env.config, entry_, client.user ? client.user->name : std::string());
}

}  // namespace pgf::session
