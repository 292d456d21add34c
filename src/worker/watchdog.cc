#include "worker/watchdog.h"

#include <execinfo.h>
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <fstream>
#include <memory>

#include "worker/fleet.h"

namespace pgf::worker {
namespace {

constexpr Usec kLongestLook = kSecond;  // what lies between two looks and is more: this thread did not run either

// Where a thread stands. It fills this in itself, in a signal handler, which is handed the address.
struct Trace {
  static constexpr int kFrames = 48;
  void* frames[kFrames];
  int count = 0;
  // By the watchdog's. The delivery of a signal orders the two as well, but ThreadSanitizer does not know that.
  std::atomic<bool> asked{false};
  std::atomic<bool> taken{false};  // by that thread
};

void take_trace(int, siginfo_t* info, void*) {
  const int error = errno;
  auto* trace = static_cast<Trace*>(info->si_value.sival_ptr);
  if (!trace->asked.load(std::memory_order_acquire)) return;
  trace->count = backtrace(trace->frames, Trace::kFrames);
  trace->taken.store(true, std::memory_order_release);
  errno = error;
}

// What the kernel says about a thread: "R", "S in futex_wait_queue", "D in nfs_wait".
std::string kernel_state(int thread_id) {
  std::string status, where;
  std::ifstream stat(fmt::format("/proc/self/task/{}/stat", thread_id));
  std::getline(stat, status);
  std::ifstream(fmt::format("/proc/self/task/{}/wchan", thread_id)) >> where;
  std::size_t end = status.rfind(") ");  // behind the name, which may hold anything
  std::string state = end == std::string::npos ? "?" : status.substr(end + 2, 1);
  return where.empty() || where == "0" ? state : fmt::format("{} in {}", state, where);
}

std::vector<std::string> frames_of(pthread_t thread) {
  // A thread that answers later than we wait writes into it then: so it is never given back.
  auto trace = std::make_unique<Trace>();
  sigval value{};
  value.sival_ptr = trace.get();
  trace->asked.store(true, std::memory_order_release);
  if (pthread_sigqueue(thread, SIGRTMIN, value) != 0) return {"(it cannot be asked)"};
  for (int i = 0; i < 50 && !trace->taken.load(std::memory_order_acquire); ++i) poll(nullptr, 0, 2);
  if (!trace->taken.load(std::memory_order_acquire)) {
    (void)trace.release();
    return {"(it does not answer signals)"};
  }
  std::vector<std::string> lines;
  char** names = backtrace_symbols(trace->frames, trace->count);
  for (int i = 2; names && i < trace->count; ++i) lines.emplace_back(names[i]);  // without the handler and its caller
  free(names);
  return lines;
}

}  // namespace

Watchdog::Watchdog(Fleet& fleet, std::function<void(const std::string&)> notify, Usec manager_patience)
    : fleet_(fleet),
      notify_(std::move(notify)),
      manager_patience_(manager_patience),
      seen_(static_cast<std::size_t>(fleet.shared.workers)),
      stalls_(seen_.size()) {
  void* warm[1];
  backtrace(warm, 1);  // loads what it needs, which a signal handler must not
  struct sigaction action {};
  action.sa_sigaction = take_trace;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigaction(SIGRTMIN, &action, nullptr);
}

bool Watchdog::look(Usec now) {
  const config::Settings& s = fleet_.config->settings;
  const Usec passed = last_ == 0 ? 0 : std::min(now - last_, kLongestLook);
  last_ = now;
  Usec longest = 0;
  for (int i = 0; i < fleet_.shared.workers; ++i) {
    Seen& seen = seen_[static_cast<std::size_t>(i)];
    const std::uint64_t beat = fleet_.worker(i).beat();
    if (beat == seen.beat && beat % 2 == 1) {
      seen.stuck += passed;
      if (s.watchdog_report > 0 && seen.stuck >= std::max(seen.report_at, s.watchdog_report))
        stuck(i, seen, s.watchdog_report);
    } else {
      if (seen.report_at > 0) back(i, seen);
      seen = {};
      seen.beat = beat;
    }
    longest = std::max(longest, seen.stuck);
  }
  if (manager_patience_ > 0 && longest < manager_patience_ && now - told_ >= manager_patience_ / 4) {
    notify_("WATCHDOG=1");
    told_ = now;
  }
  return s.watchdog_abort > 0 && longest >= s.watchdog_abort;
}

void Watchdog::stuck(int worker, Seen& seen, Usec report_after) {
  if (seen.report_at == 0) ++stalls_[static_cast<std::size_t>(worker)];
  Worker& w = fleet_.worker(worker);
  fleet_.log(LogLevel::error, "worker {} has not come back to its loop for {:.1f} s; its thread {} is in state {}",
             worker, static_cast<double>(seen.stuck) / kSecond, w.thread_id(), kernel_state(w.thread_id()));
  int number = 0;
  for (const std::string& frame : frames_of(w.thread()))
    fleet_.log(LogLevel::error, "worker {} stands at #{} {}", worker, number++, frame);
  fleet_.shared.stuck.fetch_or(std::uint64_t{1} << worker);
  seen.report_at = std::max(seen.report_at, report_after) * 2;  // said again ever more rarely
}

void Watchdog::back(int worker, Seen& seen) {
  fleet_.log(LogLevel::warning, "worker {} is back in its loop after {:.1f} s", worker,
             static_cast<double>(seen.stuck) / kSecond);
  fleet_.shared.stuck.fetch_and(~(std::uint64_t{1} << worker));
}

void Watchdog::accept_for_stuck() {
  // By hand: its engine still waits for them, and the kernel tells nobody else.
  auto accept_all = [&](const std::vector<int>& listeners, bool local) {
    for (int fd : listeners)
      for (int c; (c = ::accept4(fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) fleet_.place(c, local);
  };
  const std::uint64_t stuck = fleet_.shared.stuck.load();
  if (fleet_.shared.shutdown.load() || fleet_.shared.suspended.load()) return;
  if (std::popcount(stuck) == fleet_.shared.workers) return;
  for (int i = 0; i < fleet_.shared.workers; ++i)
    if (stuck >> i & 1) accept_all(fleet_.plan.listeners[static_cast<std::size_t>(i)], false);
  if (stuck & 1) accept_all(fleet_.plan.unix_listeners, true);
}

}  // namespace pgf::worker
