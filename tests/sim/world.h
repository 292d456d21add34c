#pragma once
// One run: a pooler, servers, clients, an administrator and misfortune, all from one seed. The scheduler does one thing
// at a time, drawn from all that could happen now; if nothing can, it moves the clock.
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "console.h"
#include "pg_client.h"
#include "pg_server.h"
#include "pooler.h"

namespace pgf::sim {

struct Result {
  std::string violation;  // empty: none
  std::uint64_t hash = 0;
  std::size_t steps = 0, statements = 0, answers = 0, refused = 0, clients = 0, cancels_hit = 0, moved_servers = 0,
              moved_clients = 0, cancels_passed_on = 0, faults = 0;
  Usec time = 0;  // simulated
};

// What a run is to be like; the rest is drawn.
struct Special {
  int workers = 0;  // 0: any
  bool calm = false, faults = false, two_databases = false, one_user = false;
  std::string_view mode = {};  // empty: any
  std::string ini = {};        // its last lines
};

class World {
 public:
  World(std::uint64_t seed, Trace& trace, Special special = {});
  Result run();

 private:
  void draw_rules();
  std::string ini(std::size_t pooler);
  void begin();
  void arrive();
  bool step();  // false: it is at rest
  void misfortune();
  void heal();
  void pass_time();
  Usec next_time() const;
  bool all_gone() const;
  void forget_the_dead();
  void until_gone();
  void wind_down();
  std::vector<std::string> administration();
  std::string state();

  const std::uint64_t seed_;
  const Special special_;
  Trace& trace_;
  Random random_;
  Network network_{random_, trace_};
  ServerRules server_rules_;
  ClientRules client_rules_;
  Pooler::Setup setup_;
  std::vector<std::unique_ptr<PgServer>> servers_;
  std::vector<std::unique_ptr<Pooler>> poolers_;  // peers of each other
  std::vector<std::unique_ptr<PgClient>> clients_;
  std::set<std::uint64_t> left_cancelling_;  // clients that are gone, and their cancel request may still be under way
  std::unique_ptr<Console> console_;

  bool faults_ = false, healed_ = false;
  std::size_t fault_every_ = 0;
  std::size_t to_come_ = 0, at_once_ = 0;
  std::uint64_t next_client_ = 1;
  Usec suspend_timeout_ = 0, next_arrival_ = 0, stride_ = 100, restart_at_ = -1;
  Result result_;
  // Drawn once, used for each ini.
  std::string fixed_ini_;
  std::vector<Network::Event> events_;
  struct Turn {
    std::size_t pooler;
    int worker;  // -1: the control thread
  };
  std::vector<Turn> turns_;
  std::vector<Actor*> actors_;
};

}  // namespace pgf::sim
