// The control thread looks at the workers and has clients moved (pool/placement.h decides).
#include "worker/control.h"

namespace pgf::worker {

static constexpr Usec kLook = kSecond / 3;

void Control::place(Usec now) {
  const config::Placement policy = fleet_.config->settings.placement;
  const int workers = fleet_.shared.workers;
  const bool shuffle = policy == config::Placement::shuffle;
  if (workers == 1 || (now - looked_at_ < kLook && !shuffle)) return;
  const auto n = static_cast<std::size_t>(workers);
  const Usec passed = now - looked_at_;
  const bool first = cpu_times_.empty();
  looked_at_ = now;
  cpu_times_.resize(n);
  std::vector<pool::Placement::Load> loads(n);
  for (std::size_t i = 0; i < n; ++i) {
    Worker& w = fleet_.worker(static_cast<int>(i));
    Usec cpu = w.cpu_time();
    loads[i] = {w.load.load(std::memory_order_relaxed), w.active.load(std::memory_order_relaxed),
                first ? 0.0 : static_cast<double>(cpu - cpu_times_[i]) / static_cast<double>(passed)};
    cpu_times_[i] = cpu;
  }
  if ((first && !shuffle) || fleet_.shared.stuck.load() != 0) return;  // nobody is sent to wait
  for (const auto& m : placement_.plan(policy, loads, now))
    fleet_.worker(m.from).post(MoveClients{m.to, m.count, m.reason});
}

}  // namespace pgf::worker
