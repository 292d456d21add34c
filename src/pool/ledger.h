#pragma once
// One budget for several processes of one machine (docs/decisions/0010-one-budget-for-several-processes.md): a table in
// memory that they all map, one row per limit. Whoever dies at whatever instruction leaves it consistent, and nobody
// ever waits for anybody: there is no lock. It is changed when connections are opened and closed, and looked at a few
// times a second.
//
// Nothing here does I/O or reads a clock: the memory, the time and the way to wake others are handed in
// (worker/ledger_file.h, worker/keeper.h).
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/time.h"

namespace pgf::pool {

// What lies in the memory. Every word may be changed by any process at any time, and none of it is believed: an index
// is masked, a count is only compared.
namespace ledger {

inline constexpr int kMembers = 32;  // processes
inline constexpr std::uint32_t kRows = 8192;
inline constexpr std::string_view kMagic = "pgflotilla-fleet";
inline constexpr std::uint32_t kVersion = 1;

// `total` is the one word that decides: how many places are taken, and what the last operation was: which member did
// it, and whether it took or gave back. An operation is one compare-and-swap of that word. Its other half, the
// member's own count, is noted by whoever comes next, if the member is not there to do it: before anybody may change
// `total` again the last operation has to be noted (note()). A member's count carries the number of the last operation
// that it contains, so that it is noted once. So at any instant: total = sum of all counts, and the last operation if
// it is not noted yet.
struct Row {
  std::atomic<std::uint64_t> total{0};  // number of the operation << 32 | count << 6 | member << 1 | taken
  // The hungry one: a member with clients that wait and less than its fair share. All others yield to it, and one that
  // has more than its share gives up a place: `claimed` says that somebody does.
  std::atomic<std::uint64_t> mark{0};  // serial << 32 | limit << 6 | member + 1, or 0 for nobody
  std::atomic<std::uint64_t> claimed{0};
  std::atomic<std::int64_t> until{0}, raised{0};  // ms; a mark that is not renewed is void
  std::atomic<std::uint32_t> waiting{0};          // bit m: m is to be woken when something changes
  std::atomic<std::uint64_t> held[kMembers]{};    // count << 32 | number of the last operation in it
  std::atomic<std::int64_t> served[kMembers]{};   // ms; when it last took a place
};

struct Seat {  // of a member; its lock in the file says whether its process lives
  enum State : std::uint32_t { empty, taken, leaving };
  std::atomic<std::uint32_t> state{empty};
  std::atomic<std::int32_t> pid{0};
  std::atomic<std::uint32_t> bell{0};  // changes when there is news for this member
};

struct Table {
  char magic[16];
  std::uint32_t version, members, rows, row_size;
  Seat seats[kMembers];
  std::atomic<std::uint64_t> keys[kRows];  // hash of a limit's name, 0 = free; the row of the same index is its row
  Row table[kRows];
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

void format(Table& table);              // fresh memory, all zeros
bool fits(const Table& table);          // header of this version
bool is_ledger(std::string_view head);  // begins like one, of whatever version

// The two halves of an operation, apart for the tests' sake. begin() returns the new total, or nothing if it would pass
// the limit (<= 0: none) or give back what is not held.
struct Begun {
  bool done;
  std::uint64_t total;
};
Begun begin(Row& row, int member, bool take, int limit);
void note(Row& row, std::uint64_t total);
int held(Row& row, int member);
int count(const Row& row);

}  // namespace ledger

// This process's view of the table.
class Ledger {
 public:
  struct Bells {  // how to wake members, bit by bit
    virtual void ring(std::uint32_t whom) = 0;

   protected:
    ~Bells() = default;
  };

  Ledger(ledger::Table& table, int seat, Bells& bells) : table_(table), me_(seat), bells_(bells) {}

  ledger::Row* row(std::string_view name);  // null: the table is full
  int me() const { return me_; }
  std::uint32_t bit() const { return std::uint32_t{1} << me_; }
  ledger::Table& table() { return table_; }
  void ring(std::uint32_t whom) {
    if (whom) bells_.ring(whom);
  }
  void ring_others() { ring(others.load(std::memory_order_relaxed)); }

  // Everything that a dead member holds is free again. Any number of processes may do this at once, and die in it.
  void reclaim(int member);
  // `part` of what is divided, not shared: a minimum.
  int part(int whole) const;

  // Written by the keeper, read by all threads; what is decided by them need not be exact.
  std::atomic<int> members{1}, rank{0};  // that live, and which of them we are
  std::atomic<std::uint32_t> others{0};  // they, without us
  std::atomic<std::int64_t> now{0};      // ms, of the last turn of the keeper
  std::atomic<int> predecessor{-1};      // seat of the process that we took over from
  std::atomic<bool> leaving{false};      // this process ends: what it holds is given back when it is gone
  std::atomic<bool> full{false};         // a limit found no row
  // The file was cut short under us. What we map now is nobody else's: each process keeps to its part of every limit.
  std::atomic<bool> lost{false};

 private:
  ledger::Table& table_;
  const int me_;
  Bells& bells_;
};

// This process's part in one limit. Any thread.
class Stake {
 public:
  Stake(Ledger& ledger, std::string_view name) : ledger_(ledger), row_(ledger.row(name)) {}

  // limit <= 0: counted, not limited. `yield`: not while a hungry member is to have the next place. `here`: how many we
  // would have.
  bool take(int limit, bool yield, int here);
  void put();
  // take() refused, and a client waits since `waited`: we want to be woken, and what is due to us. Try again after
  // this: a place that came free before nobody will tell us of.
  void want(int limit, Usec waited);
  // A connection of the process before us is ours now and was taken: it is no longer that one's.
  void inherited();

  // What other processes ask of this one.
  enum class Ask { nothing, idle, any };  // a place that has been idle for a while; or the next one that it frees
  Ask asked() const;
  // The keeper asks our threads to give one up. One of them claims: it then closes a connection.
  void owe(Ask what) { owed_.store(what, std::memory_order_relaxed); }
  bool owes() const { return owed_.load(std::memory_order_relaxed) == Ask::any; }
  bool claim();

  void set_limit(int limit) { limit_.store(limit, std::memory_order_relaxed); }  // ours; for asked()
  int total() const { return row_ ? ledger::count(*row_) : 0; }
  int here() const { return row_ ? ledger::held(*row_, ledger_.me()) : 0; }
  std::uint32_t waiting() const { return row_ ? row_->waiting.load(std::memory_order_relaxed) : 0; }

 private:
  bool hungry_other(std::uint64_t mark) const;
  bool its_turn() const;
  void raise(int limit);

  Ledger& ledger_;
  ledger::Row* const row_;
  std::atomic<int> limit_{0};
  std::atomic<Ask> owed_{Ask::nothing};
};

}  // namespace pgf::pool
