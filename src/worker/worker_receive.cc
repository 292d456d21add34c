// What a worker does with each message (messages.h).
#include <sys/resource.h>
#include <time.h>

#include <algorithm>

#include "net/socket.h"
#include "session/cancel.h"
#include "worker/fleet.h"
#include "worker/worker.h"

namespace pgf::worker {

using session::Client;
using session::Server;

void Worker::receive(NewClient& m) {
  ++clients_in_[static_cast<std::size_t>(pool::MoveReason::accept)];
  new_client(m.fd, m.unix_socket);
}

void Worker::receive(MovedServer& m) {
  ++servers_in_;
  session::Pool& p = pool(*m.pool);
  m.server->arrive(p, m.fd);
  p.server_arrived(*m.server);
}

void Worker::receive(AskServers& m) {
  int sent = pool(*m.pool).lend(m.to, m.count);
  fleet_.worker(m.to).post(LentServers{m.pool, sent});
}

void Worker::receive(LentServers& m) { pool(*m.pool).lend_answered(m.count); }
void Worker::receive(Poke& m) { pool(*m.pool).service(); }
void Worker::receive(FailWaiters& m) { pool(*m.pool).fail_waiters(m.sqlstate, m.text); }
void Worker::receive(EvictIdle& m) {
  // In use again by now: another one may be idle.
  if (pool(*m.pool).evict_one()) return;
  m.wanted->barred.store(false);
  fleet_.worker(m.asker).post(Poke{m.wanted});
}

// All workers are asked; the first that has one gives it. If none is idle, whoever frees one next does (Pool::offer).
void Worker::receive(GiveUp& m) {
  const Usec before = now() - (m.aged ? pool::kFamine : 0);
  session::Pool* longest = nullptr;
  each_pool([&](session::Pool& p) {
    const bool concerned = m.pool       ? &p.shared == m.pool
                           : m.database ? &p.shared.database == m.database
                                        : &p.shared.user == m.user;
    if (!concerned || p.idle.empty() || p.idle.back()->idle_since > before) return;
    if (!longest || p.idle.back()->idle_since < longest->idle.back()->idle_since) longest = &p;
  });
  if (longest && m.stake->claim()) longest->evict_one();
}

void Worker::receive(Cancel& m) {
  Client* client = find(m.target);
  if (!client) {
    // It may have moved on since somebody looked. Whoever has it now has told so before it could say anything there.
    session::ClientHandle now_at = shared.cancels.find(m.key.key);
    if (now_at.worker < 0 || now_at == m.target) return cancel_done(m.requester, "failed cancel request");
    return fleet_.worker(now_at.worker).post(Cancel{now_at, m.key, m.requester});
  }
  if (!client->owns(m.key)) return cancel_done(m.requester, "failed cancel request");
  // It may have just moved here, and its query with it: that is read first.
  if (client->phase() == Client::Phase::idle && !m.looked && !client->stream->looks_idle()) {
    m.looked = true;
    return post(std::move(m));
  }
  session::CancelLink::begin(*client, m.requester);
}

void Worker::receive(CancelDone& m) {
  if (Client* client = find(m.requester)) client->cancel_settled(m.reason);
}

void Worker::receive(ForwardCancel& m) { peers_.forward(m.what, m.requester); }
void Worker::receive(PeerResolved& m) { peers_.resolved(m.question, m.addresses, m.error); }

void Worker::receive(Resolved& m) {
  Server* found = nullptr;  // the server may be gone, its address taken by another
  pool(*m.pool).login.each([&](Server& s) {
    if (&s == m.server && s.id == m.server_id) found = &s;
  });
  if (found) found->resolved(m.addresses, m.error);
}

void Worker::receive(Judged& m) {
  if (Client* client = find(m.client)) client->judged(m.reason);
}

void Worker::receive(HostMoved& m) {
  moved_hosts.insert_or_assign(std::move(m.host), std::move(m.addresses));
  each_pool([](session::Pool& p) { p.check_addresses(); });
}

void Worker::receive(ConsoleReply& m) {
  if (Client* client = find(m.client)) client->console_reply(m.bytes, m.close);
}

void Worker::receive(NewConfig& m) {
  auto old = std::exchange(config, m.config);
  tls = m.tls;
  cap_sends();
  each_pool([&](session::Pool& p) {
    config::Database before = p.entry();
    p.configure();
    if (p.shared.database.name == "pgbouncer") return;
    if (p.removed())
      p.drop_all(say::database_removed);
    else if (config::needs_new_servers(before, p.entry()))
      p.recycle();
    else if (before.host != p.entry().host || before.ports != p.entry().ports)
      p.check_places();
  });
  each_pool([](session::Pool& p) { p.service(); });
  peers_.configure();
  fleet_.to_control(Done{m.ticket});
}

void Worker::receive(Command& m) {
  auto concerned = [&](session::Pool& p) {
    return p.shared.database.name != "pgbouncer" && (!m.database || m.database == &p.shared.database);
  };
  switch (m.order) {
    case Order::pause:
      each_pool([&](session::Pool& p) {
        if (concerned(p)) p.pause_servers();
      });
      break;
    case Order::suspend:
      freezing = true;
      freeze_ticket_ = m.ticket;
      freeze_since_ = now();
      for (auto* l : {&listeners_, &unix_listeners_})
        for (int fd : *l) engine->unlisten(fd);
      return;  // answered when it is done
    case Order::resume:
      thaw();
      each_pool([&](session::Pool& p) {
        if (concerned(p)) p.service();
      });
      break;
    case Order::recycle:
      each_pool([&](session::Pool& p) {
        if (concerned(p)) p.recycle();
      });
      break;
    case Order::kill:
      each_pool([&](session::Pool& p) {
        if (concerned(p)) p.drop_all(say::database_removed);
      });
      break;
    case Order::stop_listening:
      for (int fd : listeners_) {
        engine->unlisten(fd);
        if (fleet_.plan.listeners_are_lent) continue;
        // Connections that the kernel has made already would be reset with the socket.
        for (int c; (c = ::accept4(fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) on_accept(c, kTcp);
        ::shutdown(fd, SHUT_RDWR);  // from here on a connect is refused
      }
      listeners_.clear();
      break;
    case Order::reject_waiters:
      each_pool([&](session::Pool& p) {
        if (!concerned(p)) return;
        p.pause_servers();
        p.fail_waiters(say::server_shutting_down.sqlstate, say::server_shutting_down.text);
      });
      break;
    case Order::stop:
      engine->stop();
      break;
  }
  fleet_.to_control(Done{m.ticket});
}

void Worker::receive(KillClient& m) {
  bool found = false;
  for (Client* c : clients_)
    if (c && c->id == m.id && c->phase() > Client::Phase::welcome) {
      c->fatal(say::forced);
      found = true;
      break;
    }
  fleet_.to_control(Done{m.ticket, found});
}

static Usec wall(Usec monotonic, Usec now) { return net::wall_now() - (now - monotonic); }

static std::string shown_state(const Client& c) {
  switch (c.phase()) {
    case Client::Phase::welcome:
    case Client::Phase::joining:
    case Client::Phase::waiting:
    case Client::Phase::lookup_wait:
      return "waiting";
    case Client::Phase::setting:
    case Client::Phase::active:
      return "active";
    case Client::Phase::console:
    case Client::Phase::asking:
      return "active";
    case Client::Phase::cancel:
      return "waiting_cancel_req";
    default:
      return "idle";
  }
}

static const char* shown_state(const Server& s) {
  switch (s.phase()) {
    case Server::Phase::setting:
    case Server::Phase::active:
    case Server::Phase::lookup:
      return "active";
    case Server::Phase::idle:
    case Server::Phase::moving:
      return "idle";
    case Server::Phase::resetting:
    case Server::Phase::checking:
      return "tested";
    case Server::Phase::being_canceled:
      return "being_canceled";
    default:
      return "new";
  }
}

static const char* shown(wire::Replication replication) {
  return replication == wire::Replication::logical    ? "logical"
         : replication == wire::Replication::physical ? "physical"
                                                      : "none";
}

static void local_end(observe::SocketRow& row, int fd) {
  auto local = net::local_address(fd);
  if (!local) return;
  row.local_addr = net::format_host(*local);
  row.local_port = local->is_unix() ? row.port : local->port();
}

void Worker::report_clients(observe::Report& report) {
  int app = shared.names.find("application_name");
  for (Client* c : clients_) {
    if (!c) continue;
    if (c->phase() <= Client::Phase::password) {
      ++report.login_clients;
      continue;
    }
    observe::SocketRow row;
    row.type = 'C';
    row.user = c->user ? c->user->name : "(nouser)";
    row.database = c->database ? c->database->name : "(nodb)";
    row.replication = shown(c->replication);
    row.state = shown_state(*c);
    row.addr = c->address();
    row.port = c->port();
    local_end(row, c->stream->fd());
    row.connect_time = wall(c->connect_time, now());
    row.request_time = wall(c->request_time, now());
    row.wait = c->wait_time_at(now());
    row.ptr = reinterpret_cast<std::uint64_t>(c);
    row.link = reinterpret_cast<std::uint64_t>(c->server);
    row.remote_pid = c->unix_pid();
    if (c->stream->tls()) row.tls = c->stream->tls()->info();
    if (c->params().size() > app && c->params().get(app)) row.application_name = *c->params().get(app);
    row.prepared_statements = static_cast<int>(c->statements());
    row.unsent = c->stream->queued();
    row.id = c->id;
    row.worker = worker;
    report.clients.push_back(std::move(row));
  }
}

void Worker::report_servers(observe::Report& report) {
  int app = shared.names.find("application_name");
  each_pool([&](session::Pool& p) {
    auto add = [&](Server& s) {
      observe::SocketRow row;
      row.type = 'S';
      row.user = p.server_user();
      row.database = p.shared.database.name;
      row.replication = shown(s.replication());
      row.state = shown_state(s);
      row.addr = s.address();
      row.port = s.port();
      if (s.stream) local_end(row, s.stream->fd());
      row.connect_time = wall(s.connect_time, now());
      row.request_time = wall(s.request_time, now());
      row.close_needed = s.close_needed;
      row.ptr = reinterpret_cast<std::uint64_t>(&s);
      row.link = reinterpret_cast<std::uint64_t>(s.client);
      row.remote_pid = s.backend_pid();
      if (s.stream && s.stream->tls() && s.stream->tls()->open()) row.tls = s.stream->tls()->info();
      if (s.params().get(app)) row.application_name = *s.params().get(app);
      row.prepared_statements = static_cast<int>(s.prepared());
      if (s.stream) row.unsent = s.stream->queued();
      row.id = s.id;
      row.worker = worker;
      if (s.health()) row.address = s.health()->text;
      report.servers.push_back(std::move(row));
    };
    for (auto* l : {&p.active, &p.idle, &p.tested, &p.login, &p.held_back, &p.moving}) l->each(add);
  });
  peers_.each_pool([&](session::PeerPool& p) {
    p.links.each([&](session::PeerLink& l) {
      observe::SocketRow row;
      row.type = 'S';
      row.user = "(nouser)";
      row.database = "(nodb)";
      row.state = l.sent() ? "active_cancel" : "new";
      row.addr = l.address();
      row.port = l.port();
      if (l.stream()) local_end(row, l.stream()->fd());
      row.connect_time = row.request_time = wall(l.started(), now());
      row.ptr = reinterpret_cast<std::uint64_t>(&l);
      row.id = l.id;
      row.worker = worker;
      report.servers.push_back(std::move(row));
    });
  });
}

void Worker::report_pool(observe::Report& report, session::Pool& p, bool latencies) {
  observe::PoolRow row;
  row.database = p.shared.database.name;
  row.user = p.server_user();
  row.cl_active = static_cast<int>(p.clients.size());
  row.cl_waiting = static_cast<int>(p.waiting.size() + p.joining.size());
  p.cancel_links.each([&](session::CancelLink& l) {
    ++(l.sent() ? row.cl_active_cancel_req : row.cl_waiting_cancel_req);
    ++row.sv_active_cancel;
  });
  row.cl_waiting_cancel_req += static_cast<int>(p.queued_cancels());
  row.sv_active = static_cast<int>(p.active.size());
  row.sv_being_canceled = static_cast<int>(p.held_back.size());
  row.sv_idle = static_cast<int>(p.idle.size() + p.moving.size());
  row.sv_tested = static_cast<int>(p.tested.size());
  row.sv_login = static_cast<int>(p.login.size());
  for (Client* first : {p.waiting.front(), p.joining.front()})
    if (first) row.maxwait = std::max(row.maxwait, now() - first->query_clock());
  row.pool_mode = p.policy().pool_mode;
  if (p.entry().hosts.size() > 1) row.load_balance_hosts = config::to_text(p.entry().load_balance_hosts);
  const session::PoolCounters& c = p.counters;
  row.counters = {c.assignments, c.xacts,     c.queries,       c.received,      c.sent,  c.xact_time,
                  c.query_time,  c.wait_time, c.client_parses, c.server_parses, c.binds, c.logins};
  if (latencies) row.latencies = p.latencies;
  row.pool_size = p.policy().pool_size;
  report.worker.servers_active += row.sv_active;
  report.worker.servers_idle += row.sv_idle;
  report.worker.waiting += row.cl_waiting;
  report.worker.transactions += c.xacts;
  report.worker.received += c.received;
  report.worker.sent += c.sent;
  report.pools.push_back(std::move(row));
}

void Worker::report_hosts(observe::Report& report) {
  std::vector<std::pair<const pool::Address*, observe::HostUse>> of_pool;
  each_pool([&](session::Pool& p) {
    of_pool.clear();
    auto add = [&](Server& s) {
      if (!s.health()) return;
      auto it = std::ranges::find(of_pool, s.health(), [](const auto& entry) { return entry.first; });
      if (it == of_pool.end()) it = of_pool.insert(it, {s.health(), {p.shared.database.name, s.health()->text, 0, 0}});
      ++it->second.open;
      it->second.active += std::string_view(shown_state(s)) == "active";
    };
    for (auto* l : {&p.active, &p.idle, &p.tested, &p.login, &p.held_back, &p.moving}) l->each(add);
    for (auto& entry : of_pool) report.host_use.push_back(std::move(entry.second));
  });
  // Whoever is connected there keeps an address remembered, so no server loses its times.
  std::erase_if(host_times, [&](const auto& entry) { return !shared.hosts.knows(entry.first); });
  for (const auto& [address, times] : host_times) report.host_times.push_back({address, times.query, times.connect});
}

void Worker::report_slow_waits(observe::Report& report) {
  for (const session::SlowWait& w : slow_waits.last())
    report.slow_waits.push_back({wall(w.ended, now()), w.waited, w.in_vain, w.database, w.user, w.servers, w.pool_size,
                                 w.client, w.addr, w.port, w.application_name, worker});
}

void Worker::report_peers(observe::Report& report) {
  peers_.each_pool([&](session::PeerPool& p) {
    observe::PeerPoolRow row;
    row.peer_id = p.id;
    row.cl_waiting_cancel_req = static_cast<int>(p.waiting());
    p.links.each([&](session::PeerLink& l) {
      ++(l.sent() ? row.sv_active_cancel : row.sv_login);
      row.cl_active_cancel_req += l.sent();
    });
    report.peer_pools.push_back(row);
  });
}

void Worker::receive(TakeOver& m) {
  load.fetch_add(static_cast<int>(std::ranges::count(m.rows, session::Handed::Task::client, &session::Handed::task)),
                 std::memory_order_relaxed);
  session::take_over(*this, m.rows);
}

void Worker::report_handed(observe::Report& report) {
  auto add = [&](auto& socket) {
    session::Handed row;
    if (socket.hand_over(row)) report.handed.push_back(std::move(row));
  };
  for (Client* c : clients_)
    if (c) add(*c);
  each_pool([&](session::Pool& p) {
    for (auto* l : {&p.active, &p.idle}) l->each(add);
  });
}

void Worker::receive(Gather& m) {
  Gathered answer{m.ticket, {}};
  if (m.parts & observe::kHanded) report_handed(answer.report);
  if (m.parts & (observe::kClients | observe::kLists)) report_clients(answer.report);
  if (m.parts & (observe::kServers | observe::kLists)) report_servers(answer.report);
  if (m.parts & observe::kLatencies) {
    answer.report.pools.reserve(pools_.size());
    gatherings_.push_back({m, std::move(answer), 0});
    return;
  }
  if (m.parts & observe::kFromPools) each_pool([&](session::Pool& p) { report_pool(answer.report, p, false); });
  finish(m, answer);
}

// Histograms of ten thousand pools are a lot to copy: a few per turn, so that no client waits for them.
bool Worker::go_on_gathering() {
  constexpr std::size_t kPoolsPerTurn = 100;
  Gathering& g = gatherings_.front();
  for (const std::size_t end = std::min(g.next + kPoolsPerTurn, pools_.size()); g.next < end; ++g.next)
    if (pools_[g.next]) report_pool(g.answer.report, *pools_[g.next], true);
  if (g.next < pools_.size()) return true;
  finish(g.what, g.answer);
  gatherings_.pop_front();
  return !gatherings_.empty();
}

void Worker::finish(Gather& m, Gathered& answer) {
  if (m.parts & observe::kHostUse) report_hosts(answer.report);
  if (m.parts & observe::kSlowWaits) report_slow_waits(answer.report);
  // Whoever is in no pool is logging in, so that 100,000 idle clients need not be looked at.
  if (!(m.parts & (observe::kClients | observe::kLists))) {
    int& left = answer.report.login_clients = client_count_;
    for (const observe::PoolRow& row : answer.report.pools) left -= row.cl_active + row.cl_waiting;
    left = std::max(left, 0);
  }
  report_peers(answer.report);
  observe::WorkerRow& w = answer.report.worker;
  w.worker = worker;
  w.engine = engine->name();
  w.clients = client_count_;
  timespec cpu;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
  w.cpu_seconds = static_cast<double>(cpu.tv_sec) + static_cast<double>(cpu.tv_nsec) / 1e9;
  Usec now_us = now(), cpu_us = static_cast<Usec>(w.cpu_seconds * 1e6);
  if (now_us - window_start_ > kSecond / 10) {  // share of the time since the last question, at least 0.1 s
    busy_share_ = static_cast<double>(cpu_us - busy_sum_) / static_cast<double>(now_us - window_start_);
    window_start_ = now_us;
    busy_sum_ = cpu_us;
  }
  w.busy = busy_share_;
  w.loop_turns = engine->turns;
  w.syscalls = engine->syscalls;
  w.clients_in = clients_in_;
  w.clients_out = clients_out_;
  w.servers_in = servers_in_;
  w.servers_out = servers_out_;
  w.cancels = cancels_;
  w.logins_refused = refused_logins;
  fleet_.to_control(std::move(answer));
}

}  // namespace pgf::worker
