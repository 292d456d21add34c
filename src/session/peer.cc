#include "session/peer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "session/attempt.h"
#include "wire/startup.h"

namespace pgf::session {
namespace {

// A peer that does not answer must not be a place to store requests in.
constexpr std::size_t kMaxWaiting = 10'000;
// A refused connection costs next to nothing, and in a rolling restart the next one may succeed: server_login_retry,
// which spares a server logins, would outlast the request.
constexpr Usec kRetry = kSecond;
constexpr Usec kForget = 60 * kSecond;  // an address of "*" that nothing was sent to

constexpr std::string_view kSent = "successfully sent cancel request";
constexpr std::string_view kTooMany = "too many cancel requests wait for the peer";

std::string packet(const wire::SentKey& key) {
  std::string bytes(as_text(key.key));
  if (key.tail) bytes += as_text(*key.tail);
  return wire::cancel_request(as_bytes(bytes));
}

}  // namespace

std::string peer_name(int id) { return id ? std::to_string(id) : "*"; }

std::expected<Forward, std::string_view> route_cancel(const config::Config& config, const wire::SentKey& key) {
  const int own = static_cast<int>(config.settings.peer_id), id = wire::cancel_key_peer(key.key);
  const int ttl = wire::cancel_key_ttl(key.key);
  const bool everyone = config.peers.contains(0);
  if (own == 0 || (id == own && (!everyone || ttl == 0))) return std::unexpected("failed cancel request");
  if (ttl == 0) return std::unexpected("failed to forward cancel request because its TTL was exhausted");
  Forward forward{id, key};
  if (id != 0 && id != own && config.peers.contains(id)) {
    wire::set_cancel_key_ttl(forward.key.key, ttl - 1);
  } else if (everyone) {
    forward.peer = 0;
    wire::set_cancel_key_ttl(forward.key.key, 0);  // who is not its owner must not pass it on
  } else {
    return std::unexpected("could not find peer to forward request to");
  }
  return forward;
}

// ---- a connection ----

PeerLink::PeerLink(PeerPool& pool)
    : id(pool.peers.env.shared.next_id.fetch_add(1, std::memory_order_relaxed)),
      pool_(pool),
      started_(pool.peers.env.now()) {}

Env& PeerLink::env() const { return pool_.peers.env; }

void PeerLink::open() {
  if (pool_.fixed) return dial(*pool_.fixed);
  const config::Peer& peer = *pool_.entry();
  if (auto address = known_address(peer.host, peer.port)) return dial(*address);
  if (is_socket(peer.host)) return failed("connect failed", false);  // too long
  env().resolve_peer(peer.host, id);
}

void PeerLink::resolved(const std::vector<net::Address>& addresses, const std::string& error) {
  const config::Peer* peer = pool_.entry();
  if (stream_ || dead_) return;
  if (!peer) return end("peer removed");
  if (addresses.empty()) {
    log(LogLevel::warning, fmt::format("DNS lookup failed: {}: {}", peer->host, error));
    return failed("server DNS lookup failed", false);
  }
  net::Address address = addresses[0];
  address.set_port(static_cast<std::uint16_t>(peer->port));
  dial(address);
}

void PeerLink::dial(const net::Address& address) {
  address_ = address;
  stream_ = env().engine->connect(address_.get(), address_.length, this);
  if (!stream_) {
    log(LogLevel::warning, fmt::format("cannot make a socket: {}", std::strerror(errno)));
    return failed("connect failed", false);
  }
  net::set_tcp_options(stream_->fd(), env().tcp_options());
}

void PeerLink::on_connected(net::Stream&, int error) {
  if (error) {
    log(LogLevel::debug, fmt::format("connect: {}", std::strerror(error)));
    return failed("connect failed", false);
  }
  request_ = pool_.next();
  if (!request_) return end("peer server was not necessary anymore");
  log(LogLevel::debug, "started sending cancel request");
  sent_at_ = env().now();
  stream_->send(as_bytes(request_->packet));
  stream_->arm();
}

// Nobody answers a cancel request. Whoever speaks this much is no peer, and is not listened to.
void PeerLink::on_bytes(net::Stream&, const net::Received&) { end("peer answered a cancel request"); }

void PeerLink::on_closed(net::Stream&, int error) { end(error ? "peer conn crashed?" : kSent); }

void PeerLink::tick(Usec now) {
  const Usec limit = env().settings().cancel_wait_timeout, connect_limit = env().settings().server_connect_timeout;
  if (sent()) {
    if (limit > 0 && now - sent_at_ > limit) end("cancel_wait_timeout");
  } else if (connect_limit > 0 && now - started_ > connect_limit) {
    failed("connect timeout", true);
  } else if (limit > 0 && now - started_ > limit) {
    failed("cancel_wait_timeout", true);
  }
}

void PeerLink::failed(std::string_view reason, bool silent) {
  PeerPool& pool = pool_;
  end(reason);
  pool.failed(reason, silent);
}

void PeerLink::end(std::string_view reason) {
  if (dead_) return;
  dead_ = true;
  if (env().settings().log_disconnections)
    log(LogLevel::log, fmt::format("closing because: {} (age={}s)", reason, (env().now() - started_) / kSecond));
  if (stream_) stream_->close();
  stream_ = nullptr;
  pool_.links.remove(this);
  pool_.peers.bury(this);
  if (request_) {
    pool_.peers.settle(*request_, reason);
    pool_.service();
  }
}

void PeerLink::abandon() {
  if (stream_) stream_->close();
  delete this;
}

std::string PeerLink::address() const {
  return address_.is_unix() ? "unix" : address_.length ? net::format_host(address_) : "";
}

int PeerLink::port() const {
  if (address_.length && !address_.is_unix()) return address_.port();
  const config::Peer* peer = pool_.entry();
  return peer ? peer->port : 0;
}

void PeerLink::log(LogLevel level, std::string_view text) const {
  if (!env().log.enabled(level)) return;
  const config::Peer* peer = pool_.entry();
  std::string where = address_.length && !address_.is_unix() ? net::format_address(address_)
                                                             : fmt::format("{}:{}", peer ? peer->host : "", port());
  const LogField fields[] = {{"worker", env().worker}, {"peer", pool_.id}, {"address", where}};
  env().log.write(level, text, fmt::format("S-{}: peer-{}@{} ", fmt::ptr(this), peer_name(pool_.id), where), fields);
}

// ---- a peer ----

const config::Peer* PeerPool::entry() const {
  auto it = peers.env.config->peers.find(id);
  return it == peers.env.config->peers.end() ? nullptr : &it->second;
}

void PeerPool::add(PeerRequest request) {
  last_used = peers.env.now();
  if (queue_.size() >= kMaxWaiting) return peers.settle(request, kTooMany);
  if (fixed && last_used < retry_at_) return peers.settle(request, "connect failed");
  queue_.push_back(std::move(request));
  service();
}

std::optional<PeerRequest> PeerPool::next() {
  if (queue_.empty()) return std::nullopt;
  PeerRequest first = std::move(queue_.front());
  queue_.pop_front();
  return first;
}

// Connections for those that wait, as many as there may be.
void PeerPool::service() {
  const config::Peer* peer = entry();
  if (!peer) return;
  const Env& env = peers.env;
  const int limit = peer->pool_size.value_or(static_cast<int>(env.settings().default_pool_size));
  std::size_t opening = 0;
  links.each([&](PeerLink& l) { opening += !l.sent(); });
  for (; opening < queue_.size() && env.now() >= retry_at_; ++opening) {
    if (limit > 0 && links.size() >= static_cast<std::size_t>(limit)) return;
    auto* link = new PeerLink(*this);
    links.push_back(link);
    link->open();
  }
}

void PeerPool::failed(std::string_view reason, bool silent) {
  const config::Settings& s = peers.env.settings();
  const Usec now = peers.env.now();
  // Of many addresses one has the key, and somebody waits until all have been asked: an address gets one try, and a
  // silent one is left alone for a while. A peer with a number is tried until the time of the request is over.
  if (!fixed)
    retry_at_ = now + std::min(s.server_login_retry, kRetry);
  else if (silent)
    retry_at_ = now + s.server_login_retry;
  if (fixed || s.cancel_wait_timeout <= 0) settle_queue(reason);
}

void PeerPool::settle_queue(std::string_view reason) {
  for (const PeerRequest& request : std::exchange(queue_, {})) peers.settle(request, reason);
}

void PeerPool::drop_all(std::string_view reason) {
  settle_queue(reason);
  links.each([&](PeerLink& l) { l.end(reason); });
}

void PeerPool::tick(Usec now) {
  const Usec limit = peers.env.settings().cancel_wait_timeout;
  while (!queue_.empty() && limit > 0 && now - queue_.front().since > limit)
    peers.settle(*next(), "cancel_wait_timeout");
  links.each([&](PeerLink& l) { l.tick(now); });
  service();
}

// ---- all of them ----

Peers::~Peers() { sweep(); }

void Peers::sweep() {
  for (PeerLink* l : dead_) delete l;
  dead_.clear();
}

void Peers::settle(const PeerRequest& request, std::string_view reason) {
  if (--request.errand->open == 0) env.cancel_done(request.errand->requester, reason);
}

void Peers::forward(const Forward& what, ClientHandle requester) {
  auto entry = env.config->peers.find(what.peer);
  if (entry == env.config->peers.end()) return env.cancel_done(requester, "peer removed");
  if (what.peer) {
    auto& pool = named_[what.peer];
    if (!pool) pool = std::make_unique<PeerPool>(*this, what.peer, std::nullopt);
    return pool->add({packet(what.key), std::make_shared<Errand>(requester, 1), env.now()});
  }
  Question question{what, requester, env.now()};
  if (auto address = known_address(entry->second.host, entry->second.port)) return send_to_all(question, {*address});
  if (questions_.size() >= kMaxWaiting) return env.cancel_done(requester, kTooMany);
  std::uint64_t number = env.shared.next_id.fetch_add(1, std::memory_order_relaxed);
  questions_.emplace(number, question);
  env.resolve_peer(entry->second.host, number);
}

void Peers::resolved(std::uint64_t number, const std::vector<net::Address>& addresses, const std::string& error) {
  auto asked = questions_.find(number);
  if (asked == questions_.end()) {
    for (auto& [id, pool] : named_) {
      PeerLink* found = nullptr;
      pool->links.each([&](PeerLink& l) { found = l.id == number ? &l : found; });
      if (found) return found->resolved(addresses, error);
    }
    return;
  }
  Question question = asked->second;
  questions_.erase(asked);
  auto entry = env.config->peers.find(0);
  if (entry == env.config->peers.end()) return env.cancel_done(question.requester, "peer removed");
  if (addresses.empty()) {
    env.log(LogLevel::warning, "peer-*: DNS lookup failed: {}: {}", entry->second.host, error);
    return env.cancel_done(question.requester, "server DNS lookup failed");
  }
  std::vector<net::Address> all = addresses;
  for (net::Address& a : all) a.set_port(static_cast<std::uint16_t>(entry->second.port));
  send_to_all(question, all);
}

void Peers::send_to_all(const Question& question, const std::vector<net::Address>& addresses) {
  auto errand = std::make_shared<Errand>(question.requester, addresses.size());
  for (const net::Address& address : addresses)
    pool_at(address).add({packet(question.what.key), errand, question.since});
}

PeerPool& Peers::pool_at(const net::Address& address) {
  for (auto& p : everyone_)
    if (*p->fixed == address) return *p;
  return *everyone_.emplace_back(std::make_unique<PeerPool>(*this, 0, address));
}

void Peers::configure() {
  each_pool([](PeerPool& p) {
    if (!p.entry()) p.drop_all("peer removed");
  });
  std::erase_if(named_, [](auto& named) { return !named.second->entry(); });
  std::erase_if(everyone_, [](auto& p) { return !p->entry(); });
}

void Peers::tick(Usec now) {
  const Usec limit = env.settings().cancel_wait_timeout;
  std::erase_if(questions_, [&](const auto& asked) {
    if (limit <= 0 || now - asked.second.since <= limit) return false;
    env.cancel_done(asked.second.requester, "cancel_wait_timeout");
    return true;
  });
  each_pool([now](PeerPool& p) { p.tick(now); });
  std::erase_if(everyone_, [&](auto& p) { return p->empty() && now - p->last_used > kForget; });
}

void Peers::abandon() {
  sweep();
  each_pool([](PeerPool& p) { p.links.each([](PeerLink& l) { l.abandon(); }); });
}

}  // namespace pgf::session
