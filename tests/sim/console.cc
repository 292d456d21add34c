#include "console.h"

#include "wire/read.h"
#include "wire/startup.h"
#include "wire/write.h"

namespace pgf::sim {

Console::Console(Network& network, Random& random, Trace& trace, int address, const std::vector<std::string>& commands,
                 Usec longest_thought)
    : network_(network),
      random_(random),
      trace_(trace),
      talk_(network.call(address)),
      commands_(commands.begin(), commands.end()),
      longest_thought_(longest_thought) {
  talk_.out = wire::startup_message(wire::protocol(0), {{"user", "admin"}, {"database", "pgbouncer"}});
}

bool Console::ready() const {
  if (over_) return false;
  if (talk_.writable() || talk_.readable()) return true;
  return free_ && think_until_ <= network_.now();
}

void Console::step() {
  if (talk_.writable()) return talk_.write(random_);
  if (talk_.readable()) {
    if (talk_.ended()) {
      talk_.close();
      over_ = true;
      return;
    }
    talk_.read(random_);
    while (auto m = talk_.next()) {
      if (m->type == 'E') trace_.text("console is told", 0, wire::read_error(m->body).message);
      if (m->type != 'Z') continue;
      trace_.note("console is answered");
      if (asked_) commands_.pop_front();
      asked_ = false;
      free_ = true;
      think_until_ = network_.now() + static_cast<Usec>(random_.below(static_cast<std::size_t>(longest_thought_)));
    }
    return;
  }
  if (!free_ || think_until_ > network_.now()) return;
  if (commands_.empty()) {
    talk_.close();
    over_ = true;
    return;
  }
  free_ = false;
  asked_ = true;
  asked_at_ = network_.now();
  trace_.text("console asks", 0, commands_.front());
  wire::query(talk_.out, commands_.front());
}

}  // namespace pgf::sim
