// A server connection's host: which one to try, the next one after a failure, and whether it is (still) what
// target_session_attrs asks for. The decisions are in pool/hosts.h.
#include <fmt/format.h>
#include <string.h>

#include <algorithm>

#include "session/attempt.h"
#include "session/pool.h"
#include "session/server.h"
#include "wire/read.h"
#include "wire/write.h"

namespace pgf::session {

// Between two attempts at a list of hosts, if it is worth the try: what takes over must be found soon.
static constexpr Usec kRetryHosts = 400 * kMillisecond;
// How long one host's name is waited for if there are others.
static constexpr Usec kNamePatience = kSecond;
// So often one idle server of an address is asked what it is.
static constexpr Usec kRoleCheck = kSecond;
static constexpr std::string_view kAskRole = "show default_transaction_read_only;select pg_catalog.pg_is_in_recovery()";

bool Attempt::again() {
  const bool left = left_returning || (left_out && !mismatched);
  if (left && !second_walk) {
    second_walk = true;
  } else if (target == config::TargetSession::prefer_standby) {
    target = config::TargetSession::any;
    second_walk = left_out = left_returning = mismatched = false;
    tried.clear();
  } else {
    return false;
  }
  at = next = 0;
  addresses.clear();
  return true;
}

void Attempt::note(std::string_view text) {
  if (!report.empty()) report += '\n';
  report += text;
}

bool is_socket(std::string_view host) { return host.empty() || host.starts_with('/') || host.starts_with('@'); }

std::optional<net::Address> known_address(std::string_view host, int port) {
  if (is_socket(host)) return net::unix_address(fmt::format("{}/.s.PGSQL.{}", host, port));
  return net::parse_ip(host, static_cast<std::uint16_t>(port));
}

std::string address_key(const net::Address& address) {
  return address.is_unix() ? net::unix_path(address) : net::format_address(address);
}

std::optional<net::Address> parse_address_key(const std::string& key) {
  if (is_socket(key)) return net::unix_address(key);
  std::size_t colon = key.rfind(':');
  if (colon == key.npos) return std::nullopt;
  return net::parse_ip(key.substr(0, colon), static_cast<std::uint16_t>(atoi(key.c_str() + colon + 1)));
}

std::vector<Attempt::Element> list_hosts(Env& env, const config::Database& entry) {
  std::vector<Attempt::Element> elements;
  for (const auto& [host, port] : config::hosts_of(entry, env.settings()))
    elements.push_back({host, port, env.shared.hosts.place(entry.name, host, port)});
  return elements;
}

// ---- the walk ----

void Server::start() {
  if (!attempt_) {
    const config::Database& entry = pool->entry();
    attempt_ = std::make_unique<Attempt>();
    Attempt& a = *attempt_;
    a.elements = list_hosts(env(), entry);
    a.target = entry.target_session_attrs;
    std::vector<pool::Place*> places;
    for (const auto& element : a.elements) places.push_back(element.place.get());
    a.choice = std::ranges::any_of(places, [&](pool::Place* p) { return p != places[0]; });
    std::uint32_t turn = pool->shared.host_cursor.fetch_add(1, std::memory_order_relaxed);
    a.order = env().shared.hosts.order(entry.load_balance_hosts, places, turn, env().now());
    env().shared.hosts.likely_first(a.order, places, a.target, pool->shared.database.writer);
  }
  next_address();
}

// Dials the next address of the attempt, or asks for the next name's; ends it if none is left.
void Server::next_address() {
  Attempt& a = *attempt_;
  pool::Hosts& hosts = env().shared.hosts;
  while (true) {
    while (a.next < a.addresses.size()) {
      const net::Address address = a.addresses[a.next++];
      std::shared_ptr<pool::Address> known = hosts.address(address_key(address));
      if (a.tried.contains(known->text)) continue;
      if (a.choice) {
        pool::Hosts::Admit admit = hosts.admit(*known, env().now());
        if (admit == pool::Hosts::Admit::out && (!a.second_walk || a.mismatched)) {
          a.left_out = true;
          continue;
        }
        if (admit == pool::Hosts::Admit::returning && !a.second_walk) {
          a.left_returning = true;
          continue;
        }
        patience_ = admit == pool::Hosts::Admit::out ? pool::Hosts::kPatience : hosts.patience(*known);
      }
      a.tried.insert(known->text);
      health_ = std::move(known);
      return dial(address);
    }
    if (a.at == a.order.size() && !a.again()) return attempt_over("", "no host can be used", false);
    const Attempt::Element element = a.elements[a.order[a.at++]];
    take_place(element.place);
    port_ = element.port;
    host_ = is_socket(element.host) ? "" : element.host;
    a.next = 0;
    a.addresses.clear();
    if (auto address = known_address(element.host, port_)) {
      a.addresses.push_back(*address);
    } else if (is_socket(element.host)) {
      return login_failed("", "connect failed", false);
    } else {
      patience_ = a.choice ? kNamePatience : 0;
      return env().resolve(host_, this);
    }
    hosts.resolved(*place_, {hosts.address(address_key(a.addresses[0]))});
  }
}

void Server::resolved(const std::vector<net::Address>& addresses, std::string_view error) {
  if (phase_ != Phase::resolving) return;
  if (addresses.empty()) {
    log(LogLevel::warning, fmt::format("DNS lookup failed: {}: {}", host_, error));
    why_ = error;
    env().shared.hosts.unresolved(*place_, env().now(), error);
    return login_failed("", "server DNS lookup failed", false);
  }
  Attempt& a = *attempt_;
  pool::Hosts& hosts = env().shared.hosts;
  std::vector<std::shared_ptr<pool::Address>> known;
  for (net::Address address : addresses) {
    address.set_port(static_cast<std::uint16_t>(port_));
    a.addresses.push_back(address);
    known.push_back(hosts.address(address_key(address)));
  }
  hosts.resolved(*place_, std::move(known));
  a.choice |= a.addresses.size() > 1;
  if (pool->entry().load_balance_hosts == config::LoadBalance::random) hosts.shuffle(a.addresses);
  connect_time = env().now();
  next_address();
}

std::string Server::host_report(std::string_view reason) const {
  if (!address_.length && !host_.empty())
    return fmt::format("could not translate host name \"{}\" to address: {}", host_, reason);
  if (!address_.length || address_.is_unix())
    return fmt::format("connection to server on socket \"{}\" failed: {}",
                       address_.length ? net::unix_path(address_) : "?", reason);
  std::string ip = net::format_host(address_);
  return fmt::format("connection to server at \"{}\"{}, port {} failed: {}", host_,
                     ip == host_ ? "" : fmt::format(" ({})", ip), port_, reason);
}

// This address is through. One more is tried by a new server, which inherits the place in the limits; the client sees
// nothing of it.
void Server::try_next(std::string_view sqlstate, std::string_view text, bool from_server) {
  Attempt& a = *attempt_;
  a.note(host_report(why_.empty() ? text : why_));
  if (sqlstate == "57P03" && health_) env().shared.hosts.resign(pool->shared.database.writer, *health_);
  if (from_server && sqlstate != "57P03" && a.refused.empty()) a.refused = sqlstate;
  auto* successor = new Server(*pool, std::move(permit_));
  successor->attempt_ = std::move(attempt_);
  // It may be one more address of the same host.
  successor->host_ = host_;
  successor->port_ = port_;
  successor->take_place(place_);
  connecting_flag_ = false;  // the next one's
  if (client) std::exchange(client, nullptr)->server = nullptr;
  Pool& p = *pool;
  disconnect(text);
  p.list(*successor, Phase::resolving);
  successor->start();
}

// No address is left. A server's own refusal is for the clients that wait, unless some other server still works;
// without one (refused connect, timeout, nobody is what is wanted) they keep waiting.
void Server::attempt_over(std::string_view sqlstate, std::string_view text, bool from_server) {
  Attempt a = std::move(*attempt_);
  const bool list = a.choice || !a.report.empty() || pool->entry().target_session_attrs != config::TargetSession::any;
  std::string state(sqlstate), reason(text);
  if (a.report.empty()) {
    a.note(host_report(why_.empty() ? text : why_));
    from_server &= sqlstate != "57P03";  // it is starting up or shutting down: worth the wait, and no news to others
  } else {
    state = a.refused;
    from_server = !a.refused.empty();
  }
  pool::PoolShared& shared = pool->shared;
  Usec pause = env().settings().server_login_retry;
  if (list && !from_server) pause = std::min(pause, kRetryHosts);
  shared.retry_at.store(env().now() + pause, std::memory_order_relaxed);
  const bool news = shared.unreachable() != a.report;
  shared.set_unreachable(a.report);
  if (list && !from_server) shared.last_failed.store(false, std::memory_order_release);
  if (list) {
    if (news)
      log(LogLevel::warning,
          fmt::format("no host of database {} can be used: {}", pool->shared.database.name, a.report));
    if (from_server) reason = a.report;
  }
  if (from_server) {
    shared.set_login_error({state, reason});
    shared.last_failed.store(true, std::memory_order_release);
  }
  Env& e = env();
  // Without a welcome the pool has been marked as outdated: servers that are left will not serve anybody else.
  bool usable = shared.usable.load(std::memory_order_acquire) > 0 && shared.welcome();
  bool tell = from_server && !usable;
  disconnect(list ? "no host can be used" : std::string_view(reason));
  if (tell) e.fail_waiters(shared, state, reason);
}

// ---- news about the host ----

void Server::note_answer() {
  if (answered_) return;
  answered_ = true;
  if (health_) env().shared.hosts.answered(*health_, env().now(), env().now() - connect_time);
}

void Server::note_failure(std::string_view reason) {
  if (answered_ || !health_) return;
  if (promised_tls_ && !timed_out_) return note_answer();  // it was heard, though TLS did not come about
  if (std::exchange(timed_out_, false) && attempt_->choice)
    env().shared.hosts.silent(*health_, env().now(), reason);
  else
    env().shared.hosts.failed(*health_, env().now(), reason);
}

void Server::look_at_login_time(Usec limit) {
  Usec age = env().now() - connect_time;
  if (patience_ > 0 && !answered_) limit = limit > 0 ? std::min(limit, patience_) : patience_;
  if (limit <= 0 || age <= limit) return;
  timed_out_ = true;
  why_ = "timeout expired";
  login_failed("", phase_ == Phase::connecting ? "connect failed" : "connect timeout", false);
}

void Server::take_place(std::shared_ptr<pool::Place> place) {
  if (place_) place_->open.fetch_sub(1, std::memory_order_relaxed);
  place_ = std::move(place);
  if (!place_) return;
  place_->open.fetch_add(1, std::memory_order_relaxed);
  place_generation_ = place_->generation.load(std::memory_order_relaxed);
  role_known_ = place_->doubts.load(std::memory_order_relaxed);
}

// ---- what the host is ----

void Server::note_parameter(std::string_view name, std::string_view value) {
  const bool on = value == "on";
  std::optional<bool>* fact = name == "in_hot_standby"                  ? &standby_
                              : name == "default_transaction_read_only" ? &read_only_
                                                                        : nullptr;
  if (!fact) return;
  const bool news = *fact && **fact != on;
  *fact = on;
  if (fact == &standby_ && health_)
    health_->role.store(on ? pool::Role::standby : pool::Role::primary, std::memory_order_relaxed);
  if (news && place_ && pool->entry().target_session_attrs != config::TargetSession::any) {
    role_known_ = place_->doubts.fetch_add(1, std::memory_order_relaxed) + 1;
    log(LogLevel::log, fmt::format("{} is now {}", name, value));
  }
}

// False: it is not what was asked for, or has to be asked what it is.
bool Server::check_role() {
  const pool::SessionFacts facts{standby_, read_only_};
  const config::TargetSession target = attempt_->target;
  if (!pool::can_tell(target, facts) && replication_ != wire::Replication::physical && !role_asked_) {
    ask_role(Phase::connect_query);
    return false;
  }
  std::string reason(pool::misfit(target, facts));
  if (reason.empty()) {
    if (!pool::wants_writer(target) || claim_writer(reason)) return true;
  } else if (health_) {
    env().shared.hosts.resign(pool->shared.database.writer, *health_);
  }
  attempt_->mismatched = true;
  why_ = reason;
  login_failed("", reason, false);
  return false;
}

// False: the database has a writer already.
bool Server::claim_writer(std::string& reason) {
  if (!health_) return true;
  std::vector<pool::Place*> places;
  for (const auto& element : attempt_->elements) places.push_back(element.place.get());
  const auto claim = env().shared.hosts.claim(pool->shared.database.writer, places, health_);
  if (claim.granted) return true;
  reason = fmt::format("{} takes writes already", claim.writes);
  if (!claim.rival.empty())
    log(LogLevel::warning, fmt::format("two servers of database {} take writes: {} is used until it fails, {} is not",
                                       pool->shared.database.name, claim.writes, claim.rival));
  return false;
}

void Server::ask_role(Phase phase) {
  asking_role_ = true;
  role_answers_ = 0;
  role_doubt_ = false;
  if (place_) role_known_ = place_->doubts.load(std::memory_order_relaxed);
  if (phase == Phase::checking) return run_own(kAskRole, phase);
  env().scratch.clear();
  wire::query(env().scratch, kAskRole);
  stream->send(as_bytes(env().scratch));
  phase_ = phase;  // still in the login list
}

// DataRow: one column, "on" or "off" first, "t" or "f" then.
void Server::role_answer(Bytes body) {
  if (body.size() < 7) return;
  std::string_view value = as_text(body).substr(6);
  if (role_answers_++ == 0)
    note_parameter("default_transaction_read_only", value);
  else
    note_parameter("in_hot_standby", value == "t" ? "on" : "off");
}

void Server::ask_role_again() { ask_role(Phase::checking); }

bool Server::role_fits() const {
  const config::TargetSession target = pool->entry().target_session_attrs;
  if (target == config::TargetSession::any || target == config::TargetSession::prefer_standby) return true;
  if (pool::wants_writer(target) && pool->shared.database.writer.is_other(health_.get())) return false;
  pool::SessionFacts facts{standby_, read_only_};
  // Another connection may know better: they all are of one server.
  if (health_)
    if (pool::Role role = health_->role.load(std::memory_order_relaxed); role != pool::Role::unknown)
      facts.standby = role == pool::Role::standby;
  return pool::misfit(target, facts).empty();
}

// "cannot execute … in a read-only transaction": maybe the client asked for that, maybe it was demoted.
void Server::note_error(Bytes body) {
  if (wire::read_error(body).sqlstate == "25006") role_doubt_ = true;
}

// Idle. True: it is being asked.
bool Server::check_role_now_and_then() {
  if (!health_ || pool->entry().target_session_attrs == config::TargetSession::any) return false;
  if (!place_ || (!role_stale() && !place_->claim_role_check(env().now(), kRoleCheck))) return false;
  pool->unlist(*this);
  idle_before = idle_since;
  ask_role(Phase::checking);
  return true;
}

// A server that another process has opened.
void Server::find_place() {
  for (const auto& element : list_hosts(env(), pool->entry())) {
    if (is_socket(element.host) ? !host_.empty() : element.host != host_) continue;
    if (element.port != port_) continue;
    take_place(element.place);
    break;
  }
  if (address_.length) health_ = env().shared.hosts.address(address_key(address_));
  find_times();
  role_doubt_ = pool->entry().target_session_attrs != config::TargetSession::any;
}

bool Server::outdated() const {
  return generation != pool->shared.generation.load(std::memory_order_relaxed) ||
         (place_ && place_generation_ != place_->generation.load(std::memory_order_relaxed));
}

void Server::check_place() {
  auto elements = list_hosts(env(), pool->entry());
  if (place_ && std::ranges::none_of(elements, [&](const auto& e) { return e.place == place_; })) close_needed = true;
}

}  // namespace pgf::session
