#pragma once
// All that workers and the control thread say to each other. One message = one struct; Worker::receive() and
// Control::receive() are the only readers.
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "observe/report.h"
#include "observe/views.h"
#include "pool/placement.h"
#include "session/env.h"
#include "session/handover.h"
#include "session/peer.h"

namespace pgf::worker {

// ---- to a worker ----
struct NewClient {  // an accepted socket that is better off here
  int fd;
  bool unix_socket;
};
struct MovedServer {
  session::Server* server;
  pool::PoolShared* pool;
  int fd;
};
struct MovedClient {
  session::Client* client;
  pool::PoolShared* pool;
  int fd;
  session::ClientHandle from;
  pool::MoveReason reason;
};
struct MoveClients {  // so many of your clients are better off with `to`
  int to;
  int count;
  pool::MoveReason reason;
};
struct AskServers {  // `to` has clients waiting and was told that we have idle servers
  pool::PoolShared* pool;
  int to;
  int count;
};
struct LentServers {  // the answer; the servers themselves come as MovedServer
  pool::PoolShared* pool;
  int count;
};
struct Poke {  // look at your queue: a server, a permit or a welcome has become available
  pool::PoolShared* pool;
};
struct FailWaiters {
  pool::PoolShared* pool;
  std::string sqlstate, text;
};
struct EvictIdle {  // for a client of `wanted`, on worker `asker`
  pool::PoolShared *pool, *wanted;
  int asker;
};
struct GiveUp {  // a place under one of these limits, to another process: one that is idle, or idle for a while
  pool::PoolShared* pool = nullptr;
  pool::DatabaseShared* database = nullptr;
  pool::UserShared* user = nullptr;
  pool::Stake* stake = nullptr;
  bool aged = false;
};
struct Cancel {  // for a client of yours
  session::ClientHandle target;
  wire::SentKey key;
  session::ClientHandle requester;
  bool looked = false;  // it was silent, but not everything that it said was read
};
struct CancelDone {
  session::ClientHandle requester;
  std::string_view reason;  // a literal
};
struct ForwardCancel {  // to a peer that you serve
  session::Forward what;
  session::ClientHandle requester;
};
struct PeerResolved {
  std::uint64_t question;
  std::vector<net::Address> addresses;
  std::string error;
};
struct Resolved {
  session::Server* server;
  std::uint64_t server_id;
  pool::PoolShared* pool;
  std::vector<net::Address> addresses;
  std::string error;
};
struct Judged {  // PAM or LDAP about a client's password; empty = it is good
  session::ClientHandle client;
  std::string reason;
};
struct HostMoved {  // the addresses of a name are others than before
  std::string host;
  std::vector<net::Address> addresses;
};
struct ConsoleReply {
  session::ClientHandle client;
  std::string bytes;
  bool close;
};
struct NewConfig {
  std::shared_ptr<const config::Config> config;
  std::shared_ptr<const session::TlsSetup> tls;
  std::uint64_t ticket;
};
enum class Order {
  pause,    // close what is idle (the flags are set already)
  resume,   // serve the queues
  recycle,  // close_needed for servers of an older generation
  kill,     // pool.database: all clients and servers
  stop_listening,
  suspend,         // stop accepting and reading; done when everything is sent
  reject_waiters,  // SHUTDOWN WAIT_FOR_SERVERS
  stop,            // end the loop
};
struct Command {
  Order order;
  pool::DatabaseShared* database;  // null = all
  std::uint64_t ticket;
};
struct KillClient {
  session::ClientHandle client;
  std::uint64_t id;
  std::uint64_t ticket;
};
struct Gather {
  unsigned parts;  // of observe::Gather
  std::uint64_t ticket;
};
struct TakeOver {  // clients and servers of the process before us that are yours now
  std::vector<session::Handed> rows;
};

struct ToWorker {
  using Body = std::variant<NewClient, MovedServer, MovedClient, MoveClients, AskServers, LentServers, Poke,
                            FailWaiters, EvictIdle, GiveUp, Cancel, CancelDone, ForwardCancel, PeerResolved, Resolved,
                            Judged, HostMoved, ConsoleReply, NewConfig, Command, KillClient, Gather, TakeOver>;
  explicit ToWorker(Body b) : body(std::move(b)) {}
  Body body;
  ToWorker* mailbox_next = nullptr;
};

// ---- to the control thread ----
struct ConsoleCommand {
  session::ClientHandle client;
  std::uint64_t client_id;
  bool is_admin;
  int socket;  // a duplicate, if descriptors may be sent over it: user pgbouncer, Unix socket, our own uid; else -1
  std::string text;
};
struct ConsoleCancel {  // a CancelRequest for a console client
  session::ClientHandle client;
  bool is_admin;
};
struct Done {  // a worker has carried out NewConfig, Command or KillClient
  std::uint64_t ticket;
  bool found = false;
};
struct Gathered {
  std::uint64_t ticket;
  observe::Report report;
};
struct ReportWanted {  // by a thread that serves other protocols than PostgreSQL's
  unsigned parts;      // of observe::Gather
  std::function<void(std::shared_ptr<const observe::Fleet>)> then;  // called in the control thread; must not block
};
struct ToControl {
  using Body = std::variant<ConsoleCommand, ConsoleCancel, Done, Gathered, ReportWanted>;
  explicit ToControl(Body&& b) : body(std::move(b)) {}
  Body body;
  ToControl* mailbox_next = nullptr;
};

}  // namespace pgf::worker
