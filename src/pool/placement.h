#pragma once
// Which worker should serve whom: decisions about clients that are connected already
// (docs/decisions/0009-placement.md). One thread asks a few times a second, with what the workers look like; nothing
// here does I/O or reads a clock.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/time.h"
#include "config/settings.h"

namespace pgf::pool {

enum class MoveReason : std::uint8_t {
  accept,   // a new connection goes to the worker with the fewest clients
  gather,   // the program is nearly idle, or has more workers than cores: those who talk come together
  relieve,  // away from a worker that is hot
  level,    // the load is real, and one worker has many more clients than others
  shuffle,  // placement = shuffle
};
inline constexpr int kMoveReasons = 5;
std::string_view to_text(MoveReason reason);

class Placement {
 public:
  struct Load {                   // of one worker
    int clients = 0, active = 0;  // active: said something lately
    double busy = 0;              // CPU time per time since the last look, 0..1
  };
  struct Move {
    int from, to, count;
    MoveReason reason;
  };

  // With more workers than `cores` only the first ones get work: more threads than that only keep each other waiting.
  Placement(int workers, int cores)
      : cores_(static_cast<std::size_t>(cores)), why_(static_cast<std::size_t>(workers)) {}
  std::vector<Move> plan(config::Placement policy, std::span<const Load> loads, Usec now);
  // The last move from or to a worker, in words; empty: there was none.
  const std::string& why(int worker) const { return why_[static_cast<std::size_t>(worker)]; }
  bool gathered() const { return !targets_.empty(); }

  static constexpr double kHot = 0.8;      // a worker this busy has others wait
  static constexpr double kComfort = 0.5;  // what a worker is given when few are to do the work
  static constexpr double kQuiet = 1.0;    // the whole program, in cores: less is nearly idle

 private:
  std::vector<Move> crowd(std::span<const Load> loads) const;
  std::vector<Move> relieve(std::span<const Load> loads) const;
  std::vector<Move> gather(std::span<const Load> loads, double total);
  std::vector<Move> level(std::span<const Load> loads) const;
  void forget();

  const std::size_t cores_;
  std::vector<int> targets_;  // the workers that clients were brought together on; empty: they are spread
  int hot_looks_ = 0, quiet_looks_ = 0;
  Usec settled_at_ = 0, calm_until_ = 0, gathered_at_ = 0, crowd_at_ = 0, calm_ = 0;  // calm_: length of the last calm
  std::vector<std::string> why_;
};

}  // namespace pgf::pool
