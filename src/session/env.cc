#include "session/env.h"

#include <bit>

namespace pgf::session {

std::uint64_t CancelRegistry::number(const wire::CancelKey& key) { return std::bit_cast<std::uint64_t>(key); }

bool CancelRegistry::add(const wire::CancelKey& key, ClientHandle client) {
  Shard& shard = shards_[key[4] % shards_.size()];
  std::lock_guard lock(shard.mutex);
  return shard.map.emplace(number(key), client).second;
}

void CancelRegistry::remove(const wire::CancelKey& key) {
  Shard& shard = shards_[key[4] % shards_.size()];
  std::lock_guard lock(shard.mutex);
  shard.map.erase(number(key));
}

void CancelRegistry::moved(const wire::CancelKey& key, ClientHandle from, ClientHandle to) {
  Shard& shard = shards_[key[4] % shards_.size()];
  std::lock_guard lock(shard.mutex);
  auto it = shard.map.find(number(key));
  if (it != shard.map.end() && it->second == from) it->second = to;
}

ClientHandle CancelRegistry::find(const wire::CancelKey& key) const {
  const Shard& shard = shards_[key[4] % shards_.size()];
  std::lock_guard lock(shard.mutex);
  auto it = shard.map.find(number(key));
  return it == shard.map.end() ? ClientHandle{} : it->second;
}

auth::ScramSecret Credentials::verifier(const std::string& user, const std::string& password, int iterations) {
  {
    std::lock_guard lock(mutex_);
    auto it = verifiers_.find(user);
    if (it != verifiers_.end() && it->second.password == password && it->second.iterations == iterations)
      return it->second.secret;
  }
  auth::ScramSecret secret = auth::derive_scram(password, iterations);  // dear: not under the mutex
  std::lock_guard lock(mutex_);
  auto [it, fresh] = verifiers_.try_emplace(user);
  // Two logins may have derived at once; a client in the middle of its exchange keeps its own copy, so either is good.
  if (fresh || it->second.password != password || it->second.iterations != iterations)
    it->second = {password, iterations, secret};
  return it->second.secret;
}

void Credentials::keep_keys(const std::string& user, const std::string& stored_secret, const auth::ScramKeys& keys) {
  std::lock_guard lock(mutex_);
  keys_[user] = {stored_secret, keys};
}

std::optional<auth::ScramKeys> Credentials::keys(const std::string& user, const std::string& stored_secret) const {
  std::lock_guard lock(mutex_);
  auto it = keys_.find(user);
  if (it == keys_.end() || it->second.first != stored_secret) return std::nullopt;
  return it->second.second;
}

static std::string join(const std::string& database, const std::string& user) { return user + '\0' + database; }

void Credentials::learn(const std::string& database, const std::string& user, const std::string& stored_secret) {
  std::lock_guard lock(mutex_);
  learned_[join(database, user)] = stored_secret;
}

std::optional<std::string> Credentials::learned(const std::string& database, const std::string& user) const {
  std::lock_guard lock(mutex_);
  auto it = learned_.find(join(database, user));
  return it == learned_.end() ? std::nullopt : std::optional(it->second);
}

std::string Credentials::name(const config::Config& config, const std::string& database, const std::string& user) {
  return config.passwords.contains(user) ? user : join(database, user);
}

net::TcpOptions Env::tcp_options() const {
  const config::Settings& s = settings();
  auto number = [](std::int64_t value) { return static_cast<int>(value); };
  return {s.tcp_keepalive != 0,    number(s.tcp_keepcnt),      number(s.tcp_keepidle),
          number(s.tcp_keepintvl), number(s.tcp_user_timeout), number(s.tcp_socket_buffer)};
}

std::unique_ptr<std::string> Env::take_buffer() {
  if (buffers_.empty()) return std::make_unique<std::string>();
  auto buffer = std::move(buffers_.back());
  buffers_.pop_back();
  return buffer;
}

void Env::give_buffer(std::unique_ptr<std::string> buffer) {
  // A buffer that once held something big is not worth keeping, nor are more than a busy turn can need.
  if (buffer->capacity() > 32 * 1024 || buffers_.size() >= 4096) return;
  buffer->clear();
  buffers_.push_back(std::move(buffer));
}

}  // namespace pgf::session
