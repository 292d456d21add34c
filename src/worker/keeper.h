#pragma once
// A thread that listens to the processes with which this one shares its limits: what they free is offered to our
// waiting clients, what they need is asked of our workers, and what the dead leave is given back.
#include <atomic>
#include <thread>

#include "worker/ledger_file.h"

namespace pgf::worker {

class Fleet;

class Keeper {
 public:
  Keeper(Fleet& fleet, LedgerFile& file);
  ~Keeper();

 private:
  void main();
  void serve();  // our clients that wait for a place
  void ask();    // our workers, for what others are due

  Fleet& fleet_;
  LedgerFile& file_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

}  // namespace pgf::worker
