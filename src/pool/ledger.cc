#include "pool/ledger.h"

#include <bit>
#include <cstring>

#include "crypto/crypto.h"
#include "pool/shared.h"

namespace pgf::pool {
namespace ledger {
namespace {

constexpr std::uint64_t kCountMask = (1u << 26) - 1;

constexpr std::uint32_t number_of(std::uint64_t word) { return static_cast<std::uint32_t>(word >> 32); }
constexpr std::uint32_t number_in(std::uint64_t held) { return static_cast<std::uint32_t>(held); }
constexpr int count_of(std::uint64_t total) { return static_cast<int>(total >> 6 & kCountMask); }
constexpr std::size_t member_of(std::uint64_t total) { return total >> 1 & (kMembers - 1); }
constexpr bool took(std::uint64_t total) { return total & 1; }

constexpr std::uint64_t make_total(std::uint32_t number, int count, int member, bool taken) {
  return std::uint64_t{number} << 32 | (static_cast<std::uint64_t>(count) & kCountMask) << 6 |
         static_cast<std::uint64_t>(member) << 1 | taken;
}

}  // namespace

void format(Table& table) {
  std::memcpy(table.magic, kMagic.data(), kMagic.size());
  table.version = kVersion;
  table.members = kMembers;
  table.rows = kRows;
  table.row_size = sizeof(Row);
}

bool fits(const Table& table) {
  return std::string_view(table.magic, kMagic.size()) == kMagic && table.version == kVersion &&
         table.members == kMembers && table.rows == kRows && table.row_size == sizeof(Row);
}

bool is_ledger(std::string_view head) { return head.starts_with(kMagic); }

// Idempotent, for the last operation only. The count is loaded first: if `total` still says the same after that, and
// the count does not have this operation's number, then nobody has noted it, and the swap finds out if anybody does.
void note(Row& row, std::uint64_t total) {
  std::atomic<std::uint64_t>& own = row.held[member_of(total)];
  for (;;) {
    std::uint64_t now = own.load();
    if (number_in(now) == number_of(total) || row.total.load() != total) return;
    std::uint64_t n = now >> 32;
    n = took(total) ? n + 1 : n ? n - 1 : 0;
    if (own.compare_exchange_weak(now, n << 32 | number_of(total))) return;
  }
}

Begun begin(Row& row, int member, bool take, int limit) {
  std::uint64_t now = row.total.load();
  for (;;) {
    note(row, now);
    const int taken = count_of(now);
    if (take ? limit > 0 && taken >= limit
             : taken == 0 || row.held[static_cast<std::size_t>(member)].load() >> 32 == 0) {
      const std::uint64_t again = row.total.load();
      if (again == now) return {false, now};
      now = again;
      continue;
    }
    const std::uint64_t next = make_total(number_of(now) + 1, taken + (take ? 1 : -1), member, take);
    if (row.total.compare_exchange_weak(now, next)) return {true, next};
  }
}

int held(Row& row, int member) {
  note(row, row.total.load());
  return static_cast<int>(row.held[static_cast<std::size_t>(member)].load() >> 32);
}

int count(const Row& row) { return count_of(row.total.load()); }

}  // namespace ledger

using ledger::Row;

// ---- marks ----

static constexpr std::int64_t kMarkTime = 1000;      // ms; those who wait renew theirs three times in that
static constexpr std::int64_t kMarkPatience = 1500;  // then whoever claimed it has not freed anything: ask again
static constexpr std::uint64_t kLimitMask = (1u << 26) - 1;

// Row::claimed for this mark: a place is about to be given up for it, or was.
static std::uint64_t paid(std::uint64_t mark) { return ~mark; }
static bool claimed(const Row& row, std::uint64_t mark) {
  const std::uint64_t by = row.claimed.load();
  return by == mark || by == paid(mark);
}

static int mark_member(std::uint64_t mark) { return static_cast<int>(mark & 63) - 1; }  // -1: nobody
static int mark_limit(std::uint64_t mark) { return static_cast<int>(mark >> 6 & kLimitMask); }

bool Stake::hungry_other(std::uint64_t mark) const {
  const int member = mark_member(mark);
  return member >= 0 && member != ledger_.me() && ledger_.now.load(std::memory_order_relaxed) < row_->until.load();
}

void Stake::raise(int limit) {
  const std::int64_t now = ledger_.now.load(std::memory_order_relaxed);
  std::uint64_t mark = row_->mark.load();
  if (hungry_other(mark)) return;  // one after the other: we are woken when that one has its place
  // One place was given up for it and it was not enough, as with a limit smaller than the others': once more.
  const bool again = row_->claimed.load() == paid(mark);
  if (mark_member(mark) == ledger_.me() && !again && now - row_->raised.load() < kMarkPatience)
    return row_->until.store(now + kMarkTime);
  const std::uint64_t fresh = ((mark >> 32) + 1) << 32 | (static_cast<std::uint64_t>(limit) & kLimitMask) << 6 |
                              static_cast<std::uint64_t>(ledger_.me() + 1);
  row_->raised.store(now);
  row_->until.store(now + kMarkTime);
  if (row_->mark.compare_exchange_strong(mark, fresh)) ledger_.ring_others();
}

// ---- a stake ----

bool Stake::take(int limit, bool yield, int here) {
  if (!row_) return limit <= 0;
  auto alone = [&] { return limit <= 0 || here <= ledger_.part(limit); };
  if (ledger_.lost.load(std::memory_order_relaxed)) return alone();
  if (limit > 0 && yield && hungry_other(row_->mark.load())) return false;
  const ledger::Begun begun = ledger::begin(*row_, ledger_.me(), true, limit);
  if (!begun.done) return false;
  ledger::note(*row_, begun.total);
  if (ledger_.lost.load(std::memory_order_relaxed)) return alone();  // just now
  row_->served[ledger_.me()].store(ledger_.now.load(std::memory_order_relaxed));
  std::uint64_t mark = row_->mark.load();
  if (mark_member(mark) == ledger_.me() && row_->mark.compare_exchange_strong(mark, mark >> 32 << 32))
    ledger_.ring(row_->waiting.fetch_and(ledger_.bit()) & ~ledger_.bit());
  return true;
}

void Stake::put() {
  if (!row_ || ledger_.leaving.load(std::memory_order_relaxed)) return;
  const ledger::Begun begun = ledger::begin(*row_, ledger_.me(), false, 0);
  if (begun.done) ledger::note(*row_, begun.total);
  std::uint64_t mark = row_->mark.load();
  if (hungry_other(mark)) {
    std::uint64_t by = mark;
    row_->claimed.compare_exchange_strong(by, paid(mark));
  }
  ledger_.ring(row_->waiting.fetch_and(ledger_.bit()) & ~ledger_.bit());
}

void Stake::inherited() {
  const int before = ledger_.predecessor.load(std::memory_order_relaxed);
  if (!row_ || before < 0) return;
  const ledger::Begun begun = ledger::begin(*row_, before, false, 0);
  if (begun.done) ledger::note(*row_, begun.total);
}

// With fewer places than members nobody has a share for itself: places go round. Who has got one has it for a while,
// as long as a pool waits under a limit that pools share (kFamine). Then it is the turn of the one that had its last
// one longest ago; after a while more, of anybody: that one may not come.
bool Stake::its_turn() const {
  const std::int64_t pause = ledger_.now.load(std::memory_order_relaxed) - row_->raised.load();
  if (pause < kFamine / kMillisecond) return false;
  if (pause >= 4 * kFamine / kMillisecond) return true;
  const std::int64_t mine = row_->served[ledger_.me()].load();
  std::uint32_t rivals = row_->waiting.load() & ledger_.others.load(std::memory_order_relaxed);
  for (; rivals; rivals &= rivals - 1) {
    const int m = std::countr_zero(rivals);
    if (row_->served[m].load() < mine && ledger::held(*row_, m) == 0) return false;
  }
  return true;
}

void Stake::want(int limit, Usec waited) {
  if (!row_ || limit <= 0) return;
  const std::uint32_t before = row_->waiting.fetch_or(ledger_.bit());
  const int fair = limit / std::max(1, ledger_.members.load(std::memory_order_relaxed));
  const bool due = fair > 0 || mark_member(row_->mark.load()) == ledger_.me() || (waited >= kFamine && its_turn());
  if (due && ledger::held(*row_, ledger_.me()) < std::max(1, fair))
    raise(limit);
  else if (!(before & ledger_.bit()))
    ledger_.ring_others();  // somebody may have an idle one
}

Stake::Ask Stake::asked() const {
  if (!row_) return Ask::nothing;
  const int mine = ledger::held(*row_, ledger_.me());
  if (mine == 0) return Ask::nothing;
  const std::uint64_t mark = row_->mark.load();
  const int limit = limit_.load(std::memory_order_relaxed);
  if (hungry_other(mark)) {
    const int theirs = mark_limit(mark), counts = limit > 0 ? std::min(limit, theirs) : theirs;
    const bool rich = mine > counts / std::max(1, ledger_.members.load(std::memory_order_relaxed));
    if (rich && !claimed(*row_, mark)) return Ask::any;
    return rich ? Ask::nothing : Ask::idle;
  }
  const bool wanted = row_->waiting.load() & ledger_.others.load(std::memory_order_relaxed);
  return wanted && (limit <= 0 || ledger::count(*row_) >= limit) ? Ask::idle : Ask::nothing;
}

bool Stake::claim() {
  const Ask what = owed_.exchange(Ask::nothing, std::memory_order_acq_rel);
  if (what != Ask::any) return what == Ask::idle;
  const std::uint64_t mark = row_->mark.load();
  std::uint64_t before = row_->claimed.load();
  return hungry_other(mark) && before != mark && before != paid(mark) &&
         row_->claimed.compare_exchange_strong(before, mark);
}

// ---- the table ----

Row* Ledger::row(std::string_view name) {
  crypto::Digest digest = crypto::sha256({as_bytes(name)});
  std::uint64_t key;
  std::memcpy(&key, digest.data(), sizeof key);
  key |= 1;  // 0 is nobody's
  for (std::uint32_t i = 0; i < ledger::kRows; ++i) {
    const std::size_t at = (key / 2 + i) % ledger::kRows;
    std::uint64_t there = table_.keys[at].load();
    if (there == key || (there == 0 && table_.keys[at].compare_exchange_strong(there, key)) || there == key)
      return &table_.table[at];
  }
  full.store(true, std::memory_order_relaxed);
  return nullptr;
}

// More places than a process can have under all its limits together: such counts are garbage, and not counted down.
static constexpr int kMostPlaces = 1 << 22;

void Ledger::reclaim(int member) {
  const std::uint32_t theirs = std::uint32_t{1} << member;
  std::uint32_t wake = 0;
  int left = kMostPlaces;
  for (std::size_t i = 0; i < ledger::kRows; ++i) {
    if (table_.keys[i].load(std::memory_order_relaxed) == 0) continue;
    Row& r = table_.table[i];
    bool freed = false;
    for (; left > 0; --left) {
      const ledger::Begun begun = ledger::begin(r, member, false, 0);
      if (!begun.done) break;
      ledger::note(r, begun.total);
      freed = true;
    }
    // More than the total says: garbage, or a wrapped count. It is nobody's.
    r.held[static_cast<std::size_t>(member)].fetch_and(0xffffffff);
    std::uint64_t mark = r.mark.load();
    if (mark_member(mark) == member) freed |= r.mark.compare_exchange_strong(mark, mark >> 32 << 32);
    wake |= freed ? r.waiting.fetch_and(~theirs) & ~theirs : 0;
    r.waiting.fetch_and(~theirs);
  }
  ring(wake);
}

int Ledger::part(int whole) const {
  const int n = std::max(1, members.load(std::memory_order_relaxed));
  return whole / n + (rank.load(std::memory_order_relaxed) < whole % n);
}

}  // namespace pgf::pool
