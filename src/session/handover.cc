#include "session/handover.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "net/socket.h"
#include "session/client.h"
#include "session/pool.h"
#include "session/server.h"

namespace pgf::session {

// First field of every state. Another number: the row is taken as if it had none.
static constexpr std::uint64_t kFormat = 1;

Pack& Pack::number(std::uint64_t value) {
  for (int shift = 56; shift >= 0; shift -= 8) out_ += static_cast<char>(value >> shift);
  return *this;
}

Pack& Pack::text(std::string_view value) {
  number(value.size());
  out_ += value;
  return *this;
}

Pack& Pack::params(const wire::ParamNames& names, const wire::ParamSet& set) {
  std::uint64_t known = 0;
  for (int i = 0; i < set.size(); ++i) known += set.get(i) != nullptr;
  number(known);
  for (int i = 0; i < set.size(); ++i)
    if (set.get(i)) text(names.name(i)).text(*set.get(i));
  return *this;
}

std::uint64_t Unpack::number() {
  if (in_.size() < 8) {
    failed_ = true;
    in_ = {};
    return 0;
  }
  std::uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value = value << 8 | static_cast<std::uint8_t>(in_[static_cast<std::size_t>(i)]);
  in_.remove_prefix(8);
  return value;
}

std::string_view Unpack::text() {
  std::uint64_t size = number();
  if (size > in_.size()) {
    failed_ = true;
    in_ = {};
    return {};
  }
  std::string_view value = in_.substr(0, size);
  in_.remove_prefix(size);
  return value;
}

void Unpack::params(const wire::ParamNames& names, wire::ParamSet& set) {
  for (std::uint64_t n = number(); n > 0 && !failed_; --n) {
    std::string_view name = text(), value = text();
    if (int index = names.find(name); index >= 0 && !failed_) set.set(index, value);
  }
}

static std::string_view bytes_of(const std::array<std::uint8_t, 32>& key) {
  return {reinterpret_cast<const char*>(key.data()), key.size()};
}

// The four parameters that PgBouncer has columns for.
static constexpr std::pair<const char*, std::optional<std::string> Handed::*> kColumns[] = {
    {"client_encoding", &Handed::client_encoding},
    {"standard_conforming_strings", &Handed::std_strings},
    {"DateStyle", &Handed::datestyle},
    {"TimeZone", &Handed::timezone}};

static void fill_row(Handed& row, Env& env, const wire::ParamSet& params) {
  for (auto [name, column] : kColumns)
    if (int i = env.shared.names.find(name); i >= 0 && i < params.size() && params.get(i)) row.*column = *params.get(i);
  if (!row.user || !row.database) return;
  const Credentials& credentials = env.shared.credentials;
  auto stored = env.config->passwords.find(*row.user);
  if (stored == env.config->passwords.end()) row.password = credentials.learned(*row.database, *row.user);
  const std::string secret = stored != env.config->passwords.end() ? stored->second : row.password.value_or("");
  if (auto keys = credentials.keys(Credentials::name(*env.config, *row.database, *row.user), secret)) {
    row.scram_client_key = bytes_of(keys->client_key);
    row.scram_server_key = bytes_of(keys->server_key);
  }
}

static void take_columns(const Handed& row, const wire::ParamNames& names, wire::ParamSet& params) {
  for (auto [name, column] : kColumns)
    if (int i = names.find(name); i >= 0 && row.*column) params.set(i, *(row.*column));
}

void take_over_keys(Shared& shared, const config::Config& config, const Handed& row) {
  if (!row.user || !row.database) return;
  auto stored = config.passwords.find(*row.user);
  const bool known = stored != config.passwords.end();
  if (!known && row.password) shared.credentials.learn(*row.database, *row.user, *row.password);
  auth::ScramKeys keys;
  if (!row.scram_client_key || !row.scram_server_key || row.scram_client_key->size() != keys.client_key.size() ||
      row.scram_server_key->size() != keys.server_key.size())
    return;
  std::ranges::copy(*row.scram_client_key, keys.client_key.begin());
  std::ranges::copy(*row.scram_server_key, keys.server_key.begin());
  shared.credentials.keep_keys(Credentials::name(config, *row.database, *row.user),
                               known ? stored->second : row.password.value_or(""), keys);
}

// ---- pools ----

std::vector<Handed> hand_over_pools(const Shared& shared) {
  std::vector<Handed> rows;
  for (pool::PoolShared* p : shared.directory.pools()) {
    auto welcome = p->welcome();
    if (!welcome) continue;
    Handed& row = rows.emplace_back();
    row.task = Handed::Task::pool;
    row.database = p->database.name;
    row.user = p->user.name;
    row.addr = "unix";  // PgBouncer's column is never NULL
    row.state = Pack()
                    .number(kFormat)
                    .number(shared.statements.next_id())
                    .text(welcome->untracked)
                    .params(shared.names, welcome->tracked)
                    .take();
  }
  return rows;
}

void take_over_pool(Shared& shared, const Handed& row) {
  Unpack state(row.state);
  if (state.number() != kFormat || !row.database || !row.user) return;
  shared.statements.start_at(state.number());
  auto welcome = std::make_shared<pool::Welcome>();
  welcome->untracked = state.text();
  welcome->tracked = wire::ParamSet(shared.names.size());
  state.params(shared.names, welcome->tracked);
  if (!state.failed()) shared.directory.pool(*row.database, *row.user).set_welcome(std::move(welcome));
}

// ---- clients ----

bool Client::hand_over(Handed& row) {
  const bool early = phase_ == Phase::first;
  if (!early && phase_ != Phase::welcome && phase_ != Phase::idle && phase_ != Phase::waiting &&
      phase_ != Phase::active)
    return false;
  // The state of TLS stays in this process, and of a replication stream nobody could say where it is.
  if (stream->tls() || (server && server->stream && server->stream->tls()) || replication != wire::Replication::none)
    return false;
  if (env_->freezing && !(parked_ && stream->queued() == 0 && (!server || server->parked()))) return false;
  row.task = Handed::Task::client;
  row.fd = stream->fd();
  row.addr = address();
  row.port = port();
  row.needs_state = early || phase_ == Phase::welcome || (held_ && !held_->empty());
  if (user) row.user = user->name;
  if (database) row.database = database->name;
  if (has_key) row.cancel = load_be64(cancel_key.data());
  if (server) row.link = server->stream->fd();
  if (user) fill_row(row, *env_, params_);

  auto age = [&](Usec since) { return since ? static_cast<std::uint64_t>(env_->now() - since) + 1 : 0; };
  Pack state;
  state.number(kFormat).number(early ? 0 : phase_ == Phase::welcome ? 1 : 2).text(held_ ? *held_ : std::string());
  state.number(age(connect_time)).number(age(query_start_)).number(age(xact_start_));
  state.params(env_->shared.names, params_);
  state.number(statements());
  if (statements_)
    statements_->each([&](const std::string& name, const wire::Statement& s) { state.text(name).text(s.tail); });
  state.number(unproven_.size());
  for (const std::string& name : unproven_) state.text(name);
  state.text(unnamed_ ? *unnamed_ : std::string());
  row.state = state.take();
  return true;
}

// A new client object has just been made for the socket. False: it cannot go on.
bool Client::take_over(const Handed& row) {
  Unpack state(row.state);
  const bool ours = state.number() == kFormat;
  const std::uint64_t stage = ours ? state.number() : 2;
  if (std::string_view held = ours ? state.text() : std::string_view(); !held.empty()) {
    held_ = env_->take_buffer();
    held_->append(held);
  }
  if (stage == 0) return !state.failed();

  if (!row.user || !row.database) return false;
  auto entry = config::find_database(*env_->config, *row.database);
  if (!entry) return false;
  database = &env_->shared.directory.database(*row.database);
  database->clients.take(0);
  database->clients.inherited();
  user = &env_->shared.directory.user(*row.user);
  user->clients.take(0);
  user->clients.inherited();
  if (entry->is_auto) database->is_auto.store(true);
  if (!admitted_) {  // it was let in by the old process, whatever the limit is now
    env_->shared.admitted.take(0);
    admitted_ = true;
  }
  env_->shared.admitted.inherited();
  params_ = wire::ParamSet(env_->shared.names.size());
  if (ours) {
    auto since = [&](std::uint64_t age) { return age ? env_->now() - static_cast<Usec>(age - 1) : 0; };
    connect_time = since(state.number());
    query_start_ = since(state.number());
    xact_start_ = since(state.number());
    state.params(env_->shared.names, params_);
    for (std::uint64_t n = state.number(); n > 0 && !state.failed(); --n) {
      std::string_view name = state.text(), tail = state.text();
      if (state.failed()) break;
      if (!statements_) statements_ = std::make_unique<wire::ClientStatements>();
      statements_->add(name, env_->shared.statements.intern(tail));
    }
    for (std::uint64_t n = state.number(); n > 0 && !state.failed(); --n) unproven_.emplace(state.text());
    if (std::string_view tail = state.text(); !tail.empty()) {
      unnamed_ = std::make_unique<std::string>(tail);
      ++unnamed_number_;
    }
    if (state.failed()) return false;
  } else {
    take_columns(row, env_->shared.names, params_);
  }
  store_be64(cancel_key.data(), row.cancel);
  has_key = env_->shared.cancels.add(cancel_key, {env_->worker, slot, id});
  pool = &env_->pool(env_->shared.directory.pool(*row.database, entry->user ? *entry->user : *row.user));
  if (stage == 1) {
    pool->queue_for_welcome(*this);
    return true;
  }
  phase_ = Phase::idle;
  pool->clients.push_back(this);
  counted_pool = true;
  return true;
}

// Everybody who was taken over is in its place: what came before goes on its way.
void Client::go_on() {
  if (phase_ == Phase::first || phase_ == Phase::idle || phase_ == Phase::active) consume_held();
}

// ---- servers ----

bool Server::hand_over(Handed& row) {
  if (!stream || (phase_ != Phase::idle && phase_ != Phase::active)) return false;
  if (stream->tls() || (client && client->stream->tls()) || replication_ != wire::Replication::none) return false;
  if (env().freezing && !(parked_ && stream->queued() == 0)) return false;
  if (close_needed && phase_ == Phase::idle) return false;
  row.task = Handed::Task::server;
  row.fd = stream->fd();
  row.addr = address();
  row.port = port();
  row.user = pool->server_user();
  row.database = pool->shared.database.name;
  if (backend_key_.size() >= 8) row.cancel = load_be64(as_bytes(backend_key_).data());
  if (client) row.link = client->stream->fd();
  fill_row(row, env(), params_);

  Pack state;
  state.number(kFormat).number(static_cast<std::uint8_t>(status_));
  state.number(copy_in_).number(error_pending_).number(fatal_seen_).number(close_needed).number(was_used);
  state.number(static_cast<std::uint64_t>(env().now() - connect_time));
  state.number(prepared()).text(backend_key_).text(host_);
  state.params(env().shared.names, params_);
  state.number(owed_.size());
  owed_.each([&](const wire::Owed::Entry& e) {
    state.number(static_cast<std::uint64_t>(e.ask)).number(static_cast<std::uint64_t>(e.give)).text(e.name);
    state.text(e.statement ? e.statement->tail : std::string());
  });
  row.state = state.take();
  return true;
}

// Its stream is adopted already. It is in no list yet; the caller links or offers it.
bool Server::take_over(const Handed& row) {
  connecting_flag_ = false;
  login_done_ = authenticated_ = was_used = true;
  pool->shared.usable.fetch_add(1, std::memory_order_acq_rel);
  if (auto peer = net::peer_address(stream->fd())) address_ = *peer;
  port_ = row.port;
  ready_ = answered_ = true;
  backend_key_.resize(8);
  store_be64(reinterpret_cast<std::uint8_t*>(backend_key_.data()), row.cancel);
  Unpack state(row.state);
  if (state.number() != kFormat) {
    // PgBouncer does not say what is under way. Taken for an open transaction until the server says more, so that
    // nobody else is given the connection.
    status_ = row.link ? 'T' : 'I';
    take_columns(row, env().shared.names, params_);
    foreign_ = env().settings().max_prepared_statements > 0;
    find_place();
    return true;
  }
  status_ = static_cast<char>(state.number());
  copy_in_ = state.number();
  error_pending_ = state.number();
  fatal_seen_ = state.number();
  close_needed = state.number();
  was_used = state.number();
  connect_time = env().now() - static_cast<Usec>(state.number());
  foreign_ = state.number() > 0;
  backend_key_ = state.text();
  host_ = state.text();
  find_place();
  state.params(env().shared.names, params_);
  for (std::uint64_t n = state.number(); n > 0 && !state.failed(); --n) {
    auto ask = static_cast<wire::Ask>(state.number());
    auto give = static_cast<wire::Give>(state.number());
    std::string_view name = state.text(), tail = state.text();
    owed_.push(ask, give, tail.empty() ? nullptr : env().shared.statements.intern(tail), name);
  }
  return !state.failed();
}

void Server::go_on(Client* linked) {
  if (!linked) {
    // The names of prepared statements that the old process gave out mean nothing here.
    if (foreign_ && !close_needed) return run_own("DEALLOCATE ALL", Phase::resetting);
    return pool->offer(*this);
  }
  close_needed |= foreign_;
  client = linked;
  linked->server = this;
  pool->list(*this, Phase::active);
  linked->set_phase(Client::Phase::active);
  stream->arm();
}

// ---- a worker's share ----

void take_over(Env& env, std::vector<Handed>& rows) {
  std::map<int, Client*> clients;
  std::vector<Client*> all;
  for (Handed& row : rows) {
    if (row.task != Handed::Task::client) continue;
    auto* c = new Client(env, row.received, row.addr == "unix");
    if (!c->take_over(row)) {
      c->disconnect("cannot be taken over");
      continue;
    }
    all.push_back(c);
    if (row.link) clients[row.fd] = c;
  }
  for (Handed& row : rows) {
    if (row.task != Handed::Task::server) continue;
    Client* linked = nullptr;
    if (auto it = clients.find(row.link); row.link && it != clients.end()) {
      linked = it->second;
      clients.erase(it);
    }
    auto entry = row.database && row.user ? config::find_database(*env.config, *row.database) : std::nullopt;
    if (!entry || (row.link && !linked)) {
      ::close(row.received);
      continue;
    }
    Pool& pool = linked ? *linked->pool : env.pool(env.shared.directory.pool(*row.database, *row.user));
    pool::Permit::Refused why;
    // It exists already: it is counted, and no limit refuses it.
    pool::Permit permit = pool::Permit::take(pool.shared, 0, pool.policy(), false, why);
    permit.inherited();
    auto* server = new Server(pool, std::move(permit));
    server->stream = env.engine->adopt(row.received, net::Kind::server, server);
    if (!server->take_over(row)) {
      server->disconnect("cannot be taken over");
      if (linked) linked->disconnect("cannot be taken over");
      continue;
    }
    // Clients cannot be greeted before some server has logged in here: one makes room for that.
    if (!pool.shared.welcome() && !pool.shared.taken_over.exchange(true)) server->close_needed = true;
    server->go_on(linked);
  }
  for (auto& [fd, c] : clients) c->disconnect("its server was not taken over");
  for (Client* c : all)
    if (c->phase() != Client::Phase::dead) c->go_on();
}

}  // namespace pgf::session
