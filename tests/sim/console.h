#pragma once
// An administrator: logs in to the console and gives commands, one at a time.
#include <deque>

#include "model.h"

namespace pgf::sim {

class Console final : public Actor {
 public:
  Console(Network& network, Random& random, Trace& trace, int address, const std::vector<std::string>& commands,
          Usec longest_thought);
  bool ready() const override;
  void step() override;
  Usec next_time() const override { return !over_ && think_until_ > network_.now() ? think_until_ : -1; }
  bool over() const override { return over_; }
  std::vector<std::string> left() const { return {commands_.begin(), commands_.end()}; }  // when it is over: not done
  // For how long SUSPEND is under way; 0: it is not.
  Usec suspending() const {
    return !over_ && asked_ && commands_.front() == "SUSPEND" ? network_.now() - asked_at_ : 0;
  }
  std::string story() const { return over_ || commands_.empty() ? "" : "the console waits for " + commands_.front(); }

 private:
  Network& network_;
  Random& random_;
  Trace& trace_;
  Talk talk_;
  std::deque<std::string> commands_;  // the first one is being carried out, if asked_
  bool free_ = false, asked_ = false, over_ = false;
  Usec longest_thought_, think_until_ = 0, asked_at_ = 0;
};

}  // namespace pgf::sim
