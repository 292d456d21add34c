#include "worker/keeper.h"

#include <pthread.h>

#include "net/engine.h"
#include "worker/fleet.h"

namespace pgf::worker {

static constexpr Usec kTurn = kSecond / 3;

Keeper::Keeper(Fleet& fleet, LedgerFile& file) : fleet_(fleet), file_(file) {
  file_.ledger().now.store(net::monotonic_now() / kMillisecond);
  thread_ = std::thread([this] { main(); });
}

Keeper::~Keeper() {
  over_.store(true);
  file_.ring_self();
  thread_.join();
}

void Keeper::main() {
  pthread_setname_np(pthread_self(), "keeper");
  Usec next = 0;
  bool complained_name = false, complained_full = false, complained_lost = false;
  while (!over_.load()) {
    const std::uint32_t heard = file_.bell();
    const Usec now = net::monotonic_now();
    file_.ledger().now.store(now / kMillisecond);
    if (now >= next) {
      next = now + kTurn;
      file_.look_around(now, fleet_.log);
      if (file_.replaced() && !std::exchange(complained_name, true))
        fleet_.log(LogLevel::error,
                   "fleet_file is gone or another one: processes that start from now on do not share with this one");
      if (file_.ledger().lost.load() && !std::exchange(complained_lost, true))
        fleet_.log(LogLevel::error,
                   "fleet_file was cut short: this process keeps to its part of each limit until it "
                   "is started again");
      if (file_.ledger().full.load() && !std::exchange(complained_full, true))
        fleet_.log(LogLevel::error, "fleet_file is full: {} limits are all that it holds", pool::ledger::kRows);
    }
    file_.count_members();
    serve();
    ask();
    file_.sleep(heard, std::max<Usec>(next - net::monotonic_now(), kMillisecond));
  }
}

void Keeper::serve() {
  for (pool::PoolShared* p : fleet_.shared.directory.pools()) {
    if (!p->barred.load(std::memory_order_relaxed) || !p->barred.exchange(false)) continue;
    // With one worker nobody keeps the bits.
    std::uint64_t who = fleet_.shared.workers == 1 ? 1 : p->waiting.load() | p->joining.load();
    for (int w = 0; who; ++w, who >>= 1)
      if (who & 1) fleet_.worker(w).post(Poke{p});
  }
}

void Keeper::ask() {
  auto look = [&](pool::Counter& servers, GiveUp what) {
    pool::Stake* stake = servers.stake();
    if (!stake || servers.value() == 0) return;
    const pool::Stake::Ask asked = stake->asked();
    if (asked == pool::Stake::Ask::nothing) return stake->owe(asked);
    stake->owe(asked);
    what.stake = stake;
    what.aged = asked == pool::Stake::Ask::idle;
    for (int w = 0; w < fleet_.shared.workers; ++w) fleet_.worker(w).post(what);
  };
  for (pool::PoolShared* p : fleet_.shared.directory.pools()) look(p->servers, {.pool = p});
  for (pool::DatabaseShared* d : fleet_.shared.directory.databases()) look(d->servers, {.database = d});
  for (pool::UserShared* u : fleet_.shared.directory.users()) look(u->servers, {.user = u});
}

}  // namespace pgf::worker
