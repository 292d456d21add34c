#include "session/pool.h"

#include <fmt/format.h>

#include <bit>

#include "session/cancel.h"

namespace pgf::session {

// A server idle for longer than this is looked at before it is used: one system call, rare under load.
static constexpr Usec kPeekAge = 5 * kMillisecond;
// While we have waiters of our own, how often to look for one elsewhere who has waited longer.
static constexpr Usec kLookElsewhere = kMillisecond;
// How long another worker may take to answer a request for servers.
static constexpr Usec kAnswerTime = 10 * kMillisecond;

Pool::Pool(Env& env_, pool::PoolShared& shared_) : env(env_), shared(shared_) { configure(); }

void Pool::configure() {
  const config::Config& c = *env.config;
  if (shared.database.name == "pgbouncer") {
    entry_.name = "pgbouncer";
    policy_ = config::resolve(c, entry_, shared.user.name);
    policy_.pool_mode = config::PoolMode::statement;
    policy_.pool_size = 2;
    return;
  }
  auto entry = config::find_database(c, shared.database.name);
  removed_ = !entry;
  if (entry) entry_ = std::move(*entry);
  policy_ = config::resolve(c, entry_, shared.user.name);
  pool::Permit::set_limits(shared, policy_);
}

bool Pool::paused() const {
  return env.shared.paused.load(std::memory_order_relaxed) || shared.database.paused.load(std::memory_order_relaxed) ||
         env.shared.suspended.load(std::memory_order_relaxed);
}

// ---- lists ----

void Pool::list(Server& server, Server::Phase phase) {
  server.set_phase(phase);
  using P = Server::Phase;
  switch (phase) {
    case P::resolving:
    case P::connecting:
    case P::login:
    case P::connect_query:
      login.push_back(&server);
      break;
    case P::idle:
      idle.push_front(&server);
      break;
    case P::setting:
    case P::active:
    case P::lookup:
      if (pool::Place* place = server.place()) place->add_active(env.worker, 1);
      active.push_back(&server);
      break;
    case P::resetting:
    case P::checking:
      tested.push_back(&server);
      break;
    case P::being_canceled:
      held_back.push_back(&server);
      break;
    case P::moving:
      moving.push_back(&server);
      break;
    case P::closing:
      closing.push_back(&server);
      break;
    case P::dead:
      break;
  }
}

void Pool::unlist(Server& server) {
  if (!server.prev) return;
  using P = Server::Phase;
  switch (server.phase()) {
    case P::resolving:
    case P::connecting:
    case P::login:
    case P::connect_query:
      login.remove(&server);
      break;
    case P::idle:
      idle.remove(&server);
      publish_idle();
      break;
    case P::setting:
    case P::active:
    case P::lookup:
      if (pool::Place* place = server.place()) place->add_active(env.worker, -1);
      active.remove(&server);
      break;
    case P::resetting:
    case P::checking:
      tested.remove(&server);
      break;
    case P::being_canceled:
      held_back.remove(&server);
      break;
    case P::moving:
      moving.remove(&server);
      break;
    case P::closing:
      closing.remove(&server);
      break;
    case P::dead:
      break;
  }
}

// Sequentially consistent together with the waiting bits: either a releaser sees the bit of a worker that just began to
// wait, or that worker sees the server that just became idle.
void Pool::publish_idle() {
  if (env.alone()) return;
  auto& mine = shared.idle(env.worker);
  mine.oldest.store(idle.empty() ? 0 : idle.back()->idle_since, std::memory_order_relaxed);
  mine.count.store(static_cast<int>(idle.size()), std::memory_order_seq_cst);
}

void Pool::set_waiting_bit() {
  if (bit_set_ || env.alone()) return;
  bit_set_ = true;
  env.queues.push_back(this);
  shared.waiting.fetch_or(std::uint64_t{1} << env.worker, std::memory_order_seq_cst);
}

void Pool::leave_queue(Client& client) {
  if (client.phase() == Client::Phase::joining) {
    joining.remove(&client);
    if (joining.empty()) shared.joining.fetch_and(~(std::uint64_t{1} << env.worker), std::memory_order_seq_cst);
    return;
  }
  waiting.remove(&client);
  if (client.phase() == Client::Phase::welcome) --ungreeted_;
  shared.database.hunger.left(client.queued_at, shared.number);
  shared.user.hunger.left(client.queued_at, shared.number);
  if (waiting.empty() && bit_set_) {
    bit_set_ = in_vain_ = false;
    env.queues.remove(this);
    shared.waiting.fetch_and(~(std::uint64_t{1} << env.worker), std::memory_order_seq_cst);
  }
  publish_front();
}

// Only a new head is news: what was said about this one stays, also that a server is on its way to it.
void Pool::publish_front() {
  if (env.alone()) return;
  Client* first = waiting.front();
  const std::uint64_t id = first ? first->id : 0;
  if (id == std::exchange(front_id_, id)) return;
  shared.front(env.worker).since.store(first ? first->queued_at : 0, std::memory_order_relaxed);
}

// ---- a client wants a server ----

bool Pool::take(Client& client) {
  if (removed_) {
    client.fatal(say::database_removed);
    return false;
  }
  if (!paused() && waiting.empty()) {
    if (Server* server = pop_idle(client)) {
      promise(*server, client);
      return true;
    }
  }
  if (client.phase() == Client::Phase::dead) return false;
  if (env.shared.shutdown.load(std::memory_order_relaxed) == 1) {
    client.fatal(say::server_shutting_down);
    return false;
  }
  if (!paused() && shared.last_failed.load(std::memory_order_acquire) &&
      shared.usable.load(std::memory_order_acquire) == 0) {
    pool::PoolShared::LoginError error = shared.login_error();
    client.fatal(error.sqlstate,
                 fmt::format("server login has been failing, cached error: {} (server_login_retry)", error.text));
    launch(nullptr);
    return false;
  }
  if (client.looking_up()) {
    client.set_phase(Client::Phase::lookup_wait);
  } else {
    clients.remove(&client);
    client.set_phase(Client::Phase::waiting);
  }
  client.queued_at = env.now();
  client.notified = false;
  waiting.push_back(&client);
  publish_front();
  set_waiting_bit();
  if (paused()) return false;
  // Those before this one wait for servers that are being checked, one each: what is idle is for this one.
  if (idle.empty())
    find_server(client);
  else
    service();
  return client.server != nullptr;
}

void Pool::queue_for_welcome(Client& client) {
  client.set_phase(Client::Phase::welcome);
  ++ungreeted_;
  client.queued_at = env.now();
  waiting.push_back(&client);
  publish_front();
  set_waiting_bit();
  service();
}

// Fit for use? Otherwise it is gone now.
bool Pool::sound(Server& server) {
  if (server.close_needed) {
    server.disconnect("obsolete connection");
    return false;
  }
  if (!server.role_fits()) {
    server.disconnect("its host is no longer what target_session_attrs asks for");
    return false;
  }
  if (server.unread()) {
    server.disconnect("idle server got dirty");
    return false;
  }
  if (env.now() - server.idle_since > kPeekAge && !server.stream->armed() && !server.stream->looks_idle()) {
    server.disconnect("server connection closed");
    return false;
  }
  return true;
}

bool Pool::check_due(const Server& server) const {
  const config::Settings& s = env.settings();
  return server.was_used && !s.server_check_query.empty() && env.now() - server.idle_since >= s.server_check_delay &&
         env.now() - server.request_time >= s.server_check_delay;
}

Server* Pool::pop_idle(Client& client) {
  const config::Settings& s = env.settings();
  while (!idle.empty()) {
    Server* server = s.server_round_robin ? idle.back() : idle.front();
    if (!sound(*server)) continue;
    if (check_due(*server)) {
      server->run_check();  // it comes back by offer(), to whoever is first in the queue
      return nullptr;
    }
    if (client.phase() == Client::Phase::dead) return nullptr;
    unlist(*server);
    if (server->role_stale()) {
      server->ask_role_again();  // likewise
      return nullptr;
    }
    return server;
  }
  return nullptr;
}

// The client (idle, or at the head of the queue) gets the server (in no list).
void Pool::promise(Server& server, Client& client) {
  const bool lookup = client.looking_up();
  Usec waited = 0;
  if (client.queued()) {
    leave_queue(client);
    if (!lookup) clients.push_back(&client);
    waited = env.now() - client.queued_at;
    counters.wait_time += static_cast<std::uint64_t>(waited);
    client.note_wait(waited);
  }
  latencies.wait.record(waited);
  if (lookup) {
    client.set_phase(Client::Phase::lookup);
    return server.look_up(&client);
  }
  server.link(&client);
  client.set_phase(server.phase() == Server::Phase::active ? Client::Phase::active : Client::Phase::setting);
}

// ---- a server is free ----

void Pool::offer(Server& server) {
  server.idle_since = server.idle_before ? std::exchange(server.idle_before, 0) : env.now();
  if (server.close_needed) return server.disconnect("database configuration changed");
  if (server.role_stale()) return server.ask_role_again();
  if (!server.role_fits()) return server.disconnect("its host is no longer what target_session_attrs asks for");
  if (removed_) return server.disconnect("database removed");
  if (policy_.server_lifetime == 0 && server.was_used) return server.disconnect("server lifetime over");
  if (paused() && !env.shared.suspended.load(std::memory_order_relaxed)) return server.disconnect("pause mode");
  if (env.shared.shutdown.load(std::memory_order_relaxed) == 1) return server.disconnect("server shutting down");
  if (policy_.server_lifetime > 0 && env.now() - server.connect_time > policy_.server_lifetime)
    return server.disconnect("server lifetime over");

  greet();
  if (owed_to_sibling()) return server.disconnect("evicted");
  if (!env.alone() && give_to_other(server)) return;
  if (Client* client = paused() ? nullptr : next_waiter()) {
    promise(server, *client);
    if (client->phase() == Client::Phase::active) client->parameters_set();
    return;
  }
  list(server, Server::Phase::idle);
  if (env.alone()) return;
  publish_idle();
  // A worker may have begun to wait between our look and the publication.
  if (shared.waiting.load(std::memory_order_seq_cst) & ~(std::uint64_t{1} << env.worker)) {
    unlist(server);
    if (!give_to_other(server)) {
      list(server, Server::Phase::idle);
      publish_idle();
    }
  }
}

// The limits of databases and users are shared by pools. One that is always busy would keep the others waiting for
// ever: the place of a server that it frees is theirs, if their client has waited for long, and longer than ours.
bool Pool::owed_to_sibling() {
  Client* mine = waiting.front();
  const Usec since = mine ? mine->queued_at : env.now();
  auto claims = [&](pool::Hunger& hunger) {
    return hunger.yields(since, shared.number) && hunger.claim(longest_wait(since), shared.number);
  };
  return claims(shared.database.hunger) || claims(shared.user.hunger) || (env.shared.ledger && owed_to_fleet());
}

// Since when some client of this pool waits, on whichever worker: the server may be for that one. Judged by those that
// wait here, two pools could take the only place from each other for ever, each giving it up as soon as it has it.
Usec Pool::longest_wait(Usec here) const {
  for (int w = 0; !env.alone() && w < shared.workers(); ++w)
    if (Usec since = shared.front(w).since.load(std::memory_order_relaxed); since && since < here) here = since;
  return here;
}

// Likewise between processes: one of those that share our limits has less than its part and waits. The keeper has told
// us; the memory that they share is not looked at here.
bool Pool::owed_to_fleet() {
  for (const pool::Counter* servers : {&shared.servers, &shared.database.servers, &shared.user.servers})
    if (servers->owes() && servers->stake()->claim()) return true;
  return false;
}

// The worker whose first client has waited longest, not counting our own. A look at all that have waiters; under load
// it is taken once in a while.
void Pool::look_elsewhere() {
  looked_at_ = env.now();
  eldest_ = {};
  std::uint64_t others = shared.waiting.load(std::memory_order_seq_cst) & ~(std::uint64_t{1} << env.worker) &
                         ~env.shared.stuck.load(std::memory_order_relaxed);
  for (; others; others &= others - 1) {
    const int w = std::countr_zero(others);
    Usec since = shared.front(w).since.load(std::memory_order_relaxed);
    if (since && (!eldest_.since || since < eldest_.since)) eldest_ = {w, since, w};
    eldest_.any = w;
  }
}

bool Pool::give_to_other(Server& server) {
  if (server.stream->queued()) {  // not everything for its last client's sake is sent: it stays, until on_drained()
    server.stream->want_drained();
    return false;
  }
  Client* mine = next_waiter();
  if (!mine || env.now() - looked_at_ >= kLookElsewhere) look_elsewhere();
  if (eldest_.since && (!mine || eldest_.since + pool::kOvertake < mine->queued_at)) {
    Usec since = eldest_.since;
    const int worker = eldest_.worker;
    const bool first = shared.front(worker).since.compare_exchange_strong(since, 0, std::memory_order_acq_rel);
    looked_at_ = 0;  // there may be others: look again for the next server
    if (first) {
      server.move_to(worker);
      return true;
    }
  }
  if (mine || eldest_.any < 0) return false;
  server.move_to(eldest_.any);  // servers are on their way to all the first ones there: this is for a second
  return true;
}

// Somebody has waited for long: a server on its way may have died there, or there is an idle one that nobody told us
// of. Returns when to look again, 0 = no need.
Usec Pool::age_queue(Usec now) {
  Client* first = waiting.front();
  if (!first || env.alone()) return 0;
  Usec due = std::max(first->queued_at + pool::kOvertake, next_age_);
  if (now < due) return due;
  next_age_ = now + 2 * pool::kOvertake;
  const bool promised = unpromise();
  if (paused()) return next_age_;
  if (promised)
    find_server(*first);
  else
    ask_others();
  return next_age_;
}

// A server is on its way to the first client here. Opening one as well would be one too many.
bool Pool::promised() const {
  return !env.alone() && front_id_ && shared.front(env.worker).since.load(std::memory_order_relaxed) == 0;
}

// It has come, or is overdue. True: there was one.
bool Pool::unpromise() {
  Client* first = waiting.front();
  return first && front_id_ == first->id &&
         shared.front(env.worker).since.exchange(first->queued_at, std::memory_order_relaxed) == 0;
}

bool Pool::ask_others() {
  if (env.alone()) return false;
  // A lent server may die on its way; then nobody answers.
  if (asked_ && env.now() - asked_at_ < kAnswerTime) return true;
  for (int i = 1; i < shared.workers(); ++i) {
    int worker = (env.worker + i) % shared.workers();
    if (shared.idle(worker).count.load(std::memory_order_seq_cst) <= 0) continue;
    if (env.shared.stuck.load(std::memory_order_relaxed) >> worker & 1) continue;
    asked_ = true;
    asked_at_ = env.now();
    env.ask_for_server(shared, worker, static_cast<int>(waiting.size()));
    return true;
  }
  return false;
}

int Pool::lend(int to, int count) {
  int sent = 0;
  while (sent < count && waiting.empty() && !idle.empty()) {
    Server* server = idle.front();
    if (!sound(*server)) continue;
    if (server->stream->queued()) break;
    unlist(*server);
    server->move_to(to);
    ++sent;
  }
  return sent;
}

void Pool::lend_answered(int count) {
  if (count > 0) return;  // the server itself clears asked_
  asked_ = false;
  in_vain_ = true;
  service();
}

void Pool::drained(Server& server) {
  if (env.alone() || server.phase() != Server::Phase::idle || !shared.waiting.load(std::memory_order_seq_cst)) return;
  unlist(server);
  if (give_to_other(server)) return;
  list(server, Server::Phase::idle);
  publish_idle();
}

void Pool::server_arrived(Server& server) {
  asked_ = in_vain_ = false;
  unpromise();
  if (check_due(server))
    server.run_check();  // it comes back by offer()
  else
    offer(server);
  // Also behind a check: it is for the first in the queue, and the next one may find another server.
  if (!waiting.empty() && (tested.empty() || checks_missing())) service();
}

// ---- the queue ----

void Pool::learn_welcome(std::shared_ptr<const pool::Welcome> welcome) {
  welcome_ = welcome;
  shared.set_welcome(std::move(welcome));
}

// Clients that only wait for what a server says at login.
void Pool::greet() {
  if (!welcome_ || welcome_generation_ != shared.generation.load(std::memory_order_relaxed)) {
    welcome_generation_ = shared.generation.load(std::memory_order_relaxed);
    welcome_ = shared.welcome();
  }
  if (!welcome_ || ungreeted_ == 0) return;
  // Greeting one may let it queue again, behind: go by the first one that still waits, not by position.
  for (Client* client = waiting.front(); client;) {
    Client* following = waiting.after(client);
    if (client->phase() == Client::Phase::welcome) {
      leave_queue(*client);
      clients.push_back(client);
      client->counted_pool = true;
      client->welcome_ready();
      following = waiting.front();
    }
    client = following;
  }
}

Client* Pool::next_waiter() {
  Client* client = waiting.front();
  while (client && client->phase() == Client::Phase::welcome) client = waiting.after(client);
  return client;
}

void Pool::service() {
  greet();
  if (paused()) settle_hunger();
  while (!paused()) {
    Client* client = next_waiter();
    if (!client) break;
    Server* server = pop_idle(*client);
    if (!server) {
      if (idle.empty() || !checks_missing()) break;
      continue;  // one is being checked now: the next one for the next client
    }
    promise(*server, *client);
    if (client->phase() == Client::Phase::active) client->parameters_set();
  }
  if (!waiting.empty() && !paused()) find_server(*waiting.front());
  if (!joining.empty())
    if (Client* client = first_joining()) launch(client);
}

// Each server that is being checked, or reset, is on its way to one client, not to all of them.
bool Pool::checks_missing() const { return tested.size() + static_cast<std::size_t>(ungreeted_) < waiting.size(); }

// Servers that look idle elsewhere are mostly in use again when the question arrives, if they are busy: who has asked
// once in vain opens a connection as well, if there is room for one.
void Pool::find_server(Client& waiter) {
  if (waiting.size() == 1 && promised()) return;
  const bool asked = ask_others();
  if (!asked || in_vain_) launch(&waiter);
}

void Pool::opened() {
  if (wanted()) service();
  env.poke(shared);
}

// Opens a connection if the rules allow it now (behaviour.md section 7).
bool Pool::launch(Client* waiter) {
  if (removed_ || paused() || env.shared.shutdown.load(std::memory_order_relaxed) == 1) return false;
  if (!tested.empty() && waiter && waiter->phase() != Client::Phase::welcome) {
    bool checking = false;
    tested.each([&](Server& s) {
      checking |= !s.asks_role() && (s.phase() == Server::Phase::checking || s.phase() == Server::Phase::resetting);
    });
    if (checking && !checks_missing()) return false;  // one is on its way already
  }
  Usec now = env.now();
  if (now < shared.retry_at.load(std::memory_order_relaxed)) return false;
  // Other processes hold the places: whether that has changed is looked at when one of them says so, not for each
  // query.
  if (waiter && shared.barred.load(std::memory_order_relaxed)) return false;
  const Usec since = waiter ? waiter->queued_at : now;
  if (shared.database.hunger.yields(since, shared.number) || shared.user.hunger.yields(since, shared.number))
    return false;
  bool expected = false;
  if (!shared.connecting.compare_exchange_strong(expected, true, std::memory_order_acq_rel)) return false;
  pool::Permit::Refused why;
  pool::Permit permit = pool::Permit::take(shared, policy_.pool_size, policy_, true, why);
  if (!permit && waiter && env.shared.ledger) {
    pool::Permit::want(shared, policy_, why, now - since);
    permit = pool::Permit::take(shared, policy_.pool_size, policy_, true, why);
  }
  if (!permit && why == pool::Permit::Refused::pool && waiter && policy_.reserve_pool_size > 0 &&
      env.settings().reserve_pool_timeout > 0 && now - waiter->request_time >= env.settings().reserve_pool_timeout) {
    permit = pool::Permit::take(shared, policy_.pool_size + policy_.reserve_pool_size, policy_, true, why);
    if (permit) waiter->log(LogLevel::warning, "taking connection from reserve_pool");
  }
  if (!permit) {
    shared.connecting.store(false, std::memory_order_release);
    bool own = waiter && waiter->phase() == Client::Phase::joining;
    pool::Hunger* hunger = why == pool::Permit::Refused::database ? &shared.database.hunger
                           : why == pool::Permit::Refused::user   ? &shared.user.hunger
                                                                  : nullptr;
    if (waiter && (own || hunger)) env.evict_idle(shared, why);
    if (waiter && hunger && now - since >= pool::kFamine) hunger->raise(since, shared.number);
    if (why == pool::Permit::Refused::pool) settle_hunger();
    return false;
  }
  settle_hunger();
  if (env.shared.ledger) shared.barred.store(false, std::memory_order_relaxed);
  auto* server = new Server(*this, std::move(permit));
  list(*server, Server::Phase::resolving);
  server->start();
  return true;
}

void Pool::settle_hunger() {
  shared.database.hunger.settle(shared.number);
  shared.user.hunger.settle(shared.number);
}

void Pool::fail_waiters(std::string_view sqlstate, std::string_view text) {
  while (Client* client = waiting.front()) client->fatal(sqlstate, text);
  while (Client* client = joining.front()) client->fatal(sqlstate, text);
}

bool Pool::evict_one() {
  Server* oldest = idle.back();
  if (!oldest) return false;
  oldest->disconnect("evicted");
  return true;
}

void Pool::recycle() {
  auto mark = [](Server& s) { s.close_needed |= s.outdated(); };
  for (auto* l : {&idle, &active, &tested, &held_back, &moving}) l->each(mark);
  login.each([](Server& s) {
    if (s.outdated()) s.disconnect("connect string changed");
  });
  idle.each([](Server& s) {
    if (s.close_needed) s.disconnect("database configuration changed");
  });
  welcome_ = nullptr;
}

void Pool::check_places() {
  for (auto* l : {&idle, &active, &tested, &held_back, &moving}) l->each([](Server& s) { s.check_place(); });
}

void Pool::check_addresses() {
  for (auto* l : {&idle, &active, &tested, &held_back, &login, &moving}) l->each([](Server& s) { s.check_address(); });
}

void Pool::pause_servers() {
  idle.each([](Server& s) { s.disconnect("pause mode"); });
  login.each([](Server& s) { s.disconnect("pause mode"); });
}

bool Pool::freeze() {
  bool still = moving.empty() && login.empty() && tested.empty();
  for (auto* l : {&active, &idle}) l->each([&](Server& s) { still &= s.freeze(); });
  return still;
}

void Pool::thaw() {
  for (auto* l : {&active, &idle}) l->each([](Server& s) { s.thaw(); });
}

void Pool::abandon() {
  for (auto* l : {&idle, &active, &tested, &held_back, &login, &moving, &closing})
    l->each([](Server& s) {
      if (s.stream) s.stream->close();
      delete &s;
    });
  cancel_links.each([](CancelLink& link) { link.abandon(); });
}

void Pool::drop_all(const Say& reason) {
  while (Client* client = waiting.front()) client->fatal(reason);
  while (Client* client = joining.front()) client->fatal(reason);
  while (Client* client = clients.front()) client->fatal(reason);
  for (auto* l : {&idle, &active, &tested, &held_back, &login})
    while (Server* server = l->front()) server->disconnect(reason.text);
}

// ---- cancels ----

void Pool::cancels_lost(Server& server) {
  cancel_links.each([&](CancelLink& link) {
    if (link.target() == &server) link.target_lost();
  });
}

void Pool::queue_cancel(std::uint64_t client_id, ClientHandle requester) {
  queued_cancels_.push_back({client_id, requester, env.now()});
}

// As many as there are places for: one that is settled without a connection leaves its place to the next.
void Pool::next_cancel() {
  while (!queued_cancels_.empty()) {
    const QueuedCancel first = queued_cancels_.front();
    queued_cancels_.pop_front();
    Client* target = nullptr;
    active.each([&](Server& s) {
      if (s.client && s.client->id == first.client_id) target = s.client;
    });
    if (!target) {
      env.cancel_done(first.requester, "not sending cancel request for client that is now idle");
      continue;
    }
    const std::size_t others = queued_cancels_.size();
    CancelLink::begin(*target, first.requester);
    if (queued_cancels_.size() > others) {  // no place yet: it is the first still, and has waited since then
      queued_cancels_.pop_back();
      return queued_cancels_.push_front(first);
    }
  }
}

}  // namespace pgf::session
