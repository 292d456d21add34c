#pragma once
// The network and the clock. A link is one TCP connection with two ends; bytes that one end has sent are on their way
// until the scheduler lets some of them arrive. An end belongs to the pooler (then it has a descriptor, of which the
// kernel knows nothing) or to a model of a client or server.
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/bytes.h"
#include "base/time.h"
#include "random.h"
#include "trace.h"

namespace pgf::sim {

class Link;

// One side of a link. Copyable; a name, not an owner.
struct End {
  Link* link = nullptr;
  int side = 0;

  explicit operator bool() const { return link != nullptr; }
  End other() const { return {link, 1 - side}; }
  std::size_t send(Bytes bytes) const;  // how many were taken; 0: no room
  std::size_t room() const;
  Bytes arrived() const;
  void consume(std::size_t n) const;
  bool eof() const;     // the other end has closed, and all that it said was read
  bool broken() const;  // reset: nothing more can be sent
  bool lost() const;    // … and what had been on its way to here is read
  void close() const;   // what is unread makes it a reset, as with TCP
  void reset() const;   // at once, and what is on its way is lost
  bool open() const;
};

class Link {
 public:
  enum class State : std::uint8_t { fresh, connecting, refused, established };

  std::uint32_t number;
  State state = State::fresh;
  struct Direction {
    std::string bytes;        // sent and not read
    std::size_t arrived = 0;  // of them
    bool fin = false, fin_arrived = false;
    Usec held_until = 0;  // nothing arrives before
    std::size_t on_way() const { return bytes.size() - arrived; }
  };
  Direction from[2];  // what each side has sent
  bool open[2] = {true, true};
  bool reset[2] = {false, false};  // this side knows that the link is gone
  int fd[2] = {-1, -1};            // of sides that are the pooler's
  std::size_t window = 65536;      // sent and not read, at most, each way
  int address = 0;                 // whom side 0 has called
  bool faulty = false;             // a fault was injected here

  bool over() const { return !open[0] && !open[1]; }
};

class Network {
 public:
  Network(Random& random, Trace& trace) : random_(random), trace_(trace) {}

  Usec now() const { return now_; }
  void advance(Usec to) {
    now_ = to;
    trace_.at(now_);
  }

  // ---- calling and answering
  // Whoever listens at `address` is given the other end when the scheduler has brought the call there. An end with a
  // negative fd is a model's.
  End call(int address);
  int make_socket();  // the pooler's; -1: errno
  void connect(int fd, int address);
  using Answer = std::function<void(End)>;
  void listen(int address, Answer answer) { answers_[address] = std::move(answer); }
  void silence(int address) { answers_.erase(address); }  // from now on calls are refused
  void black_hole(int address, bool on) { holes_[address] = on; }

  // ---- for the pooler's engines
  End end_of(int fd) const;
  int give_fd(End end);  // the pooler takes this end over
  void close_fd(int fd);
  std::size_t open_fds() const { return fds_.size(); }

  // ---- for the scheduler: what may happen next
  struct Event {
    Link* link;
    int side;  // whose bytes arrive; -1: the call gets an answer
  };
  void events(std::vector<Event>& into);
  void happen(const Event& event);
  Usec next_time() const;  // when something that is held may go on; -1: nothing is
  // A fault somewhere: a reset, or silence for a while. False: there is nothing to break.
  bool break_something(bool only_silence);
  void heal();  // nothing is held any more
  std::size_t window = 65536;
  std::size_t longest_hold = 0;  // µs
  bool no_more_sockets = false;  // EMFILE, now and then

  const std::vector<std::unique_ptr<Link>>& links() const { return links_; }

 private:
  Link& make();
  Random& random_;
  Trace& trace_;
  Usec now_ = kSecond;
  std::uint32_t next_number_ = 1;
  int next_fd_ = 1'000'000'000;
  std::vector<std::unique_ptr<Link>> links_;
  std::unordered_map<int, End> fds_;  // looked up, never walked
  std::map<int, Answer> answers_;
  std::map<int, bool> holes_;
};

}  // namespace pgf::sim
