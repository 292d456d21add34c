#pragma once
// The program under test: a fleet with its workers and its control thread, none of which has a thread. The scheduler
// gives each of them its turns.
#include <memory>
#include <string>
#include <vector>

#include "engine.h"
#include "network.h"
#include "worker/control.h"
#include "worker/fleet.h"

namespace pgf::sim {

class Pooler {
 public:
  struct Setup {
    int workers = 1;
    int address = 0;  // where clients call
    std::string ini, users;
    net::SimOptions engine;
  };
  Pooler(Network& network, Random& random, Trace& trace, Setup setup);
  ~Pooler();

  int workers() const { return setup_.workers; }
  bool ready(int worker) const { return engine(worker).ready(); }
  void turn(int worker);
  bool control_ready() const;
  void control_turn();
  Usec next_time() const;                                         // somebody's next turn; -1: none
  void new_ini(std::string ini) { setup_.ini = std::move(ini); }  // for the next RELOAD

  // Invariants. The first two are for every moment, at_rest() for when nothing can happen but time.
  void check_limits();
  void check_queues();
  void check_rest();
  void check_empty();  // all clients are gone, and everything is counted back
  std::string state();
  std::size_t idle_servers();
  worker::Fleet& fleet() { return *fleet_; }
  bool server_lent = false;  // for statistics
  struct Moved {
    std::uint64_t servers = 0, clients = 0, cancels = 0;  // cancels: to peers
  };
  Moved moved();

 private:
  net::SimEngine& engine(int worker) const { return *engines_[static_cast<std::size_t>(worker)]; }
  config::LoadResult load() const;

  Network& network_;
  Random& random_;
  Trace& trace_;
  Setup setup_;
  Log log_;
  std::unique_ptr<worker::Fleet> fleet_;
  std::vector<net::SimEngine*> engines_;  // the workers'
  std::unique_ptr<worker::Control> control_;
  Usec control_due_ = 0;
  int most_pool_ = 0, most_database_ = 0, most_user_ = 0;  // of all configurations so far
};

}  // namespace pgf::sim
