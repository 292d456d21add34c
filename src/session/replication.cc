// Replication connections (behaviour.md section 11): one client, one server, from the startup packet to the end. The
// server's startup packet carries what the client said in its own, because a physical walsender takes no SET.
#include <fmt/format.h>

#include "session/client_login.h"
#include "session/pool.h"
#include "wire/write.h"

namespace pgf::session {

using wire::Replication;

void Pool::join(Client& client) {
  if (removed_) return client.fatal(say::database_removed);
  if (env.shared.shutdown.load(std::memory_order_relaxed) == 1) return client.fatal(say::server_shutting_down);
  client.set_phase(Client::Phase::joining);
  client.queued_at = env.now();
  joining.push_back(&client);
  shared.joining.fetch_or(std::uint64_t{1} << env.worker, std::memory_order_seq_cst);
  launch(&client);
}

Client* Pool::first_joining() {
  Client* client = joining.front();
  while (client && client->server) client = joining.after(client);
  return client;
}

Client* Pool::next_joining() {
  Client* client = first_joining();
  Client* other = waiting.front();
  return client && other && other->queued_at < client->queued_at ? nullptr : client;
}

void Server::serve_replication(Client& c, std::vector<std::pair<std::string, std::string>>& params) {
  replication_ = c.replication;
  client = &c;
  c.server = this;
  params.emplace_back("replication", replication_ == Replication::logical ? "database" : "yes");
  for (int i = 0; i < c.params().size(); ++i)  // behind those of the entry: the last one counts
    if (c.params().get(i)) params.emplace_back(env().shared.names.name(i), *c.params().get(i));
  if (!c.startup_options().empty()) params.emplace_back("options", c.startup_options());
}

// Others may well be let in: the right to replicate is a matter of its own. So this failure is this client's alone, and
// neither remembered nor waited out.
void Server::replication_refused(std::string_view sqlstate, std::string_view text) {
  std::string state(sqlstate), reason(text);
  Client* c = std::exchange(client, nullptr);
  c->server = nullptr;
  disconnect(reason);
  c->fatal(state, reason);
}

config::PoolMode Server::pool_mode() const {
  return replication_ == Replication::none ? pool->policy().pool_mode : config::PoolMode::session;
}

void Pool::joined(Server& server) {
  Client* client = server.client;
  if (!client) return server.disconnect("replication client was closed");
  leave_queue(*client);
  const Usec waited = env.now() - client->queued_at;
  counters.wait_time += static_cast<std::uint64_t>(waited);
  latencies.wait.record(waited);
  client->note_wait(waited);
  ++counters.assignments;
  clients.push_back(client);
  client->counted_pool = true;
  server.was_used = true;
  list(server, Server::Phase::active);
  client->joined();
}

// The welcome is what this very server said.
void Client::joined() {
  wire::ParamSet agreed = server->params();
  agreed.fill_from(params_);
  params_ = std::move(agreed);
  welcome(server->take_untracked(), Phase::active);
  consume_held();
}

const std::string& Client::startup_options() const { return login_->options; }

}  // namespace pgf::session
