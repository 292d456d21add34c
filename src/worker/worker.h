#pragma once
// One thread with its loop, its clients, its part of every pool. Everything is used by its own thread only, except
// post() and the public atomics.
#include <atomic>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "net/mailbox.h"
#include "session/host_probe.h"
#include "session/pool.h"
#include "worker/messages.h"

namespace pgf::worker {

class Fleet;

class Worker final : public session::Env, public net::LoopOwner, public net::AcceptOwner {
 public:
  Worker(Fleet& fleet, int number);
  ~Worker();

  void start(std::vector<int> listeners, std::vector<int> unix_listeners);
  void join();
  // What start() does in the new thread, for who has a loop of his own (tests/sim): begin() and end() are called where
  // the loop runs, before it and after it.
  void prepare(std::vector<int> listeners, std::vector<int> unix_listeners);
  void begin(std::unique_ptr<net::Engine> its_engine);
  void end();
  void post(ToWorker::Body body);  // any thread
  // For the watchdog, while the fleet runs.
  std::uint64_t beat() const;  // of the engine
  pthread_t thread() { return thread_.native_handle(); }
  int thread_id() const { return thread_id_.load(); }

  // How many clients it has or is about to get. Raised by whoever accepts a socket for it, lowered by this worker.
  alignas(64) std::atomic<int> load{0};
  // Clients that have said something lately; by this worker, a few times a second.
  std::atomic<int> active{0};
  // CPU time of the thread so far, in µs. Any thread, while the worker runs.
  Usec cpu_time();

 private:
  friend struct Inspector;  // tests/sim looks at the lists
  void main();
  std::unique_ptr<net::Engine> make_engine();
  // LoopOwner, AcceptOwner
  Usec on_turn(Usec now) override;
  void on_wake() override;
  void on_accept(int fd, int tag) override;
  void on_accept_error(int error, int tag) override;
  // Env
  void bury(session::Client* client) override;
  void bury(session::Server* server) override;
  void bury(session::CancelLink* link) override;
  std::uint32_t add_client(session::Client* client) override;
  session::Pool& pool(pool::PoolShared& shared) override;
  void ship(session::Server* server, int fd, int to) override;
  void ship(session::Client* client, int fd, int to) override;
  void ask_for_server(pool::PoolShared& pool, int from_worker, int count) override;
  void poke(pool::PoolShared& pool) override;
  void poke_after_close(pool::PoolShared& pool) override;
  void evict_idle(pool::PoolShared& wanted, pool::Permit::Refused why) override;
  void fail_waiters(pool::PoolShared& pool, std::string sqlstate, std::string text) override;
  void cancel(const wire::SentKey& key, session::ClientHandle requester) override;
  void cancel_done(session::ClientHandle requester, std::string_view reason) override;
  void resolve(std::string host, session::Server* server) override;
  void resolve_peer(std::string host, std::uint64_t question) override;
  bool judge(session::Client& client, auth::ExternalRequest request) override;
  void console(session::Client& client, std::string command) override;
  void cancel_console(session::Client& client) override;

  // worker_receive.cc
  void receive(NewClient&);
  void receive(MovedServer&);
  void receive(MovedClient&);
  void receive(MoveClients&);
  void receive(AskServers&);
  void receive(LentServers&);
  void receive(Poke&);
  void receive(FailWaiters&);
  void receive(EvictIdle&);
  void receive(GiveUp&);
  void receive(Cancel&);
  void receive(CancelDone&);
  void receive(ForwardCancel&);
  void receive(PeerResolved&);
  void receive(Resolved&);
  void receive(Judged&);
  void receive(HostMoved&);
  void receive(ConsoleReply&);
  void receive(NewConfig&);
  void receive(Command&);
  void receive(KillClient&);
  void receive(Gather&);
  void receive(TakeOver&);

  void new_client(int fd, bool unix_socket);
  session::Client* find(session::ClientHandle handle);
  void tick(Usec now);
  void look_at_clients(Usec now);
  void leave(session::Client* client);  // its slot is free
  bool move_clients(Usec now);          // looks at some clients; true: look again soon
  void cap_sends();
  void listen_again();
  void freeze(Usec now);
  void thaw();
  template <class F>
  void each_pool(F&& f) {
    for (auto& p : pools_)
      if (p) f(*p);
  }
  void report_clients(observe::Report& report);
  void report_handed(observe::Report& report);
  void report_servers(observe::Report& report);
  void report_pool(observe::Report& report, session::Pool& pool, bool latencies);
  bool go_on_gathering();  // some pools of a long report; true: there are more
  void finish(Gather& what, Gathered& answer);
  void report_peers(observe::Report& report);
  void report_hosts(observe::Report& report);
  void report_slow_waits(observe::Report& report);

  session::Prober prober_{*this};
  Fleet& fleet_;
  std::unique_ptr<net::Engine> engine_;
  std::thread thread_;
  std::atomic<int> thread_id_{0};  // the kernel's
  net::Mailbox<ToWorker> mailbox_;
  std::atomic<net::Engine*> wake_{nullptr};  // set by this worker once its engine exists
  static constexpr int kTcp = 0, kUnix = 1;  // listener tags
  std::vector<int> listeners_, unix_listeners_;
  std::vector<session::Client*> clients_;
  std::vector<std::uint32_t> free_slots_;
  int client_count_ = 0;
  std::vector<std::unique_ptr<session::Pool>> pools_;  // by PoolShared::number
  std::vector<session::Client*> dead_clients_;
  std::vector<session::Server*> dead_servers_;
  std::vector<session::CancelLink*> dead_links_;
  session::Peers peers_{*this};      // those that this worker serves
  std::uint64_t freeze_ticket_ = 0;  // SUSPEND waits for our answer
  Usec freeze_since_ = 0;
  Usec next_tick_ = 0, busy_since_ = 0, busy_sum_ = 0, window_start_ = 0;
  double busy_share_ = 0;
  std::uint64_t servers_in_ = 0, servers_out_ = 0;
  observe::MoveCounts clients_in_{}, clients_out_{};
  observe::CancelCounts cancels_{};
  struct MoveOrder {
    MoveClients what;
    std::vector<session::ClientHandle> chosen;  // and not gone yet: they may still have something to say
    std::size_t next;                           // to be looked at, in clients_
    Usec until;
  };
  std::vector<MoveOrder> move_orders_;
  struct Gathering {
    Gather what;
    Gathered answer;
    std::size_t next;  // of pools_
  };
  std::deque<Gathering> gatherings_;
};

}  // namespace pgf::worker
