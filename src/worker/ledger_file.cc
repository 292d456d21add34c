#include "worker/ledger_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <climits>
#include <cstring>

namespace pgf::worker {

using pool::ledger::kMembers;
using pool::ledger::Seat;
using pool::ledger::Table;

// Bytes that are locked: one per seat, and the gate, which whoever comes in or changes the file's form holds.
static constexpr int kGate = kMembers;
// How long a dead process keeps its places: PostgreSQL's backends need a moment to find out and to end.
static constexpr Usec kMourning = kSecond;

static bool set_lock(int fd, int byte, short type) {
  struct flock f {};
  f.l_type = type;
  f.l_whence = SEEK_SET;
  f.l_start = byte;
  f.l_len = 1;
  return ::fcntl(fd, F_OFD_SETLK, &f) == 0;
}

static bool taken(int fd, int byte) {  // by another open file than ours
  struct flock f {};
  f.l_type = F_WRLCK;
  f.l_whence = SEEK_SET;
  f.l_start = byte;
  f.l_len = 1;
  return ::fcntl(fd, F_OFD_GETLK, &f) == 0 && f.l_type != F_UNLCK;
}

std::expected<std::unique_ptr<LedgerFile>, std::string> LedgerFile::open(const std::string& path) {
  auto fail = [&](std::string_view reason) { return std::unexpected(fmt::format("fleet_file {}: {}", path, reason)); };
  auto failed = [&](std::string_view step) { return fail(fmt::format("{}: {}", step, std::strerror(errno))); };
  Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  if (file.fd < 0) return failed("cannot be opened");
  struct stat st {};
  if (::fstat(file.fd, &st) < 0) return failed("fstat");
  if (!S_ISREG(st.st_mode)) return fail("is not a regular file");
  if (st.st_uid != ::geteuid()) return fail("belongs to another user");
  if (st.st_mode & 077)
    return fail(fmt::format("is open to others (mode {:04o}): it must be 0600", st.st_mode & 07777));

  for (int tries = 0; !set_lock(file.fd, kGate, F_WRLCK); ++tries) {
    if (errno != EAGAIN && errno != EACCES) return failed("cannot be locked");
    if (tries == 500) return fail("a process that is just joining holds it for too long");
    ::usleep(10'000);
  }
  if (::fstat(file.fd, &st) < 0) return failed("fstat");
  bool alive = false;
  for (int seat = 0; seat < kMembers; ++seat) alive |= taken(file.fd, seat);
  const off_t size = sizeof(Table);
  bool fresh = st.st_size == 0;
  if (fresh && alive) return fail("was emptied while others use it: end them all first");
  if (!fresh) {
    char head[pool::ledger::kMagic.size()]{};
    ssize_t n = ::pread(file.fd, head, sizeof head, 0);
    if (!pool::ledger::is_ledger({head, static_cast<std::size_t>(std::max<ssize_t>(n, 0))}))
      return fail("is something else than a fleet file: it is left as it is");
    if (st.st_size != size && alive) return fail("has the wrong size, and others use it: end them all first");
    // Nobody uses it, so nothing in it counts: what processes that are gone have left, maybe before a restart of the
    // machine, or another version's form.
    fresh = !alive;
  }
  if (fresh && ::ftruncate(file.fd, 0) < 0) return failed("ftruncate");
  // First of all, so that it is known for what it is if we die before the rest.
  if (fresh && ::pwrite(file.fd, pool::ledger::kMagic.data(), pool::ledger::kMagic.size(), 0) < 0)
    return failed("write");
  // All of it is allocated now: a full disk must not show later, at some access.
  if (fresh)
    if (int error = ::posix_fallocate(file.fd, 0, size); error)
      return fail(fmt::format("no room for {} bytes: {}", size, std::strerror(error)));
  void* memory = ::mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED, file.fd, 0);
  if (memory == MAP_FAILED) return failed("mmap");
  auto* table = static_cast<Table*>(memory);
  if (fresh) pool::ledger::format(*table);
  auto refuse = [&](std::string_view reason) {
    ::munmap(memory, sizeof(Table));
    return fail(reason);
  };
  if (!pool::ledger::fits(*table)) return refuse("is in use by another version of pgflotilla");

  // A seat that nobody has emptied yet is taken only if there is no other.
  int seat = -1;
  for (bool any : {false, true})
    for (int i = 0; i < kMembers && seat < 0; ++i)
      if ((any || table->seats[i].state.load() == Seat::empty) && set_lock(file.fd, i, F_WRLCK)) seat = i;
  if (seat < 0) return refuse(fmt::format("{} processes use it already", kMembers));
  auto made = std::unique_ptr<LedgerFile>(new LedgerFile(std::move(file), table, seat, path));
  Seat& mine = table->seats[seat];
  if (mine.state.load() != Seat::empty) made->ledger_->reclaim(seat);
  mine.pid.store(::getpid());
  mine.state.store(Seat::taken);
  set_lock(made->file_.fd, kGate, F_UNLCK);
  made->count_members();
  made->ledger_->ring_others();  // they share with one more
  return made;
}

LedgerFile::LedgerFile(Descriptor file, Table* table, int seat, std::string path)
    : file_(std::move(file)),
      table_(table),
      path_(std::move(path)),
      ledger_(std::make_unique<pool::Ledger>(*table, seat, *this)) {}

namespace {

// A signal handler has nothing else to go by.
struct {
  std::atomic<Table*> table{nullptr};
  std::atomic<pool::Ledger*> ledger{nullptr};
} mapped;

void on_sigbus(int, siginfo_t* info, void*) {
  Table* table = mapped.table.load();
  auto* where = static_cast<std::byte*>(info->si_addr);
  auto* begin = reinterpret_cast<std::byte*>(table);
  const bool ours = table && where >= begin && where < begin + sizeof(Table);
  if (ours &&
      ::mmap(table, sizeof(Table), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == table)
    return mapped.ledger.load()->lost.store(true);
  ::signal(SIGBUS, SIG_DFL);  // somebody else's: it comes again, and ends the program
}

}  // namespace

LedgerFile::~LedgerFile() {
  Table* expected = table_;
  mapped.table.compare_exchange_strong(expected, nullptr);
  ::munmap(static_cast<void*>(table_), sizeof(Table));
}

void LedgerFile::succeed(pid_t predecessor) {
  // It has closed its connections; the rest of its end may take it a moment. In containers others may have its number.
  bool there = true;
  for (int tries = 0; tries < 1000 && there; ++tries) {
    if (tries > 0) ::usleep(1000);
    there = false;
    for (int i = 0; i < kMembers; ++i) {
      Seat& seat = table_->seats[i];
      if (i == ledger_->me() || seat.state.load() != Seat::taken || seat.pid.load() != predecessor) continue;
      there = true;
      if (!set_lock(file_.fd, i, F_WRLCK)) continue;
      seat.state.store(Seat::leaving);
      ledger_->predecessor.store(i);
      return count_members();
    }
  }
}

void LedgerFile::count_members() {
  if (ledger_->lost.load()) return;  // as many as there were
  std::uint32_t live = 0;
  for (int i = 0; i < kMembers; ++i)
    if (table_->seats[i].state.load() == Seat::taken && !dead_since_[i]) live |= std::uint32_t{1} << i;
  live |= ledger_->bit();
  ledger_->members.store(std::popcount(live));
  ledger_->rank.store(std::popcount(live & (ledger_->bit() - 1)));
  ledger_->others.store(live & ~ledger_->bit());
}

void LedgerFile::look_around(Usec now, Log& log) {
  if (ledger_->lost.load()) return;
  for (int i = 0; i < kMembers; ++i) {
    Seat& seat = table_->seats[i];
    if (i == ledger_->me()) continue;
    const bool ours = i == ledger_->predecessor.load();  // its lock is ours
    if (seat.state.load() == Seat::empty || (!ours && taken(file_.fd, i))) {
      dead_since_[i] = 0;
      continue;
    }
    if (!dead_since_[i]) dead_since_[i] = now;
    if (now - dead_since_[i] < kMourning || !set_lock(file_.fd, i, F_WRLCK)) continue;
    // Somebody else may have done it before us, and another process have come and gone since: never mind.
    const int pid = seat.pid.load();
    if (seat.state.load() != Seat::empty) {
      ledger_->reclaim(i);
      seat.state.store(Seat::empty);
      if (!ours) log(LogLevel::log, "fleet: process {} is gone, its places are free", pid);
      ledger_->ring_others();
    }
    if (ours) ledger_->predecessor.store(-1);
    set_lock(file_.fd, i, F_UNLCK);
    dead_since_[i] = 0;
  }
}

bool LedgerFile::replaced() const {
  struct stat mine {
  }, there{};
  return ::fstat(file_.fd, &mine) == 0 &&
         (::stat(path_.c_str(), &there) < 0 || mine.st_ino != there.st_ino || mine.st_dev != there.st_dev);
}

void LedgerFile::survive_its_loss() {
  mapped.ledger.store(ledger_.get());
  mapped.table.store(table_);
  struct sigaction action {};
  action.sa_sigaction = on_sigbus;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

static long futex(const std::atomic<std::uint32_t>& word, int what, std::uint32_t value, const timespec* time) {
  return ::syscall(SYS_futex, &word, what, value, time, nullptr, 0);
}

std::uint32_t LedgerFile::bell() const { return table_->seats[ledger_->me()].bell.load(); }

void LedgerFile::sleep(std::uint32_t heard, Usec longest) const {
  const timespec time{longest / kSecond, longest % kSecond * 1000};
  futex(table_->seats[ledger_->me()].bell, FUTEX_WAIT, heard, &time);
}

void LedgerFile::ring(std::uint32_t whom) {
  for (; whom; whom &= whom - 1) {
    Seat& seat = table_->seats[std::countr_zero(whom)];
    seat.bell.fetch_add(1);
    futex(seat.bell, FUTEX_WAKE, INT_MAX, nullptr);
  }
}

}  // namespace pgf::worker
