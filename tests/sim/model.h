#pragma once
// What the models of clients and servers share: who gets a turn, messages on a link, the little SQL that they speak.
//
// A statement is words: what it is, whose it is (client), its serial number, and more. So the server can tell whom it
// works for, and each answer whom it is for.
//   rows C S N W       N rows of W bytes          write C S        a change, its id is (C, S)
//   fail C S           an error                   set C S NAME VALUE
//   begin|commit|rollback C S                     copyin|copyout C S N W
// A prepared one belongs to nobody, `prep ID N W`, and is told by its two parameters, C and S.
// What begins otherwise is the pooler's, or DEALLOCATE and DISCARD.
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "network.h"

namespace pgf::sim {

// Takes part in the run: the scheduler asks who is ready, and gives one of them a step.
class Actor {
 public:
  virtual ~Actor() = default;
  virtual bool ready() const = 0;
  virtual void step() = 0;
  virtual Usec next_time() const { return -1; }  // when it will be ready without anything else happening
  virtual bool over() const = 0;                 // it is forgotten
};

inline constexpr std::array<std::string_view, 5> kTracked{"DateStyle", "client_encoding", "TimeZone",
                                                          "standard_conforming_strings", "application_name"};
using Params = std::array<std::string, kTracked.size()>;
int tracked(std::string_view name);  // -1: not tracked
// As PostgreSQL calls a value that may be given in other words.
std::string canonical(int parameter, std::string_view value);
std::string digest(const Params& params);

std::vector<std::string_view> words(std::string_view text);
std::uint64_t number(std::string_view word);

// Messages that arrive, and bytes that are to go out, of one end.
class Talk {
 public:
  explicit Talk(End end = {}) : end_(end) {}

  End end() const { return end_; }
  bool alive() const { return bool(end_) && end_.open(); }
  bool readable() const { return alive() && (!end_.arrived().empty() || ended()); }
  bool writable() const { return alive() && !out.empty() && (end_.room() > 0 || end_.broken()); }
  bool ended() const { return end_.eof() || end_.lost(); }
  void read(Random& random);   // some of what has arrived
  void write(Random& random);  // some of what is to go
  // The network forgets a link that is closed on both sides; so does this.
  void close() {
    if (alive()) end_.close();
    end_ = {};
  }
  void reset() {
    if (alive()) end_.reset();
    end_ = {};
  }
  // The next message is complete: its type (0: a startup packet, if those are expected) and body, valid until the next
  // call.
  struct Message {
    char type;
    Bytes body;
  };
  std::optional<Message> next(bool startup = false);
  bool complete(bool startup = false) const;  // is there a next one?
  bool has_rest() const { return in_.size() > used_; }

  std::string out;

 private:
  End end_;
  std::string in_;
  std::size_t used_ = 0;
};

}  // namespace pgf::sim
