#pragma once
// What sessions ask of those above them. A worker implements it; sessions of one worker share one Env and run in its
// thread only.
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "auth/exchange.h"
#include "auth/external.h"
#include "base/error.h"
#include "base/list.h"
#include "base/log.h"
#include "config/config.h"
#include "net/engine.h"
#include "net/socket.h"
#include "pool/hosts.h"
#include "pool/shared.h"
#include "session/latencies.h"
#include "session/slow_lines.h"
#include "session/slow_waits.h"
#include "session/tls_setup.h"
#include "wire/cancel_key.h"
#include "wire/params.h"
#include "wire/prepared.h"

namespace pgf::net {
class Resolver;
}

namespace pgf::session {

class Client;
class Server;
class Pool;
class CancelLink;

// Names one client of one worker from anywhere; a stale one finds nothing.
struct ClientHandle {
  static constexpr std::uint32_t kOnItsWay = 0xffffffff;  // a slot: the worker is yet to give it one
  int worker = -1;
  std::uint32_t slot = 0;
  std::uint64_t id = 0;
  bool operator==(const ClientHandle&) const = default;
};

// Cancel keys of all clients of the program. Any worker; a mutex per shard, taken at login, logout and cancel only.
class CancelRegistry {
 public:
  bool add(const wire::CancelKey& key, ClientHandle client);  // false: the key exists already, take another
  void remove(const wire::CancelKey& key);
  // The client has changed its worker. Nothing happens unless the key's client is still `from`: whoever is overtaken by
  // news about the same client leaves them alone.
  void moved(const wire::CancelKey& key, ClientHandle from, ClientHandle to);
  ClientHandle find(const wire::CancelKey& key) const;  // worker -1 = no such key

 private:
  static std::uint64_t number(const wire::CancelKey& key);
  struct Shard {
    mutable std::mutex mutex;
    std::unordered_map<std::uint64_t, ClientHandle> map;
  };
  std::array<Shard, 16> shards_;
};

// Secrets worth remembering: SCRAM verifiers derived from plain passwords (dear to compute) and the keys that a
// client's SCRAM login leaves for the login to the server. Any worker.
class Credentials {
 public:
  auth::ScramSecret verifier(const std::string& user, const std::string& password, int iterations);
  void keep_keys(const std::string& user, const std::string& stored_secret, const auth::ScramKeys& keys);
  std::optional<auth::ScramKeys> keys(const std::string& user, const std::string& stored_secret) const;
  // Secrets that auth_query found, and passwords that PAM or LDAP found good, for the login to servers. Clients are
  // never judged by them: each login asks again.
  void learn(const std::string& database, const std::string& user, const std::string& stored_secret);
  std::optional<std::string> learned(const std::string& database, const std::string& user) const;
  // The `user` of the calls above: users of the auth_file are the same everywhere, those of auth_query are each
  // database's own.
  static std::string name(const config::Config& config, const std::string& database, const std::string& user);
  std::array<std::uint8_t, 32> process_key{};  // for mock logins; set once at start

 private:
  struct Verifier {
    std::string password;
    int iterations;
    auth::ScramSecret secret;
  };
  mutable std::mutex mutex_;
  std::unordered_map<std::string, Verifier> verifiers_;
  std::unordered_map<std::string, std::pair<std::string, auth::ScramKeys>> keys_;
  std::unordered_map<std::string, std::string> learned_;
};

// Clients between two workers. Orders of the control thread go to all workers while there are none: so each order, and
// each SHOW, meets every client exactly once. Both sides write one variable and then read the other (seq_cst).
struct Moves {
  std::atomic<int> under_way{0};  // raised by the worker that lets go of a client, lowered by the one that has it
  std::atomic<int> held{0};  // orders that are not yet carried out everywhere: no move begins; control thread writes
  bool begin() {
    under_way.fetch_add(1);
    if (held.load() == 0) return true;
    under_way.fetch_sub(1);
    return false;
  }
  void end() { under_way.fetch_sub(1); }
};

// The program's shared state as sessions see it.
struct Shared {
  Shared(int workers_, std::string_view track_extra, pool::Ledger* ledger_ = nullptr)
      : workers(workers_), ledger(ledger_), directory(workers_, ledger_), hosts(workers_), names(track_extra) {
    admitted.share(ledger, "clients");
  }

  const int workers;
  pool::Ledger* const ledger;  // null: this process has its limits for itself
  pool::Directory directory;
  pool::Hosts hosts;
  const wire::ParamNames names;
  wire::StatementTable statements;
  CancelRegistry cancels;
  Credentials credentials;
  pool::Counter clients;                  // every client socket; all workers
  pool::Counter admitted;                 // those that said who they are: max_client_conn; all workers
  std::atomic<std::uint64_t> next_id{1};  // clients and servers, in creation order; all workers
  Moves moves;
  // Workers that do not come back to their loop, as bits: nothing is sent to them or asked of them that somebody waits
  // for. Control thread writes (worker/watchdog.h).
  std::atomic<std::uint64_t> stuck{0};
  std::atomic<bool> paused{false};     // PAUSE; control thread writes
  std::atomic<bool> suspended{false};  // SUSPEND; control thread writes
  std::atomic<int> shutdown{0};        // 0 no, 1 waiting for servers, 2 waiting for clients; control thread writes
};

class Env {
 public:
  Env(Shared& shared_, Log& log_, int worker_) : shared(shared_), log(log_), worker(worker_) {}

  Shared& shared;
  Log& log;
  const int worker;
  net::Engine* engine = nullptr;
  net::Resolver* resolver = nullptr;
  std::shared_ptr<const config::Config> config;
  std::shared_ptr<const TlsSetup> tls;

  const config::Settings& settings() const { return config->settings; }
  Usec now() const { return engine->now(); }
  bool alone() const { return shared.workers == 1; }

  // Buffers for bytes that have to wait; kept for the next user. Worker-local.
  std::unique_ptr<std::string> take_buffer();
  void give_buffer(std::unique_ptr<std::string> buffer);
  net::TcpOptions tcp_options() const;  // for every TCP socket, accepted or opened
  // Names whose addresses have changed since the start, and what they are now (Server::check_address). Worker-local.
  std::unordered_map<std::string, std::vector<net::Address>> moved_hosts;
  std::unordered_map<std::string, HostTimes> host_times;  // Worker-local.
  bool stirring = true;                                   // a client has come or said something since the last tick
  bool freezing = false;                                  // SUSPEND: nothing is read any more, what is queued goes out
  List<Pool> queues;    // pools in which clients of this worker wait; empty if there is no other worker
  std::string scratch;  // for messages being built; cleared by its user
  SlowLines slow_lines;
  SlowWaits slow_waits;
  std::uint64_t refused_logins = 0;

  // Objects live until the end of the turn in which they were buried, so that no caller up the stack loses them.
  virtual void bury(Client* client) = 0;
  virtual void bury(Server* server) = 0;
  virtual void bury(CancelLink* link) = 0;
  virtual std::uint32_t add_client(Client* client) = 0;

  virtual Pool& pool(pool::PoolShared& shared) = 0;

  // To other workers.
  virtual void ship(Server* server, int fd, int to) = 0;  // detached server with its socket
  virtual void ship(Client* client, int fd, int to) = 0;  // likewise; it is the other worker's when this returns
  virtual void ask_for_server(pool::PoolShared& pool, int from_worker, int count) = 0;
  virtual void poke(pool::PoolShared& pool) = 0;              // all workers with waiters of the pool look again
  virtual void poke_after_close(pool::PoolShared& pool) = 0;  // a permit came back: pools sharing a limit look again
  // Closes an idle server that stands in the way of `wanted`: of this pool, or of a sibling by database or user.
  virtual void evict_idle(pool::PoolShared& wanted, pool::Permit::Refused why) = 0;
  virtual void fail_waiters(pool::PoolShared& pool, std::string sqlstate, std::string text) = 0;
  virtual void cancel(const wire::SentKey& key, ClientHandle requester) = 0;
  // `reason` is a literal: it goes to other threads.
  virtual void cancel_done(ClientHandle requester, std::string_view reason) = 0;
  virtual void resolve(std::string host, Server* server) = 0;
  virtual void resolve_peer(std::string host, std::uint64_t question) = 0;  // Peers::resolved() follows
  // PAM or LDAP, in another thread; Client::judged() follows. False: too many are waiting for that.
  virtual bool judge(Client& client, auth::ExternalRequest request) = 0;
  // To the control thread.
  virtual void console(Client& client, std::string command) = 0;
  virtual void cancel_console(Client& client) = 0;

 protected:
  ~Env() = default;

 private:
  std::vector<std::unique_ptr<std::string>> buffers_;
};

}  // namespace pgf::session
