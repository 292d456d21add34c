// The table that processes share. With honest members its sums are right after every step; with garbage written into it
// by somebody else nothing hangs, and nothing is read or written outside of it. First byte: how many limits, and
// whether there is garbage.
#include "base/fuzz_kit.h"
#include "pool/ledger.h"

#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "base/bytes.h"

namespace {

using namespace pgf;
using pool::Stake;
namespace ledger = pool::ledger;

constexpr int kPeople = 3;

struct Bells final : pool::Ledger::Bells {
  void ring(std::uint32_t whom) override { rung |= whom; }
  std::uint32_t rung = 0;
};

ledger::Table& table() {  // 5 MB: made once
  static auto* t = static_cast<ledger::Table*>(std::aligned_alloc(4096, (sizeof(ledger::Table) + 4095) / 4096 * 4096));
  static bool fresh = [] {
    std::memset(static_cast<void*>(t), 0, sizeof *t);
    return true;
  }();
  (void)fresh;
  return *t;
}

// Rows in use back to zeros, so that each run begins alike.
void wipe(ledger::Table& t) {
  for (std::size_t i = 0; i < ledger::kRows; ++i) {
    if (t.keys[i].load(std::memory_order_relaxed) == 0) continue;
    t.keys[i].store(0);
    std::memset(static_cast<void*>(&t.table[i]), 0, sizeof(ledger::Row));
  }
  std::memset(static_cast<void*>(&t), 0, offsetof(ledger::Table, keys));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ledger::Table& t = table();
  ledger::format(t);
  must(ledger::fits(t));
  Cursor in({data, size});
  const std::uint8_t flags = in.u8();
  const bool garbage = flags & 1;
  const int limit = flags & 2 ? 2 : 5;  // fewer places than people: they go round
  Bells bells;
  std::vector<std::unique_ptr<pool::Ledger>> members;
  std::vector<std::unique_ptr<Stake>> stakes;
  int held[kPeople]{};
  for (int m = 0; m < kPeople; ++m) {
    members.push_back(std::make_unique<pool::Ledger>(t, m * 7, bells));
    members[m]->members.store(kPeople);
    members[m]->rank.store(m);
    members[m]->others.store(0x4081 & ~members[m]->bit());
    stakes.push_back(std::make_unique<Stake>(*members[m], "db"));
    stakes[m]->set_limit(limit);
  }
  ledger::Row& row = *members[0]->row("db");
  std::int64_t now = 0;
  while (in.ok()) {
    const std::uint8_t op = in.u8(), more = in.u8();
    if (!in.ok()) break;
    const int m = (op >> 4) % kPeople;
    Stake& stake = *stakes[m];
    const int before = stake.total();
    switch (op & 15) {
      case 0:
      case 1:
      case 2:
        if (stake.take(more & 1 ? 0 : limit, more & 2, held[m] + 1)) {
          ++held[m];
          if (!garbage && !(more & 1)) must(before < limit);
        }
        break;
      case 3:
      case 4:
        if (!garbage && held[m] == 0) break;
        stake.put();
        held[m] = std::max(0, held[m] - 1);
        break;
      case 5:
        stake.want(limit, more * 20 * kMillisecond);
        break;
      case 6:
        (void)stake.asked();
        break;
      case 7:
        stake.owe(static_cast<Stake::Ask>(more % 3));
        (void)stake.owes();
        (void)stake.claim();
        break;
      case 8:
        now += more * 10;
        for (auto& l : members) l->now.store(now);
        break;
      case 9:  // it died
        members[(m + 1) % kPeople]->reclaim(m * 7);
        held[m] = 0;
        break;
      case 10: {  // it hands over to the next one
        const int heir = (m + 1) % kPeople;
        if (held[m] == 0 || !stakes[heir]->take(0, false, 0)) break;
        ++held[heir];
        members[heir]->predecessor.store(m * 7);
        stakes[heir]->inherited();
        members[heir]->predecessor.store(-1);
        --held[m];
        break;
      }
      case 11:
        if (!garbage) break;
        (more & 1 ? members[m]->lost : members[m]->leaving).store(more & 2);
        break;
      case 12: {  // half an operation: whoever comes next has to note it
        const ledger::Begun begun = ledger::begin(row, members[m]->me(), true, limit);
        if (begun.done) ++held[m];
        break;
      }
      case 13:
        must(members[m]->part(more) <= more);
        break;
      default: {
        if (!garbage) break;
        const Bytes bytes = in.bytes(8);
        if (!in.ok()) break;
        auto* begin = reinterpret_cast<std::uint8_t*>(&row);
        std::memcpy(begin + more * 8 % sizeof(ledger::Row), bytes.data(), 8);
        break;
      }
    }
    must(stake.total() >= 0 && stake.waiting() == row.waiting.load());
    if (garbage) continue;
    int sum = 0;
    for (int i = 0; i < kPeople; ++i) {
      must(stakes[i]->here() == held[i]);
      sum += held[i];
    }
    must(ledger::count(row) == sum);
  }
  stakes.clear();
  wipe(t);
  return 0;
}
