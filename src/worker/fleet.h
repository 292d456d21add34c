#pragma once
// The whole program: shared state, workers, and the mailbox of the control thread.
#include <latch>
#include <memory>
#include <vector>

#include "external/judges.h"
#include "net/mailbox.h"
#include "net/resolver.h"
#include "worker/keeper.h"
#include "worker/messages.h"
#include "worker/worker.h"

namespace pgf::worker {

// What the main program decided before any thread exists.
struct Plan {
  int workers = 1;
  int cores = 1;  // that this process may use
  bool use_uring = false;
  std::string engine_reason;                // why not io_uring, if so
  std::vector<std::vector<int>> listeners;  // per worker: its listening TCP sockets
  std::vector<int> unix_listeners;          // accepted by worker 0, handed to the least loaded
  bool listeners_are_lent = false;          // by the service manager: they listen on when we do not
  std::shared_ptr<LedgerFile> ledger;       // limits that are shared with other processes; null: they are ours alone
};

net::ResolverTimes resolver_times(const config::Settings& settings);

class Fleet {
 public:
  Fleet(Log& log, std::shared_ptr<const config::Config> config, std::shared_ptr<const session::TlsSetup> tls,
        Plan plan);
  ~Fleet();

  void start();
  // What the process before us left, dealt out to the workers: who belongs together stays together.
  void take_over(std::vector<session::Handed> rows);
  bool stop();  // ends and joins all workers; false: one of them is stuck, there is no other end than _exit()
  // A worker's loop has ended. Returns when no thread can post to any worker any more, so that engines may be freed.
  void loop_ended();
  // To the least loaded worker that is not stuck.
  void place(int client_fd, bool unix_socket);
  Worker& worker(int number) { return *workers_[static_cast<std::size_t>(number)]; }
  void broadcast(const ToWorker::Body& body);
  void to_control(ToControl::Body body);  // any thread

  Log& log;
  session::Shared shared;
  const bool use_uring;
  std::unique_ptr<net::Resolver> resolver;
  std::unique_ptr<external::Judges> judges;
  std::unique_ptr<Keeper> keeper;
  net::Mailbox<ToControl> control;
  int control_event = -1;                        // eventfd: something is in `control`
  std::shared_ptr<const config::Config> config;  // control thread only, once started
  std::shared_ptr<const session::TlsSetup> tls;  // likewise; in force, which SET of a bad value leaves as it was
  const Plan plan;

 private:
  std::vector<std::unique_ptr<Worker>> workers_;
  bool running_ = false;
  std::latch loops_running_, posts_possible_{1};
};

}  // namespace pgf::worker
