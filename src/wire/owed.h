#pragma once
// The answers that a server still owes, in order (behaviour.md section 10). It decides when a server is free, which
// answers belong to messages that the pooler itself put into the stream, and where made-up answers have to stand.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "wire/prepared.h"

namespace pgf::wire {

enum class Ask : std::uint8_t { query, function_call, sync, parse, bind, describe, execute, close, copy_end };
enum class Give : std::uint8_t {
  forward,  // the client asked: it gets the answer
  skip,     // the pooler asked: the answer is swallowed
  fake,     // nothing was sent: an answer is made up when its turn comes (parse, close)
};

class Owed {
 public:
  struct Entry {
    Ask ask = Ask::query;
    Give give = Give::forward;
    StatementPtr statement;  // parse, close of a named statement: what to undo if the server never ran it
    std::string name;        // the client's name for it; empty when the pooler asked on its own
  };

  bool empty() const { return head_ == tail_; }
  std::size_t size() const { return tail_ - head_; }
  const Entry& front() const { return ring_[head_ & mask_]; }

  // A Sync ahead of the end of the COPY. Those behind it are answered, whatever comes of the COPY.
  bool sync_inside_copy() const {
    for (std::size_t i = head_; i != tail_; ++i) {
      Ask ask = ring_[i & mask_].ask;
      if (ask == Ask::sync) return true;
      if (ask == Ask::copy_end) return false;
    }
    return false;
  }

  // What was said after the entry at the front.
  template <class F>
  void each_behind_front(F&& f) {
    for (std::size_t i = head_ + 1; !empty() && i != tail_; ++i) f(ring_[i & mask_]);
  }

  // Is some answer to come that changes whether the server has this statement: to a Parse, or a Close?
  bool settles(Ask ask, const Statement& statement) const {
    for (std::size_t i = head_; i != tail_; ++i) {
      const Entry& e = ring_[i & mask_];
      if (e.ask == ask && e.give != Give::fake && e.statement.get() == &statement) return true;
    }
    return false;
  }

  // The number of the batch that is being said: one more with each Sync. Never 0.
  std::uint32_t batch() const { return batch_; }

  bool holds_sync() const {
    for (std::size_t i = head_; i != tail_; ++i)
      if (ring_[i & mask_].ask == Ask::sync) return true;
    return false;
  }

  bool holds_unnamed_parse() const {
    for (std::size_t i = head_; i != tail_; ++i)
      if (ring_[i & mask_].ask == Ask::parse && !ring_[i & mask_].statement) return true;
    return false;
  }

  template <class F>
  void each(F&& f) const {
    for (std::size_t i = head_; i != tail_; ++i) f(ring_[i & mask_]);
  }

  void push(Ask ask, Give give = Give::forward) { next(ask, give); }
  void push(Ask ask, Give give, StatementPtr statement, std::string_view name = {}) {
    Entry& e = next(ask, give);
    e.statement = std::move(statement);
    e.name = name;
  }
  Entry pop() { return std::move(ring_[head_++ & mask_]); }
  Give drop_front() {  // pop for entries whose statement is of no more interest; no move, no allocation
    Entry& e = ring_[head_++ & mask_];
    e.statement.reset();
    return e.give;
  }

  // An end of copy that reaches the front outside of a COPY is one that the server ignores: it never has an answer.
  void drop_copy_ends() {
    while (!empty() && front().ask == Ask::copy_end) drop_front();
  }

  // Does a server message of this type complete the front entry?
  bool completes_front(std::uint8_t type) const {
    if (empty()) return false;
    switch (type) {
      case 'Z':
        return front().ask == Ask::sync || front().ask == Ask::query || front().ask == Ask::function_call;
      case 'C':
      case 'I':
      case 's':
        return front().ask == Ask::execute;
      case '1':
        return front().ask == Ask::parse;
      case '2':
        return front().ask == Ask::bind;
      case '3':
        return front().ask == Ask::close;
      case 'T':
      case 'n':
        return front().ask == Ask::describe;
      default:
        return false;
    }
  }

  // ErrorResponse. An error in the extended protocol makes PostgreSQL skip everything up to the Sync, simple queries
  // and function calls too: if that has been said, what never ran is known now. `undo` is called for each such entry,
  // the last one first: one may have undone another. An end of copy at the front came too late to matter and is
  // answered by nothing.
  template <class Undo>
  void skip_after_error(Undo&& undo) {
    drop_copy_ends();
    if (!completes_front('Z') && holds_sync()) skip_to_sync(undo);
  }

  // ErrorResponse came, and the server skips what is said now, until there is a Sync.
  bool skips_what_comes() const { return !completes_front('Z') && !holds_sync(); }

  // ReadyForQuery after an error. It answers the front, or else the next Sync; what is skipped is undone as above.
  template <class Undo>
  void drop_through_ready(Undo&& undo) {
    drop_copy_ends();
    if (!completes_front('Z')) skip_to_sync(undo);
    if (!empty()) drop_front();
  }

  // The server left COPY IN, well or by an error: the Execute that started it, the Syncs that it ignored meanwhile and
  // the client's CopyDone/CopyFail will not be answered. Keeps a simple query at the front: its ReadyForQuery is still
  // to come. Keeps what stands behind any other message, too: the server cannot have got past that one in copy mode.
  // Returns whether the client's end of the copy was among them (if not, it is still on its way).
  bool leave_copy();

  void clear() {
    while (!empty()) pop();
  }

 private:
  template <class Undo>
  void skip_to_sync(Undo&& undo) {
    std::vector<Entry> skipped;
    while (!empty() && front().ask != Ask::sync) skipped.push_back(pop());
    for (auto e = skipped.rbegin(); e != skipped.rend(); ++e) undo(*e);
  }

  void grow();
  Entry& next(Ask ask, Give give) {
    if (size() == ring_.size()) grow();
    Entry& e = ring_[tail_++ & mask_];
    e.ask = ask;
    e.give = give;
    e.name.clear();
    if (ask == Ask::sync && ++batch_ == 0) batch_ = 1;
    return e;
  }

  std::vector<Entry> ring_;  // size is a power of two, or zero
  std::size_t head_ = 0, tail_ = 0, mask_ = 0;
  std::uint32_t batch_ = 1;
};

}  // namespace pgf::wire
