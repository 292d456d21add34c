#include "worker/worker.h"

#include <fcntl.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "net/resolver.h"
#include "net/socket.h"
#include "session/cancel.h"
#include "worker/fleet.h"

namespace pgf::worker {

static constexpr Usec kTick = 333 * kMillisecond;    // PgBouncer's maintenance period: all timeouts have this grain
static constexpr Usec kLately = 500 * kMillisecond;  // who said something since then is talking
static constexpr Usec kLookAgain = kMillisecond;     // while clients are being moved

Worker::Worker(Fleet& fleet, int number) : session::Env(fleet.shared, fleet.log, number), fleet_(fleet) {
  resolver = fleet.resolver.get();
}

Worker::~Worker() {
  mailbox_.drain([](ToWorker* m) { delete m; });
}

void Worker::start(std::vector<int> tcp, std::vector<int> local) {
  prepare(std::move(tcp), std::move(local));
  thread_ = std::thread([this] { main(); });
}

void Worker::prepare(std::vector<int> tcp, std::vector<int> local) {
  config = fleet_.config;
  tls = fleet_.tls;
  listeners_ = std::move(tcp);
  unix_listeners_ = std::move(local);
}

void Worker::join() {
  if (thread_.joinable()) thread_.join();
}

void Worker::post(ToWorker::Body body) {
  mailbox_.push(new ToWorker(std::move(body)));
  if (net::Engine* e = wake_.load(std::memory_order_acquire)) e->wake();
}

std::uint64_t Worker::beat() const {
  net::Engine* e = wake_.load(std::memory_order_acquire);
  return e ? e->beat() : 0;
}

void Worker::main() {
  thread_id_.store(gettid());
  pthread_setname_np(pthread_self(), fmt::format("worker {}", worker).c_str());
  begin(make_engine());
  engine->run(*this);
  fleet_.loop_ended();
  end();
}

std::unique_ptr<net::Engine> Worker::make_engine() {
  try {
    if (fleet_.use_uring) return net::make_uring();
  } catch (const std::exception& e) {  // the probe worked, and so many of them may yet be more than a limit allows
    log(LogLevel::error, "worker {}: io_uring cannot be used, epoll instead: {}", worker, e.what());
  }
  return net::make_epoll();
}

void Worker::begin(std::unique_ptr<net::Engine> its_engine) {
  engine_ = std::move(its_engine);
  engine = engine_.get();
  cap_sends();
  listen_again();
  wake_.store(engine, std::memory_order_release);
  engine->wake();  // for what was posted before
  window_start_ = engine->now();
}

void Worker::cap_sends() {
  // A read is at most 48 kB, and so is a send: only smaller socket buffers need a cap.
  std::int64_t buffer = settings().tcp_socket_buffer;
  engine->send_cap = buffer < 49152 ? static_cast<std::size_t>(buffer) : 0;
}

void Worker::listen_again() {
  for (int fd : listeners_) engine->listen(fd, kTcp, this);
  for (int fd : unix_listeners_) engine->listen(fd, kUnix, this);
}

// SUSPEND: asked each turn until everything stands still and all that was queued is sent.
void Worker::freeze(Usec now) {
  bool still = true, late = settings().suspend_timeout > 0 && now - freeze_since_ > settings().suspend_timeout;
  each_pool([&](session::Pool& p) { still &= p.freeze(); });
  for (session::Client* c : clients_) {
    if (!c || c->freeze()) continue;
    if (late)
      c->disconnect("suspend_timeout");
    else
      still = false;
  }
  if (still || late) fleet_.to_control(Done{std::exchange(freeze_ticket_, 0)});
}

void Worker::thaw() {
  if (!std::exchange(freezing, false)) return;
  if (freeze_ticket_) fleet_.to_control(Done{std::exchange(freeze_ticket_, 0)});
  listen_again();
  for (session::Client* c : clients_)
    if (c) c->thaw();
  each_pool([](session::Pool& p) { p.thaw(); });
}

// The loop has ended for good: everything that it served goes, without a word to anybody.
void Worker::end() {
  wake_.store(nullptr, std::memory_order_release);
  mailbox_.drain([this](ToWorker* m) {
    std::unique_ptr<ToWorker> owner(m);
    if (auto* moved = std::get_if<MovedServer>(&m->body)) {
      ::close(moved->fd);
      delete moved->server;
    } else if (auto* client = std::get_if<MovedClient>(&m->body)) {
      ::close(client->fd);
      delete client->client;
    } else if (auto* fresh = std::get_if<NewClient>(&m->body)) {
      ::close(fresh->fd);
    }
  });
  for (session::Client* c : clients_) {
    if (!c) continue;
    c->stream->close();
    delete c;
  }
  prober_.abandon();
  each_pool([](session::Pool& p) { p.abandon(); });
  for (session::Client* c : dead_clients_) delete c;
  for (session::Server* s : dead_servers_) delete s;
  for (session::CancelLink* l : dead_links_) delete l;
  peers_.abandon();
  pools_.clear();
  engine_.reset();  // in the thread that made it
}

Usec Worker::on_turn(Usec now) {
  if (freeze_ticket_) freeze(now);
  if (now >= next_tick_) {
    next_tick_ = now + kTick;
    if (!freezing) tick(now);  // no timeout runs during SUSPEND
  }
  Usec next = next_tick_;
  queues.each([&](session::Pool& p) {
    if (Usec again = p.age_queue(now); again && again < next) next = again;
  });
  if (!gatherings_.empty() && go_on_gathering()) next = now;
  if (!move_orders_.empty() && move_clients(now)) next = std::min(next, now + kLookAgain);
  for (session::Client* c : dead_clients_) delete c;
  for (session::Server* s : dead_servers_) delete s;
  for (session::CancelLink* l : dead_links_) delete l;
  dead_clients_.clear();
  dead_servers_.clear();
  dead_links_.clear();
  peers_.sweep();
  return next;
}

// Who talks, for placement, and who takes too long to log in. Many thousand clients that only are there cost nothing.
void Worker::look_at_clients(Usec now) {
  if (!std::exchange(stirring, false)) return;
  int talking = 0, logging_in = 0;
  for (session::Client* c : clients_) {
    if (!c) continue;
    talking += c->talked_since(now - kLately);
    if (c->phase() > session::Client::Phase::password) continue;
    ++logging_in;
    c->seek_place();
    Usec limit = settings().client_login_timeout;
    if (limit > 0 && now - c->connect_time > limit) c->fatal(say::client_login_timeout);
  }
  active.store(talking, std::memory_order_relaxed);
  stirring |= talking > 0 || logging_in > 0;  // to be looked at again when that is over
}

void Worker::tick(Usec now) {
  look_at_clients(now);
  if (const std::uint64_t untold = slow_lines.untold(now)) {
    const LogField fields[] = {{"event", "slow_untold"}, {"worker", worker}, {"count", std::int64_t(untold)}};
    log.write(LogLevel::log, fmt::format("{} more slow waits, logins and transactions on worker {}", untold, worker),
              {}, fields);
  }
  if (worker == 0)  // a forced user's minimum is kept even before the first client
    for (const auto& [name, db] : config->databases)
      if (db.user && db.min_pool_size.value_or(static_cast<int>(settings().min_pool_size)) > 0)
        pool(shared.directory.pool(name, *db.user));
  prober_.tick(now);
  each_pool([now](session::Pool& p) { p.tick(now); });
  peers_.tick(now);
  for (auto& p : pools_)
    if (p && p->disused(now)) p.reset();
}

void Worker::on_wake() {
  mailbox_.drain([this](ToWorker* m) {
    std::unique_ptr<ToWorker> owner(m);
    std::visit([this](auto& body) { receive(body); }, m->body);
  });
}

// The kernel's hash spreads connections badly (design.md section 2): a socket goes to the least loaded worker. One that
// came over the Unix socket always does, as only one worker accepts there.
void Worker::on_accept(int fd, int tag) {
  int best = worker, mine = load.load(std::memory_order_relaxed);
  int least = mine - (tag == kTcp ? 1 : 0);  // a tie is no reason to move
  const std::uint64_t stuck = shared.stuck.load(std::memory_order_relaxed);
  const bool stays = tag == kTcp && settings().placement == config::Placement::kernel;
  for (int i = 0; i < shared.workers && !stays; ++i) {
    int theirs = fleet_.worker(i).load.load(std::memory_order_relaxed);
    if (i != worker && theirs < least && !(stuck >> i & 1)) {
      least = theirs;
      best = i;
    }
  }
  fleet_.worker(best).load.fetch_add(1, std::memory_order_relaxed);
  if (best == worker) return new_client(fd, tag == kUnix);
  ++clients_out_[static_cast<std::size_t>(pool::MoveReason::accept)];
  fleet_.worker(best).post(NewClient{fd, tag == kUnix});
}

void Worker::on_accept_error(int error, int) { log(LogLevel::error, "accept() failed: {}", strerror(error)); }

void Worker::new_client(int fd, bool unix_socket) {
  if (!unix_socket) net::set_tcp_options(fd, tcp_options());
  auto* client = new session::Client(*this, fd, unix_socket);  // buries itself
  if (freezing) client->freeze();
}

std::uint32_t Worker::add_client(session::Client* client) {
  stirring = true;
  ++client_count_;
  if (free_slots_.empty()) {
    clients_.push_back(client);
    return static_cast<std::uint32_t>(clients_.size() - 1);
  }
  std::uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  clients_[slot] = client;
  return slot;
}

void Worker::leave(session::Client* client) {
  clients_[client->slot] = nullptr;
  free_slots_.push_back(client->slot);
  --client_count_;
  load.fetch_sub(1, std::memory_order_relaxed);
}

void Worker::bury(session::Client* client) {
  leave(client);
  dead_clients_.push_back(client);
}
void Worker::bury(session::Server* server) { dead_servers_.push_back(server); }
void Worker::bury(session::CancelLink* link) { dead_links_.push_back(link); }

session::Client* Worker::find(session::ClientHandle handle) {
  if (handle.slot >= clients_.size()) return nullptr;
  session::Client* c = clients_[handle.slot];
  return c && c->id == handle.id ? c : nullptr;
}

session::Pool& Worker::pool(pool::PoolShared& shared_pool) {
  if (pools_.size() <= shared_pool.number) pools_.resize(shared_pool.number + 1);
  auto& slot = pools_[shared_pool.number];
  if (!slot) slot = std::make_unique<session::Pool>(*this, shared_pool);
  return *slot;
}

void Worker::ship(session::Server* server, int fd, int to) {
  ++servers_out_;
  fleet_.worker(to).post(MovedServer{server, &server->pool->shared, fd});
}

void Worker::ask_for_server(pool::PoolShared& p, int from, int count) {
  fleet_.worker(from).post(AskServers{&p, worker, count});
}

// Read by changing nothing: either we see the bit of a worker that begins to wait, or our bit word comes before its own
// change, and then it sees what became available. A plain load could be done before the store that made it so.
void Worker::poke(pool::PoolShared& p) {
  std::uint64_t waiting = p.waiting.fetch_or(0) | p.joining.fetch_or(0);
  for (int w = 0; waiting; ++w, waiting >>= 1)
    if ((waiting & 1) && w != worker) fleet_.worker(w).post(Poke{&p});
}

// A server connection is gone. Whoever is held up by a limit that it counted in may go on: this pool's waiters and,
// under max_db_connections or max_user_connections, those of its siblings.
void Worker::poke_after_close(pool::PoolShared& closed) {
  for (pool::PoolShared* p : fleet_.shared.directory.pools()) {
    bool sibling = &p->database == &closed.database || &p->user == &closed.user;
    if (!sibling) continue;
    if (shared.ledger) p->barred.store(false);
    poke(*p);
    if (p->number < pools_.size() && pools_[p->number] && pools_[p->number]->wanted()) post(Poke{p});
  }
}

// max_db_connections or max_user_connections is reached: the longest idle server of a sibling pool makes room. Or
// pool_size is, and a replication client wants a connection of its own: an idle server of this pool does.
void Worker::evict_idle(pool::PoolShared& wanted, pool::Permit::Refused why) {
  using Refused = pool::Permit::Refused;
  pool::PoolShared* victim = nullptr;
  int where = -1;
  Usec oldest = 0;
  for (pool::PoolShared* p : fleet_.shared.directory.pools()) {
    if (why == Refused::user ? &p->user != &wanted.user : &p->database != &wanted.database) continue;
    if ((p == &wanted) != (why == Refused::pool)) continue;
    for (int w = 0; w < shared.workers; ++w) {
      Usec since = 0;
      if (alone()) {
        session::Pool* local = p->number < pools_.size() ? pools_[p->number].get() : nullptr;
        if (local && !local->idle.empty()) since = local->idle.back()->idle_since;
      } else if (p->idle(w).count.load(std::memory_order_relaxed) > 0) {
        since = p->idle(w).oldest.load(std::memory_order_relaxed);
      }
      if (since && (!victim || since < oldest)) {
        victim = p;
        where = w;
        oldest = since;
      }
    }
  }
  if (victim) fleet_.worker(where).post(EvictIdle{victim, &wanted, worker});
}

void Worker::fail_waiters(pool::PoolShared& p, std::string sqlstate, std::string text) {
  std::uint64_t waiting = p.waiting.load(std::memory_order_acquire) | p.joining.load(std::memory_order_acquire);
  for (int w = 0; w < shared.workers; ++w)
    if (w != worker && (waiting >> w & 1)) fleet_.worker(w).post(FailWaiters{&p, sqlstate, text});
  pool(p).fail_waiters(sqlstate, text);
}

void Worker::cancel(const wire::SentKey& key, session::ClientHandle requester) {
  // First of all here, whatever number it names: peer_id may have been another one when the key was made.
  wire::SentKey ours = key;
  session::ClientHandle target = shared.cancels.find(ours.key);
  if (target.worker < 0 && settings().peer_id > 0) {
    wire::set_cancel_key_ttl(ours.key, wire::kCancelTtl);
    target = shared.cancels.find(ours.key);
  }
  if (target.worker >= 0) return fleet_.worker(target.worker).post(Cancel{target, ours, requester});
  auto forward = session::route_cancel(*config, key);
  if (!forward) {
    log(LogLevel::debug, "{}", forward.error());
    return cancel_done(requester, forward.error());
  }
  log(LogLevel::debug, "forwarding cancellation request to peer {}", session::peer_name(forward->peer));
  fleet_.worker(forward->peer % shared.workers).post(ForwardCancel{*forward, requester});
}

void Worker::cancel_done(session::ClientHandle requester, std::string_view reason) {
  ++cancels_[observe::cancel_outcome(reason)];
  if (requester.worker >= 0) fleet_.worker(requester.worker).post(CancelDone{requester, reason});
}

void Worker::resolve(std::string host, session::Server* server) {
  resolver->start(
      host,
      [this, server, id = server->id, p = &server->pool->shared](const std::vector<net::Address>& addresses,
                                                                 const std::string& error) {
        post(Resolved{server, id, p, addresses, error});
      },
      server->pool->entry().load_balance_hosts == config::LoadBalance::disable);
}

void Worker::resolve_peer(std::string host, std::uint64_t question) {
  resolver->start(host, [this, question](const std::vector<net::Address>& addresses, const std::string& error) {
    post(PeerResolved{question, addresses, error});
  });
}

bool Worker::judge(session::Client& client, auth::ExternalRequest request) {
  session::ClientHandle handle{worker, client.slot, client.id};
  return fleet_.judges->start(std::move(request), [this, handle](std::string reason) {
    post(Judged{handle, std::move(reason)});
  });
}

void Worker::console(session::Client& client, std::string command) {
  int socket = -1;
  auto peer = client.is_unix && client.is_admin ? net::peer_credentials(client.stream->fd()) : std::nullopt;
  if (peer && peer->uid == geteuid() && client.user && client.user->name == "pgbouncer")
    socket = fcntl(client.stream->fd(), F_DUPFD_CLOEXEC, 0);
  fleet_.to_control(
      ConsoleCommand{{worker, client.slot, client.id}, client.id, client.is_admin, socket, std::move(command)});
}

void Worker::cancel_console(session::Client& client) {
  fleet_.to_control(ConsoleCancel{{worker, client.slot, client.id}, client.is_admin});
}

}  // namespace pgf::worker
