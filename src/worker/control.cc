#include "worker/control.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>

#include "admin/reply.h"
#include "config/budget.h"
#include "observe/stats.h"
#include "observe/views.h"
#include "wire/write.h"

namespace pgf::worker {

Control::Control(Fleet& fleet, Loader loader, std::function<void(const config::Settings&)> reopen_log,
                 std::function<void(const std::string&)> notify, Usec manager_patience)
    : fleet_(fleet),
      loader_(std::move(loader)),
      reopen_log_(std::move(reopen_log)),
      notify_(std::move(notify)),
      placement_(fleet.shared.workers, fleet.plan.cores),
      watchdog_(fleet, notify_, manager_patience) {}

int Control::run(int signal_fd) {
  while (!exit_) {
    pollfd fds[2] = {{signal_fd, POLLIN, 0}, {fleet_.control_event, POLLIN, 0}};
    bool impatient = !waiting_.empty() || fleet_.shared.shutdown.load() || fleet_.shared.stuck.load() != 0 ||
                     fleet_.config->settings.placement == config::Placement::shuffle;
    int wait = !orders_.empty() ? 1 : impatient ? 20 : 333;
    if (!wanted_.empty() && !reporting_)
      wait = std::clamp(static_cast<int>((next_report_ - net::monotonic_now()) / kMillisecond) + 1, 1, wait);
    poll(fds, 2, wait);
    if (fds[0].revents & POLLIN) {
      signalfd_siginfo info;
      while (read(signal_fd, &info, sizeof info) == sizeof info) on_signal(static_cast<int>(info.ssi_signo));
    }
    if (fds[1].revents & POLLIN) {
      std::uint64_t count;
      [[maybe_unused]] ssize_t n = read(fleet_.control_event, &count, sizeof count);
    }
    turn(net::monotonic_now());
  }
  return *exit_;
}

void Control::turn(Usec now) {
  fleet_.control.drain([this](ToControl* m) {
    std::unique_ptr<ToControl> owner(m);
    std::visit([this](auto& body) { receive(body); }, m->body);
  });
  report_if_wanted(now);
  tell_pending();
  if (fleet_.shared.stuck.load() != 0) watchdog_.accept_for_stuck();
  tick(now);
}

// ---- tickets ----

std::uint64_t Control::ticket(std::function<void(Ticket&)> then) {
  tickets_.emplace(next_ticket_, Ticket{fleet_.shared.workers, false, {}, std::move(then)});
  return next_ticket_++;
}

// Each order has one ticket, and holds moves until that is settled.
void Control::tell(ToWorker::Body order) {
  fleet_.shared.moves.held.fetch_add(1);
  orders_.push_back(std::move(order));
  tell_pending();
}

void Control::tell_pending() {
  if (fleet_.shared.moves.under_way.load() != 0) return;  // no new one begins: soon
  for (; !orders_.empty(); orders_.pop_front()) fleet_.broadcast(orders_.front());
}

void Control::receive(Done& m) {
  auto it = tickets_.find(m.ticket);
  if (it == tickets_.end()) return;
  it->second.found |= m.found;
  carried_out(it);
}

void Control::receive(Gathered& m) {
  auto it = tickets_.find(m.ticket);
  if (it == tickets_.end()) return;
  it->second.reports.push_back(std::move(m.report));
  carried_out(it);
}

void Control::carried_out(std::map<std::uint64_t, Ticket>::iterator it) {
  if (--it->second.left > 0) return;
  Ticket t = std::move(it->second);
  tickets_.erase(it);
  fleet_.shared.moves.held.fetch_sub(1);
  if (t.then) t.then(t);
}

void Control::order(Order what, pool::DatabaseShared* database, std::function<void(Ticket&)> then) {
  tell(Command{what, database, ticket(std::move(then))});
}

void Control::gather(unsigned parts, std::function<void(observe::Fleet&)> then) {
  tell(Gather{parts, ticket([this, parts, then = std::move(then)](Ticket& t) {
                observe::Fleet fleet;
                std::ranges::sort(t.reports, {}, [](const observe::Report& r) { return r.worker.worker; });
                observe::merge(fleet, t.reports);
                fill(fleet, parts);
                then(fleet);
              })});
}

void Control::receive(ReportWanted& m) { wanted_.push_back(std::move(m)); }

// However often they are wanted, reports are made one at a time and for at most a tenth of the time: who has more work
// with them is asked less often. Whoever asks meanwhile shares the next one.
void Control::report_if_wanted(Usec now) {
  if (wanted_.empty() || reporting_ || now < next_report_) return;
  reporting_ = true;
  unsigned parts = observe::kNothing;
  for (const ReportWanted& w : wanted_) parts |= w.parts;
  gather(parts, [this, began = now, asked = std::exchange(wanted_, {})](observe::Fleet& fleet) {
    auto report = std::make_shared<const observe::Fleet>(std::move(fleet));
    for (const ReportWanted& w : asked) w.then(report);
    const Usec end = net::monotonic_now();
    next_report_ = end + std::min(9 * (end - began), kSecond);
    reporting_ = false;
  });
}

// ---- answers ----

void Control::reply(const Console& console, std::string bytes, bool close) {
  if (console.client.worker >= 0)
    fleet_.worker(console.client.worker).post(ConsoleReply{console.client, std::move(bytes), close});
}

void Control::fail(const Console& console, std::string_view text, std::string_view sqlstate) {
  fleet_.log(LogLevel::error, "{}", text);
  fleet_.log(LogLevel::warning, "pooler error: {}", text);
  std::string out;
  admin::error(out, text, sqlstate);
  reply(console, std::move(out));
}

void Control::done(const Console& console, std::string_view tag) {
  std::string out;
  admin::done(out, tag);
  reply(console, std::move(out));
}

void Control::cancelled(const Console& console) {
  std::string out;
  admin::error(out, say::cancelled.text, say::cancelled.sqlstate);
  reply(console, std::move(out));
}

// ---- commands ----

void Control::receive(ConsoleCommand& m) {
  Console console{m.client, m.is_admin};
  if (m.socket >= 0) console.socket = std::make_shared<const Descriptor>(m.socket);
  auto command = admin::parse(m.text);
  if (!command) return fail(console, command.error());
  if (command->needs_admin() && !m.is_admin) return fail(console, "admin access needed", "42501");
  if (!command->problem.empty()) return fail(console, command->problem);
  execute(console, *command);
}

// As in PgBouncer a cancel on the console ends a PAUSE, whoever gave it. It also ends what this console waits for, and
// says so: PgBouncer leaves its client without an answer.
void Control::receive(ConsoleCancel& m) {
  if (!m.is_admin || fleet_.shared.shutdown.load()) return;
  if (fleet_.shared.paused.exchange(false)) order(Order::resume, nullptr);
  std::erase_if(waiting_, [&](const Waiting& w) {
    if (w.console.client.worker != m.client.worker || w.console.client.id != m.client.id) return false;
    pool::DatabaseShared* database = w.database.empty() ? nullptr : fleet_.shared.directory.find_database(w.database);
    if (!w.close_needed && database && database->paused.exchange(false)) order(Order::resume, database);
    cancelled(w.console);
    return true;
  });
}

void Control::execute(Console console, const admin::Command& command) {
  using admin::Action;
  const admin::Verb& verb = *command.verb;
  if (!verb.console_refused.empty() && command.database == "pgbouncer")
    return fail(console, fmt::format("{}{}", verb.console_refused, command.database));
  auto say_log = [&] {
    if (command.database.empty())
      fleet_.log(LogLevel::log, "{} command issued", verb.name);
    else
      fleet_.log(LogLevel::log, "{} '{}' command issued", verb.name, command.database);
  };
  switch (verb.action) {
    case Action::show:
      return show(console, command);
    case Action::set:
      return set(console, command);
    case Action::reload: {
      say_log();
      if (std::string error = reload(); !error.empty()) return fail(console, error, admin::kReloadFailed);
      return publish([this, console](Ticket&) { done(console, "RELOAD"); });
    }
    case Action::pause:
      say_log();
      return pause(console, command);
    case Action::resume:
      say_log();
      return resume(console, command);
    case Action::disable:
      say_log();
      return able(console, command, true);
    case Action::enable:
      say_log();
      return able(console, command, false);
    case Action::kill:
      say_log();
      return kill(console, command);
    case Action::reconnect:
      say_log();
      return reconnect(console, command);
    case Action::wait_close:
      say_log();
      if (!command.database.empty() && !known_database(command.database, true))
        return fail(console, fmt::format("no such database: {}", command.database));
      waiting_.push_back({console, command.tag(), command.database, true});
      return;
    case Action::kill_client:
      tell(KillClient{{}, command.client_id, ticket([this, console, tag = command.tag()](Ticket& t) {
                        if (t.found)
                          done(console, tag);
                        else
                          fail(console, "client not found");
                      })});
      return;
    case Action::suspend:
      say_log();
      return suspend(console, command);
    case Action::shutdown:
      if (command.shutdown == admin::ShutdownMode::now)
        fleet_.log(LogLevel::log, "SHUTDOWN command issued");
      else
        fleet_.log(LogLevel::log, "SHUTDOWN {} command issued",
                   command.shutdown == admin::ShutdownMode::wait_for_servers ? "WAIT_FOR_SERVERS" : "WAIT_FOR_CLIENTS");
      if (ending_ && command.shutdown != admin::ShutdownMode::now) return fail(console, "already shutting down");
      shutdown(command.shutdown, [this, console, tag = command.tag()] { done(console, tag); });
      return;
  }
}

void Control::set(Console console, const admin::Command& command) {
  if (command.parameter) {
    std::string out;
    admin::set_ignored(out);
    return reply(console, std::move(out));
  }
  auto next = std::make_shared<config::Config>(*fleet_.config);
  if (auto changed = config::set(next->settings, command.key, command.value); !changed) {
    fleet_.log(LogLevel::error, "SET {}: {}", command.key, changed.error());
    return fail(console, "SET failed");
  }
  if (!config::is_live(command.key)) return done(console, command.tag());  // accepted and ignored, as PgBouncer does
  if (std::string problem = config::check_budget(*next); !problem.empty()) return fail(console, problem);
  // Certificate and key cannot be changed in one SET: the pair that does not fit waits for the other half.
  bool tls_failed = false;
  if (command.key.find("_tls_") != std::string::npos || command.key.find("_tls13_") != std::string::npos)
    tls_failed = !renew_tls(*next);
  reopen_log_(next->settings);
  fleet_.resolver->configure(resolver_times(next->settings));
  fleet_.config = std::move(next);
  publish([this, console, tag = command.tag(), tls_failed](Ticket&) {
    std::string out;
    if (tls_failed) wire::notice(out, "TLS settings could not be applied, still using old configuration");
    admin::done(out, tag);
    reply(console, std::move(out));
  });
}

// Certificates and rules anew from the files. On an error those in force stay.
bool Control::renew_tls(const config::Config& next) {
  auto setup = session::make_tls_setup(next, fleet_.tls.get());
  if (!setup) {
    fleet_.log(LogLevel::error, "{}", setup.error());
    return false;
  }
  servers_outdated_ |= !fleet_.tls->same_for_servers(**setup);
  fleet_.tls = *std::move(setup);
  return true;
}

// Sends out fleet_.config and fleet_.tls. If connections to servers have to be replaced because of TLS, their
// generation ends only when no worker opens any with the old rules any more.
void Control::publish(std::function<void(Ticket&)> then) {
  bool renew_servers = std::exchange(servers_outdated_, false);
  tell(NewConfig{fleet_.config, fleet_.tls, ticket([this, renew_servers, then = std::move(then)](Ticket& t) {
                   if (!renew_servers) return then(t);
                   end_generation(nullptr);
                   order(Order::recycle, nullptr, then);
                 })});
}

void Control::end_generation(pool::DatabaseShared* database) {
  for (pool::PoolShared* p : fleet_.shared.directory.pools()) {
    if (!database || &p->database == database) p->end_generation();
  }
}

// True: some list has it.
bool Control::end_generation_of_host(pool::DatabaseShared* database, const std::string& host, int port) {
  bool found = false;
  auto look_at = [&](const config::Database& db) {
    for (std::size_t i = 0; i < db.hosts.size(); ++i) {
      const int its_port = db.ports[db.ports.size() > i ? i : 0];
      if (db.hosts[i] != host || (port && port != its_port)) continue;
      fleet_.shared.hosts.place(db.name, host, its_port)->generation.fetch_add(1, std::memory_order_relaxed);
      found = true;
    }
  };
  for (const auto& [name, db] : fleet_.config->databases)
    if (!database || name == database->name) look_at(db);
  for (pool::DatabaseShared* d : fleet_.shared.directory.databases())
    if (d->is_auto.load() && (!database || d == database) && !fleet_.config->databases.contains(d->name))
      if (auto db = config::find_database(*fleet_.config, d->name)) look_at(*db);
  return found;
}

// Loads the files; on success fleet_.config is the new generation, and the caller sends it out.
std::string Control::reload() {
  static constexpr auto kFailed = "RELOAD failed, see logs for additional details";
  config::LoadResult loaded = loader_();
  for (const std::string& error : loaded.errors) fleet_.log(LogLevel::error, "{}", error);
  if (!loaded.config) return kFailed;
  auto next = std::make_shared<config::Config>(*loaded.config);
  // Who started with a broken file and has not mended it may still reload the rest.
  const config::Config& running = *fleet_.config;
  if ((next->auth_file_broken && !running.auth_file_broken) ||
      (next->hba_broken && running.hba && !running.hba_broken)) {
    for (const std::string& warning : next->warnings) fleet_.log(LogLevel::error, "{}", warning);
    return kFailed;
  }
  config::keep_on_reload(*next, *fleet_.config);
  if (std::string problem = config::check_budget(*next); !problem.empty()) {
    fleet_.log(LogLevel::error, "{}", problem);
    return kFailed;
  }
  if (!renew_tls(*next)) {
    fleet_.log(LogLevel::error, "TLS configuration could not be reloaded, keeping old configuration");
    return kFailed;
  }
  for (const std::string& warning : next->warnings) fleet_.log(LogLevel::warning, "{}", warning);
  for (pool::PoolShared* p : fleet_.shared.directory.pools()) {
    auto before = config::find_database(*fleet_.config, p->database.name),
         after = config::find_database(*next, p->database.name);
    if (before && !after)
      fleet_.log(LogLevel::warning, "dropping database '{}' as it does not exist anymore or inactive auto-database",
                 p->database.name);
    if (before && after && config::needs_new_servers(*before, *after)) p->end_generation();
  }
  for (const auto& [id, peer] : fleet_.config->peers)
    if (!next->peers.contains(id))
      fleet_.log(LogLevel::warning, "dropping peer {} as it does not exist anymore", session::peer_name(id));
  reopen_log_(next->settings);
  fleet_.resolver->configure(resolver_times(next->settings));
  fleet_.resolver->reopen();
  fleet_.config = std::move(next);
  fleet_.shared.hosts.keep(*fleet_.config);
  return {};
}

pool::DatabaseShared* Control::known_database(const std::string& name, bool create) {
  if (!config::find_database(*fleet_.config, name)) return nullptr;
  const bool named = fleet_.config->databases.contains(name);
  if (!create && !named) return fleet_.shared.directory.find_database(name);
  pool::DatabaseShared& database = fleet_.shared.directory.database(name);
  if (!named) database.is_auto.store(true);
  return &database;
}

void Control::pause(Console console, const admin::Command& command) {
  if (fleet_.shared.paused.load() || fleet_.shared.suspended.load()) return fail(console, "already suspended/paused");
  pool::DatabaseShared* database = nullptr;
  if (command.database.empty()) {
    fleet_.shared.paused.store(true);
  } else {
    database = known_database(command.database, true);
    if (!database) return fail(console, fmt::format("no such database: {}", command.database));
    database->paused.store(true);
  }
  order(Order::pause, database, [this, console, database, tag = command.tag(), name = command.database](Ticket&) {
    if (!(database ? database->paused : fleet_.shared.paused).load()) return cancelled(console);  // in the meantime
    waiting_.push_back({console, tag, name, false});
  });
}

void Control::suspend(Console console, const admin::Command& command) {
  if (fleet_.shared.paused.load() || fleet_.shared.suspended.load()) return fail(console, "already suspended/paused");
  for (pool::DatabaseShared* d : fleet_.shared.directory.databases())
    if (d->paused.load()) return fail(console, "cannot suspend with paused databases");
  fleet_.shared.suspended.store(true);
  order(Order::suspend, nullptr, [this, console, tag = command.tag()](Ticket&) { done(console, tag); });
}

void Control::resume(Console console, const admin::Command& command) {
  pool::DatabaseShared* database = nullptr;
  if (ending_) return fail(console, "pooler is shutting down");
  if (command.database.empty()) {
    bool paused = fleet_.shared.paused.exchange(false), suspended = fleet_.shared.suspended.exchange(false);
    if (!paused && !suspended) return fail(console, "pooler is not paused/suspended");
  } else {
    database = known_database(command.database, false);
    if (!database) return fail(console, fmt::format("no such database: {}", command.database));
    if (!database->paused.exchange(false))
      return fail(console, fmt::format("database {} is not paused", command.database));
  }
  order(Order::resume, database, [this, console, tag = command.tag()](Ticket&) { done(console, tag); });
}

void Control::able(Console console, const admin::Command& command, bool disabled) {
  pool::DatabaseShared* database = known_database(command.database, disabled);
  if (!database) return fail(console, fmt::format("no such database: {}", command.database));
  database->disabled.store(disabled);
  done(console, command.tag());
}

void Control::kill(Console console, const admin::Command& command) {
  if (fleet_.shared.paused.load() || fleet_.shared.suspended.load()) return fail(console, "already suspended/paused");
  pool::DatabaseShared* database = nullptr;
  if (command.database.empty()) {
    for (pool::PoolShared* p : fleet_.shared.directory.pools())
      if (p->database.name != "pgbouncer") p->database.paused.store(true);
  } else {
    database = known_database(command.database, true);
    if (!database) return fail(console, fmt::format("no such database: {}", command.database));
    database->paused.store(true);
  }
  order(Order::kill, database, [this, console, tag = command.tag()](Ticket&) { done(console, tag); });
}

void Control::reconnect(Console console, const admin::Command& command) {
  pool::DatabaseShared* database = nullptr;
  if (!command.database.empty()) {
    database = known_database(command.database, true);
    if (!database) return fail(console, fmt::format("no such database: {}", command.database));
  }
  if (!command.host.empty()) {
    if (!end_generation_of_host(database, command.host, command.port)) {
      const std::string port = command.port ? fmt::format(" with port {}", command.port) : "";
      if (!database) return fail(console, fmt::format("no database has a host {}{}", command.host, port));
      return fail(console, fmt::format("database {} has no host {}{}", database->name, command.host, port));
    }
    return order(Order::recycle, database, [this, console, tag = command.tag()](Ticket&) { done(console, tag); });
  }
  end_generation(database);
  order(Order::recycle, database, [this, console, tag = command.tag()](Ticket&) { done(console, tag); });
}

void Control::shutdown(admin::ShutdownMode mode, std::function<void()> then) {
  if (mode == admin::ShutdownMode::now) {
    exit_ = 0;
    return;
  }
  ending_ = true;
  // First the port is closed everywhere, then logins are refused: in a rolling restart whoever comes in between is the
  // sibling's, not turned away.
  order(Order::stop_listening, nullptr, [this, mode, then = std::move(then)](Ticket&) {
    const bool servers_only = mode == admin::ShutdownMode::wait_for_servers;
    fleet_.shared.shutdown.store(servers_only ? 1 : 2);
    if (servers_only) return order(Order::reject_waiters, nullptr, [then](Ticket&) { then(); });
    then();
  });
}

// ---- signals and time ----

void Control::on_signal(int number) {
  const bool ending = ending_;
  auto log = [this](std::string_view text) { fleet_.log(LogLevel::log, "{}", text); };
  if (number == SIGTERM || number == SIGINT) notify_("STOPPING=1");
  if (fleet_.shared.suspended.load() && (number == SIGTERM || number == SIGINT)) {
    log(number == SIGTERM ? "got SIGTERM while suspended, fast exit" : "got SIGINT while suspended, fast exit");
    exit_ = 1;
    return;
  }
  switch (number) {
    case SIGHUP:
      log("got SIGHUP, re-reading config");
      notify_(fmt::format("RELOADING=1\nMONOTONIC_USEC={}", net::monotonic_now()));
      if (!reload().empty()) return notify_("READY=1");
      publish([this](Ticket&) { notify_("READY=1"); });
      return;
    case SIGTERM:
      log(ending ? "got SIGTERM while shutting down, fast exit"
                 : "got SIGTERM, shutting down, waiting for all clients disconnect");
      return shutdown(ending ? admin::ShutdownMode::now : admin::ShutdownMode::wait_for_clients);
    case SIGINT:
      log(ending ? "got SIGINT while shutting down, fast exit"
                 : "got SIGINT, shutting down, waiting for all servers connections to be released");
      return shutdown(ending ? admin::ShutdownMode::now : admin::ShutdownMode::wait_for_servers);
    case SIGQUIT:
      log("got SIGQUIT, fast exit");
      return shutdown(admin::ShutdownMode::now);
    case SIGUSR1:
      if (fleet_.shared.suspended.load() || fleet_.shared.paused.exchange(true))
        return log("got SIGUSR1, but already paused/suspended");
      log("got SIGUSR1, pausing all activity");
      return order(Order::pause, nullptr);
    case SIGUSR2:
      if (ending) return log("got SIGUSR2 while shutting down, ignoring");
      if (fleet_.shared.suspended.exchange(false)) {
        log("got SIGUSR2, continuing from SUSPEND");
        return order(Order::resume, nullptr);
      }
      if (!fleet_.shared.paused.exchange(false)) return log("got SIGUSR2, but not paused/suspended");
      log("got SIGUSR2, continuing from PAUSE");
      return order(Order::resume, nullptr);
    default:
      return;
  }
}

void Control::tick(Usec now) {
  check_waiting();
  place(now);
  if (now < next_tick_) return;
  next_tick_ = now + kSecond / 3;
  if (period_start_ == 0) period_start_ = now;
  if (watchdog_.look(now)) {
    fleet_.log(LogLevel::fatal, "a worker is stuck for longer than watchdog_abort, giving up");
    notify_("STOPPING=1");
    std::_Exit(1);  // it cannot be joined; a supervisor starts us anew
  }
  check_exit();
  forget_auto_databases(now);
  if (pool::DatabaseShared* own = fleet_.shared.directory.find_database("pgbouncer");
      fleet_.shared.suspended.load() && own && own->clients.value() == 0) {
    fleet_.log(LogLevel::log, "admin disappeared when suspended, doing RESUME");
    fleet_.shared.suspended.store(false);
    order(Order::resume, nullptr);
  }
  if (now - period_start_ >= fleet_.config->settings.stats_period * kSecond) end_period(now);
}

void Control::check_waiting() {
  if (waiting_.empty() || waiting_asked_) return;
  waiting_asked_ = true;
  gather(observe::kServers, [this](observe::Fleet& fleet) {
    waiting_asked_ = false;
    auto finished = [&](const Waiting& w) {
      for (const observe::SocketRow& s : fleet.servers) {
        if (!w.database.empty() && s.database != w.database) continue;
        if (w.close_needed ? s.close_needed : s.state == "active" || s.state == "tested" || s.state == "being_canceled")
          return false;
      }
      return true;
    };
    // By a RESUME or a cancel on another console: whoever waits must not be told that it is paused.
    auto undone = [&](const Waiting& w) {
      if (w.close_needed) return false;
      if (w.database.empty()) return !fleet_.shared.paused.load();
      pool::DatabaseShared* database = fleet_.shared.directory.find_database(w.database);
      return database && !database->paused.load();
    };
    std::vector<Waiting> still;
    for (Waiting& w : waiting_) {
      if (undone(w))
        cancelled(w.console);
      else if (finished(w))
        done(w.console, w.tag);
      else
        still.push_back(std::move(w));
    }
    waiting_ = std::move(still);
  });
}

void Control::check_exit() {
  int mode = fleet_.shared.shutdown.load();
  if (mode == 2 && fleet_.shared.clients.value() == 0) {
    fleet_.log(LogLevel::log, "client connections dropped, exiting");
    exit_ = 0;
  }
  if (mode == 1) {
    int servers = 0;
    for (pool::PoolShared* p : fleet_.shared.directory.pools()) servers += p->servers.value();
    if (servers == 0) {
      fleet_.log(LogLevel::log, "server connections dropped, exiting");
      exit_ = 0;
    }
  }
}

// autodb_idle_timeout. The object stays, as everybody may hold a reference; what was said about it goes.
void Control::forget_auto_databases(Usec now) {
  const Usec limit = fleet_.config->settings.autodb_idle_timeout;
  for (pool::DatabaseShared* d : fleet_.shared.directory.databases()) {
    if (!d->is_auto.load() || d->clients.value() > 0 || d->servers.value() > 0) {
      unused_since_.erase(d);
      continue;
    }
    Usec since = unused_since_.try_emplace(d, now).first->second;
    if (limit <= 0 || now - since <= limit) continue;
    unused_since_.erase(d);
    d->is_auto.store(false);
    d->paused.store(false);
    d->disabled.store(false);
    fleet_.log(LogLevel::warning, "dropping database '{}' as it does not exist anymore or inactive auto-database",
               d->name);
  }
}

void Control::end_period(Usec now) {
  Usec length = now - period_start_;
  period_start_ = now;
  gather(observe::kStats, [this, length](observe::Fleet& fleet) {
    observe::set_growth(fleet.stats, last_stats_);
    period_ = length;
    last_stats_ = fleet.stats;
    observe::Counters sum;
    for (const auto& s : fleet.stats) sum += s.period;
    observe::Counters a = observe::averages(sum, length);
    std::string text = fmt::format(
        "stats: {} xacts/s, {} queries/s, {} client parses/s, {} server parses/s, {} binds/s, {} client "
        "logins/s, in {} B/s, "
        "out {} B/s, xact {} us, query {} us, wait {} us",
        a.xact_count, a.query_count, a.client_parse_count, a.server_parse_count, a.bind_count, a.client_login_count,
        a.received, a.sent, a.xact_time, a.query_time, a.wait_time);
    if (fleet_.config->settings.log_stats) fleet_.log(LogLevel::log, "{}", text);
    for (std::size_t at = 0; (at = text.find(" us", at)) != text.npos; at += 4) text.replace(at, 3, " µs");
    notify_("STATUS=" + text);
  });
}

}  // namespace pgf::worker
