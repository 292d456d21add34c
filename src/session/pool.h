#pragma once
// One worker's part of a pool: its lists, and the decisions who gets which server (design.md section 5).
#include <deque>
#include <memory>

#include "base/list.h"
#include "session/cancel.h"
#include "session/client.h"
#include "session/env.h"
#include "session/latencies.h"
#include "session/server.h"

namespace pgf::session {

struct PoolCounters {  // admin.md, SHOW STATS; this worker's part
  std::uint64_t assignments = 0, xacts = 0, queries = 0, received = 0, sent = 0, xact_time = 0, query_time = 0,
                wait_time = 0, client_parses = 0, server_parses = 0, binds = 0, logins = 0;
};

class Pool : public ListNode {  // in Env::queues while clients wait here and other workers exist
 public:
  Pool(Env& env, pool::PoolShared& shared);
  Pool(const Pool&) = delete;

  void configure();  // after start and RELOAD: entry and policy from env.config
  bool removed() const { return removed_; }

  // A client wants a server. True: linked (client->server is set, maybe still taking over parameters). False: queued.
  bool take(Client& client);
  void queue_for_welcome(Client& client);
  // Replication (session/replication.cc): a client waits for a new connection of its own. Which kind a new connection
  // becomes is decided when its startup packet is sent: whoever waits longest gets it.
  void join(Client& client);
  Client* next_joining();       // who is first to get the next connection, if that is a replication client
  void joined(Server& server);  // it has logged in
  void leave_queue(Client& client);
  // A server is free: to whoever waits, else idle.
  void offer(Server& server);
  void service();       // whoever waits: welcome, idle servers here and elsewhere, a new connection
  void tick(Usec now);  // timeouts and sizes, three times a second
  // pool_idle_timeout is over, and nothing of this worker is left here: the worker drops the object.
  bool disused(Usec now);
  void server_arrived(Server& server);
  void opened();                // a connection has been opened: the next one may be
  int lend(int to, int count);  // ship idle servers to another worker; how many went
  void lend_answered(int count);
  void drained(Server& server);  // idle, and all that was queued is sent now
  bool evict_one();              // close the longest idle server
  void recycle();                // close_needed for outdated servers (RECONNECT, changed entry)
  void check_addresses();        // close_needed for servers whose host has moved
  void check_places();           // … is no longer in the list
  void fail_waiters(std::string_view sqlstate, std::string_view text);
  void pause_servers();  // PAUSE: close what is idle
  bool freeze();         // SUSPEND: true when all servers stand still
  void thaw();
  void abandon();                    // the worker ends: servers and cancels go silently
  void drop_all(const Say& reason);  // KILL, database removed
  Usec age_queue(Usec now);          // call each turn while in Env::queues; returns when to call again, 0 = no need
  void cancels_lost(Server& server);
  void queue_cancel(std::uint64_t client_id, ClientHandle requester);  // no permit for a cancel connection now
  void next_cancel();
  std::size_t queued_cancels() const { return queued_cancels_.size(); }
  void unlist(Server& server);
  void list(Server& server, Server::Phase phase);
  bool paused() const;
  bool wanted() const { return !waiting.empty() || !joining.empty(); }

  const config::Database& entry() const { return entry_; }
  const config::PoolPolicy& policy() const { return policy_; }
  const std::shared_ptr<const pool::Welcome>& welcome() const { return welcome_; }
  void learn_welcome(std::shared_ptr<const pool::Welcome> welcome);
  const std::string& server_user() const { return shared.user.name; }

  Env& env;
  pool::PoolShared& shared;
  List<Client> waiting;
  List<Client> joining;  // linked already, if they have a server: it is logging in
  List<Client> clients;  // logged in, not queued
  List<Server> idle;     // front = most recently used
  List<Server> active, tested, login, held_back, moving, closing;
  List<CancelLink> cancel_links;
  PoolCounters counters;
  Latencies latencies;

 private:
  Server* pop_idle(Client& client);
  bool launch(Client* waiter);
  void find_server(Client& waiter);
  bool owed_to_sibling();
  Usec longest_wait(Usec here) const;
  bool checks_missing() const;
  bool owed_to_fleet();
  void settle_hunger();
  void publish_idle();
  void set_waiting_bit();
  void promise(Server& server, Client& client);
  bool ask_others();
  bool promised() const;
  bool unpromise();
  bool give_to_other(Server& server);
  void greet();
  Client* next_waiter();
  Client* first_joining();
  bool sound(Server& server);
  bool check_due(const Server& server) const;
  void look_elsewhere();
  void publish_front();
  void tick_servers(Usec now);
  void rebalance(Usec now);
  config::ClientPolicy client_policy(const Client& client) const;
  struct QueuedCancel {
    std::uint64_t client_id;
    ClientHandle requester;
    Usec since;
  };

  config::Database entry_;
  config::PoolPolicy policy_{};
  std::shared_ptr<const pool::Welcome> welcome_;
  std::uint32_t welcome_generation_ = 0;
  int ungreeted_ = 0;     // of `waiting`: clients in phase welcome
  bool asked_ = false;    // a request for servers is under way …
  Usec asked_at_ = 0;     // … since
  bool in_vain_ = false;  // the last one brought nothing
  struct {
    int worker = -1;
    Usec since = 0;  // its first client waits; 0: none, or they are all being seen to
    int any = -1;    // some worker with waiters
  } eldest_;         // elsewhere, when last looked
  Usec looked_at_ = 0, next_age_ = 0;
  std::uint64_t front_id_ = 0;  // whose time is published
  bool bit_set_ = false;
  bool removed_ = false;
  Usec last_lifetime_kill_ = 0;
  std::deque<QueuedCancel> queued_cancels_;
};

}  // namespace pgf::session
