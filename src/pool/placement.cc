#include "pool/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace pgf::pool {

static constexpr int kPatience = 2;                 // looks in a row that must agree before anything happens
static constexpr Usec kSettle = kSecond;            // after moves, until the figures show what they did
static constexpr Usec kCalm = 5 * kSecond;          // after moving apart, until clients may come together again …
static constexpr Usec kLongestCalm = 80 * kSecond;  // … and twice as long if they had just done so, up to this
static constexpr double kWorthIt = 0.3;             // how much less busy the other worker must be
static constexpr double kMargin = 0.1;              // below what would suffice, before a worker is given up

std::string_view to_text(MoveReason reason) {
  static constexpr std::array<std::string_view, kMoveReasons> kWords{"accept", "gather", "relieve", "level", "shuffle"};
  return kWords[static_cast<std::size_t>(reason)];
}

std::vector<Placement::Move> Placement::plan(config::Placement policy, std::span<const Load> loads, Usec now) {
  std::vector<Move> moves;
  if (loads.size() < 2) return moves;
  if (policy != config::Placement::adaptive) forget();
  if (policy == config::Placement::shuffle)
    for (int w = 0; w < static_cast<int>(loads.size()); ++w)
      moves.push_back({w, (w + 1) % static_cast<int>(loads.size()), loads[static_cast<std::size_t>(w)].clients,
                       MoveReason::shuffle});
  if (policy != config::Placement::adaptive) return moves;

  double total = 0;
  bool hot = false;
  const auto field = loads.first(std::min(cores_, loads.size()));
  for (const Load& l : loads) {
    total += l.busy;
    hot |= l.busy > kHot && l.active > 1;  // one client's work cannot be divided
  }
  hot_looks_ = hot ? hot_looks_ + 1 : 0;
  quiet_looks_ = total <= kQuiet ? quiet_looks_ + 1 : 0;
  if (now < settled_at_) return moves;

  const bool may_gather = total <= kQuiet && now >= calm_until_;  // which brings them further than crowd() would
  if (!may_gather && now >= crowd_at_ && !(moves = crowd(loads)).empty()) {
    crowd_at_ = now + kSettle;  // who comes and goes there does not keep the others from being looked at
  } else if (hot_looks_ >= kPatience && !(moves = relieve(field)).empty()) {
    // Had they just come together, that was wrong, and will be tried less often.
    bool again = gathered() && calm_ > 0 && now - gathered_at_ < 2 * calm_;
    calm_ = again ? std::min(2 * calm_, kLongestCalm) : std::max(calm_ / 2, kCalm);
    targets_.clear();
    calm_until_ = now + calm_;
    settled_at_ = now + kSettle;
  } else if (quiet_looks_ >= kPatience && may_gather) {
    if (!gathered()) gathered_at_ = now;
    moves = gather(loads, total);
  } else if (quiet_looks_ == 0 && !gathered()) {
    moves = level(field);
    if (!moves.empty()) settled_at_ = now + kSettle;
  }
  for (const Move& m : moves) {
    why_[static_cast<std::size_t>(m.from)] =
        fmt::format("{}: {} to worker {}, {:.2f} cores busy in all", to_text(m.reason), m.count, m.to, total);
    why_[static_cast<std::size_t>(m.to)] =
        fmt::format("{}: {} from worker {}, {:.2f} cores busy in all", to_text(m.reason), m.count, m.from, total);
  }
  return moves;
}

void Placement::forget() {
  targets_.clear();
  hot_looks_ = quiet_looks_ = 0;
  settled_at_ = calm_until_ = 0;
  calm_ = 0;
}

// Whoever talks to a worker beyond the cores comes to one that has a core.
std::vector<Placement::Move> Placement::crowd(std::span<const Load> loads) const {
  std::vector<Move> moves;
  std::vector<Load> then(loads.begin(), loads.begin() + static_cast<std::ptrdiff_t>(std::min(cores_, loads.size())));
  for (std::size_t w = cores_; w < loads.size(); ++w) {
    if (loads[w].active == 0) continue;
    auto to = std::ranges::min_element(then, {}, &Load::active);
    moves.push_back({static_cast<int>(w), static_cast<int>(to - then.begin()), loads[w].active, MoveReason::gather});
    to->active += loads[w].active;
  }
  return moves;
}

// Half of the difference goes to the least busy one. What is planned counts as done, so that two hot workers do not
// both choose the same.
std::vector<Placement::Move> Placement::relieve(std::span<const Load> loads) const {
  std::vector<Move> moves;
  std::vector<Load> then(loads.begin(), loads.end());
  for (std::size_t w = 0; w < loads.size(); ++w) {
    const Load& from = loads[w];
    if (from.busy <= kHot || from.active < 2) continue;
    auto to = std::ranges::min_element(then, {}, &Load::busy);
    if (to->busy > from.busy - kWorthIt) continue;
    double share = (from.busy - to->busy) / (2 * from.busy);
    int count = std::clamp(static_cast<int>(share * from.active), 1, from.active - 1);
    moves.push_back({static_cast<int>(w), static_cast<int>(to - then.begin()), count, MoveReason::relieve});
    to->busy += from.busy * count / from.active;
    then[w].busy -= from.busy * count / from.active;
  }
  return moves;
}

// Everybody who talks, to as few workers as can do the work with ease. The workers stay the same while that is so, and
// only ever become fewer: if they get hot, relieve() sees to it.
std::vector<Placement::Move> Placement::gather(std::span<const Load> loads, double total) {
  if (!gathered()) {
    std::vector<int> order(std::min(cores_, loads.size()));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater(), [&](int w) { return loads[static_cast<std::size_t>(w)].active; });
    auto enough = static_cast<std::size_t>(std::max(1.0, std::ceil(total / kComfort)));
    order.resize(std::min(enough, order.size()));
    targets_ = std::move(order);
  } else if (targets_.size() > 1 && total <= kComfort * static_cast<double>(targets_.size() - 1) - kMargin) {
    targets_.pop_back();
  }
  std::vector<Load> then(loads.begin(), loads.end());
  std::vector<Move> moves;
  for (std::size_t w = 0; w < loads.size(); ++w) {
    if (loads[w].active == 0 || std::ranges::count(targets_, static_cast<int>(w))) continue;
    int to = *std::ranges::min_element(targets_, {}, [&](int t) { return then[static_cast<std::size_t>(t)].active; });
    moves.push_back({static_cast<int>(w), to, loads[w].active, MoveReason::gather});
    then[static_cast<std::size_t>(to)].active += loads[w].active;
  }
  return moves;
}

// From the fullest to the emptiest until nobody has many more than the mean, but not to where there is more work.
std::vector<Placement::Move> Placement::level(std::span<const Load> loads) const {
  std::vector<Load> then(loads.begin(), loads.end());
  int all = 0;
  for (const Load& l : loads) all += l.clients;
  const double mean = static_cast<double>(all) / static_cast<double>(loads.size());
  std::vector<Move> moves;
  for (std::size_t rounds = 0; rounds < loads.size(); ++rounds) {
    auto fullest = std::ranges::max_element(then, {}, &Load::clients);
    auto emptiest = std::ranges::min_element(then, {}, &Load::clients);
    if (fullest->clients <= 1.25 * mean + 1 || emptiest->busy > fullest->busy + kMargin) break;
    int count = std::min(fullest->clients - static_cast<int>(std::ceil(mean)),
                         static_cast<int>(std::ceil(mean)) - emptiest->clients);
    if (count <= 0) break;
    moves.push_back({static_cast<int>(fullest - then.begin()), static_cast<int>(emptiest - then.begin()), count,
                     MoveReason::level});
    fullest->clients -= count;
    emptiest->clients += count;
  }
  return moves;
}

}  // namespace pgf::pool
