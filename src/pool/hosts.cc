#include "pool/hosts.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "crypto/crypto.h"

namespace pgf::pool {

Random::Random(Seed seed) : state_(seed) {
  if (std::ranges::all_of(state_, [](std::uint64_t s) { return s == 0; })) state_[0] = 1;  // it would stay there
}

Random Random::strong() {
  std::array<std::uint8_t, sizeof(Seed)> bytes;
  crypto::random_bytes(bytes);
  return Random(std::bit_cast<Seed>(bytes));
}

std::uint64_t Random::next() {
  const std::uint64_t result = std::rotl(state_[1] * 5, 7) * 9, shifted = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= shifted;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

std::uint32_t Random::below(std::uint32_t n) {
  const std::uint32_t favoured = -n % n;  // 2^32 mod n: so many values would make some results likelier than others
  while (true) {
    auto drawn = static_cast<std::uint32_t>(next() >> 32);
    if (drawn >= favoured) return drawn % n;
  }
}

std::vector<std::size_t> order(config::LoadBalance policy, std::span<const Load> loads, std::uint32_t turn,
                               Random& random) {
  using config::LoadBalance;
  std::vector<std::size_t> all(loads.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  switch (policy) {
    case LoadBalance::disable:
      break;
    case LoadBalance::round_robin:
      if (!all.empty()) std::ranges::rotate(all, all.begin() + static_cast<std::ptrdiff_t>(turn % all.size()));
      break;
    case LoadBalance::random:
      shuffle(all, random);
      break;
    case LoadBalance::least_conn: {
      std::vector<std::int64_t> weight(loads.size());
      for (const Load& load : loads) ++weight[load.same_as];
      std::erase_if(all, [&](std::size_t i) { return loads[i].same_as != i; });
      shuffle(all, random);  // among equals
      std::ranges::stable_sort(all, [&](std::size_t a, std::size_t b) {
        std::int64_t open_a = loads[a].open * weight[b], open_b = loads[b].open * weight[a];
        if (open_a != open_b) return open_a < open_b;
        return loads[a].active * weight[b] < loads[b].active * weight[a];
      });
      break;
    }
  }
  return all;
}

std::string_view to_text(Role role) {
  static constexpr std::string_view kNames[] = {"unknown", "primary", "standby"};
  return kNames[static_cast<int>(role)];
}

std::string_view misfit(config::TargetSession target, const SessionFacts& facts) {
  using enum config::TargetSession;
  switch (target) {
    case any:
      return {};
    case read_write:
      return facts.standby == true || facts.read_only == true ? "session is read-only" : "";
    case read_only:
      return facts.standby == false && facts.read_only == false ? "session is not read-only" : "";
    case primary:
      return facts.standby == true ? "server is in hot standby mode" : "";
    case standby:
    case prefer_standby:
      return facts.standby == false ? "server is not in hot standby mode" : "";
  }
  return {};
}

bool can_tell(config::TargetSession target, const SessionFacts& facts) {
  using enum config::TargetSession;
  if (target == any || !misfit(target, facts).empty()) return true;
  if (target == read_write) return facts.standby.has_value() && facts.read_only.has_value();
  if (target == read_only)
    return facts.standby == true || facts.read_only == true ||
           (facts.standby.has_value() && facts.read_only.has_value());
  return facts.standby.has_value();
}

int Place::active() const {
  int sum = 0;
  for (const Active& a : active_) sum += a.count.load(std::memory_order_relaxed);
  return sum;
}

std::shared_ptr<Address> Hosts::address(const std::string& text) {
  std::lock_guard lock(mutex_);
  auto& slot = addresses_[text];
  if (!slot) slot = std::make_shared<Address>(text);
  return slot;
}

std::shared_ptr<Place> Hosts::place(const std::string& database, const std::string& host, int port) {
  std::lock_guard lock(mutex_);
  auto& slot = places_[{database, host, port}];
  if (!slot) slot = std::make_shared<Place>(workers_);
  return slot;
}

void Hosts::resolved(Place& place, std::vector<std::shared_ptr<Address>> addresses) {
  std::ranges::sort(addresses, {}, [](const auto& a) -> const std::string& { return a->text; });
  std::lock_guard lock(mutex_);
  place.addresses_ = std::move(addresses);
  place.unresolved_until_ = 0;
  place.unresolved_times_ = 0;
}

void Hosts::unresolved(Place& place, Usec now, std::string_view reason) {
  std::lock_guard lock(mutex_);
  if (!place.unresolved_times_++) place.unresolved_since_ = now;
  place.unresolved_until_ = now + kUnresolved;
  place.unresolved_ = reason;
}

std::vector<std::size_t> Hosts::order(config::LoadBalance policy, std::span<Place* const> places, std::uint32_t turn,
                                      Usec now) {
  std::lock_guard lock(mutex_);
  auto is_out = [now](const Place* p) {
    if (now < p->unresolved_until_) return true;
    return !p->addresses_.empty() &&
           std::ranges::all_of(p->addresses_, [](const auto& a) { return a->out.load(std::memory_order_relaxed); });
  };
  std::vector<std::size_t> result;
  for (bool out : {false, true}) {
    std::vector<std::size_t> these;
    for (std::size_t i = 0; i < places.size(); ++i)
      if (is_out(places[i]) == out) these.push_back(i);
    std::vector<Load> loads;
    for (std::size_t i : these) {
      auto first = std::ranges::find(these, places[i], [&](std::size_t other) { return places[other]; });
      loads.push_back({static_cast<std::size_t>(first - these.begin()), places[i]->open.load(std::memory_order_relaxed),
                       places[i]->active()});
    }
    for (std::size_t chosen : pool::order(policy, loads, turn, random_)) result.push_back(these[chosen]);
  }
  return result;
}

// As far as is known. Who was never asked may be anything.
bool Hosts::may_fit(const Address& a, config::TargetSession target, const Address* writer) {
  const Role role = a.role.load(std::memory_order_relaxed);
  if (role == Role::unknown) return true;
  if (writer && writer != &a && wants_writer(target)) return false;
  return misfit(target, {role == Role::standby, std::nullopt}).empty();
}

void Hosts::likely_first(std::vector<std::size_t>& order, std::span<Place* const> places, config::TargetSession target,
                         const Writer& writer) const {
  if (target == config::TargetSession::any) return;
  std::lock_guard lock(mutex_);
  const Address* one = writes(writer, places) ? writer.kept_.get() : nullptr;
  std::ranges::stable_partition(order, [&](std::size_t i) {
    const auto& addresses = places[i]->addresses_;
    return addresses.empty() || std::ranges::any_of(addresses, [&](const auto& a) { return may_fit(*a, target, one); });
  });
}

Place* Hosts::too_full(std::span<Place* const> places, config::TargetSession target, const Writer& writer,
                       Usec now) const {
  std::lock_guard lock(mutex_);
  const Address* one = writes(writer, places) ? writer.kept_.get() : nullptr;
  auto has = [](const Place* p, auto what) {
    return std::ranges::any_of(p->addresses_,
                               [&](const auto& a) { return !a->out.load(std::memory_order_relaxed) && what(*a); });
  };
  auto role_is = [&](const Place* p, Role role) {
    return has(p, [&](const Address& a) { return a.role.load(std::memory_order_relaxed) == role; });
  };
  auto open = [](const Place* p) { return std::int64_t{p->open.load(std::memory_order_relaxed)}; };
  if (target == config::TargetSession::prefer_standby &&
      std::ranges::any_of(places, [&](const Place* p) { return role_is(p, Role::standby); }))
    for (Place* p : places)
      if (open(p) > 0 && role_is(p, Role::primary) && !role_is(p, Role::standby)) return p;
  for (const Place* back : places) {
    auto fits = [&](const Address& a) { return a.came_back && now - a.came_back < kSettle && may_fit(a, target, one); };
    if (!has(back, fits)) continue;
    for (Place* other : places)
      if (other != back) {
        std::int64_t mine = std::ranges::count(places, back), theirs = std::ranges::count(places, other);
        if (open(other) * mine >= open(back) * theirs + 2 * mine * theirs) return other;
      }
  }
  return nullptr;
}

// ---- one writer ----

// Has it an address of the list, is it up, and not known to be a standby?
bool Hosts::writes(const Writer& writer, std::span<Place* const> places) {
  const Address* one = writer.kept_.get();
  return one && !one->out.load(std::memory_order_relaxed) &&
         one->role.load(std::memory_order_relaxed) != Role::standby && std::ranges::any_of(places, [&](const Place* p) {
           return std::ranges::any_of(p->addresses_, [&](const auto& a) { return a.get() == one; });
         });
}

Hosts::Claim Hosts::claim(Writer& writer, std::span<Place* const> places, const std::shared_ptr<Address>& address) {
  std::lock_guard lock(mutex_);
  if (writer.kept_ == address) return {true, {}, {}};
  if (!writes(writer, places)) {
    writer.kept_ = address;
    writer.reported_ = nullptr;
    writer.is_.store(address.get(), std::memory_order_relaxed);
    return {true, {}, {}};
  }
  const bool news = writer.reported_ != address;
  writer.reported_ = address;
  return {false, writer.kept_->text, news ? address->text : ""};
}

void Hosts::resign(Writer& writer, const Address& address) {
  std::lock_guard lock(mutex_);
  if (writer.kept_.get() != &address) return;
  writer.is_.store(nullptr, std::memory_order_relaxed);
  writer.kept_ = nullptr;
  writer.reported_ = nullptr;
}

// ---- health ----

void Hosts::go_out(Address& a, Usec now, std::string_view reason) {
  ++a.all_failures;
  ++a.failures;
  a.last_error = reason;
  a.asked = false;
  a.returned = 0;
  if (!a.out.exchange(true, std::memory_order_relaxed) || !a.since) a.since = now;
  Usec wait = kFirstBackoff << std::min(a.failures - 1, 10);
  wait = std::min(wait, kLastBackoff);
  a.next_try = now + wait + static_cast<Usec>(random_.below(static_cast<std::uint32_t>(wait / 4)));
}

void Hosts::failed(Address& a, Usec now, std::string_view reason) {
  std::lock_guard lock(mutex_);
  go_out(a, now, reason);
}

void Hosts::silent(Address& a, Usec now, std::string_view reason) {
  std::lock_guard lock(mutex_);
  const bool news = !a.out.load(std::memory_order_relaxed);
  if (news) a.patience = std::min(2 * std::max(a.patience, kPatience), kLastBackoff);
  go_out(a, now, reason);
  if (news) a.next_try = now;
}

void Hosts::come_back(Address& a, Usec now) {
  a.asked = false;
  a.failures = 0;
  if (!a.since) a.since = now;
  if (!a.out.load(std::memory_order_relaxed)) return;
  a.since = a.returned = a.came_back = now;
  a.next_admit = now;
  a.role.store(Role::unknown, std::memory_order_relaxed);  // it may come back as something else
  a.out.store(false, std::memory_order_relaxed);
}

void Hosts::answered(Address& a, Usec now, Usec latency) {
  std::lock_guard lock(mutex_);
  a.latency = latency;
  a.patience = 0;
  come_back(a, now);
}

void Hosts::probed(Address& a, Usec now, Usec latency) {
  std::lock_guard lock(mutex_);
  a.latency = std::max(a.latency, latency);
  come_back(a, now);
}

Usec Hosts::patience(const Address& a) const {
  std::lock_guard lock(mutex_);
  return std::max({kPatience, a.patience, 4 * a.latency});
}

Hosts::Admit Hosts::admit(Address& a, Usec now) {
  std::lock_guard lock(mutex_);
  a.wanted = now;
  if (a.out.load(std::memory_order_relaxed)) return Admit::out;
  if (!a.returned) return Admit::yes;
  if (now - a.returned >= kReturnTime) {
    a.returned = 0;
    return Admit::yes;
  }
  if (now < a.next_admit) return Admit::returning;
  a.next_admit = now + kAdmitStep;
  return Admit::yes;
}

std::shared_ptr<Address> Hosts::due(Usec now) {
  std::lock_guard lock(mutex_);
  if (now >= next_tidy_) tidy(now);
  for (auto& [text, a] : addresses_) {
    if (!a->out.load(std::memory_order_relaxed) || a->asked || now < a->next_try) continue;
    if (!a->wanted || now - a->wanted > kWanted) continue;
    a->asked = true;
    return a;
  }
  return nullptr;
}

// ---- what is forgotten ----

// Who else has one of these got it from the maps, under the mutex: with a count of one, nobody has, or gets it now.
void Hosts::tidy(Usec now) {
  next_tidy_ = now + kTidyPeriod;
  std::erase_if(places_, [](const auto& entry) { return entry.second->left && entry.second.use_count() == 1; });
  std::erase_if(addresses_, [](const auto& entry) { return entry.second.use_count() == 1; });
}

void Hosts::keep(const config::Config& config) {
  std::lock_guard lock(mutex_);
  for (auto& [key, place] : places_) {
    const auto& [database, host, port] = key;
    auto entry = config::find_database(config, database);
    bool listed = false;
    if (entry)
      for (const auto& [its_host, its_port] : config::hosts_of(*entry, config.settings))
        listed |= its_host == host && its_port == port;
    place->left.store(!listed, std::memory_order_relaxed);
  }
}

Hosts::Remembered Hosts::remembered() const {
  std::lock_guard lock(mutex_);
  return {addresses_.size(), places_.size()};
}

bool Hosts::knows(const std::string& address) const {
  std::lock_guard lock(mutex_);
  return addresses_.contains(address);
}

std::vector<Hosts::Row> Hosts::rows(const std::string& database, const std::string& host, int port, Usec now) const {
  std::vector<Row> rows;
  std::lock_guard lock(mutex_);
  auto it = places_.find({database, host, port});
  if (it == places_.end()) return rows;
  const Place& place = *it->second;
  if (place.unresolved_times_ && place.addresses_.empty())
    rows.push_back({"", place.unresolved_, Role::unknown, true, true, false, place.unresolved_since_,
                    place.unresolved_until_, 0, place.unresolved_times_});
  for (const auto& a : place.addresses_)
    rows.push_back({a->text, a->last_error, a->role.load(std::memory_order_relaxed), a->since != 0,
                    a->out.load(std::memory_order_relaxed), a->returned && now - a->returned < kReturnTime, a->since,
                    a->next_try, a->latency, a->all_failures});
  return rows;
}

}  // namespace pgf::pool
