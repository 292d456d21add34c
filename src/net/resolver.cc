#include "net/resolver.h"

#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "net/engine.h"

namespace pgf::net {
namespace {

constexpr std::size_t kMaxNames = 1024;  // then expired ones are dropped
constexpr int kMaxOutstanding = 256;     // questions to the resolver at a time; others wait for their turn

// As PgBouncer has it: what follows the first dot.
std::string zone_of(const std::string& host) {
  auto dot = host.find('.');
  return dot == host.npos ? std::string() : host.substr(dot + 1);
}

}  // namespace

Resolver::Resolver(ResolverOptions options)
    : options_(std::move(options)), wake_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)), times_(options_.times) {}

Resolver::~Resolver() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    wake();
  }
  if (thread_.joinable()) thread_.join();
  ::close(wake_fd_);
}

void Resolver::wake() {
  std::uint64_t one = 1;
  [[maybe_unused]] ssize_t n = ::write(wake_fd_, &one, sizeof one);
}

std::vector<Address> Resolver::Name::take_turn(bool in_order) {
  std::vector<Address> result = usable;
  if (!result.empty() && !in_order)
    std::ranges::rotate(result, result.begin() + static_cast<std::ptrdiff_t>(turn++ % result.size()));
  return result;
}

void Resolver::start(const std::string& host, Done done, bool in_order) {
  if (auto literal = parse_ip(host, 0)) return done({*literal}, {});
  std::vector<Address> addresses;
  std::string error;
  {
    std::lock_guard lock(mutex_);
    Usec now = monotonic_now();
    if (names_.size() >= kMaxNames && !names_.contains(host)) forget_old(now);
    auto [it, fresh] = names_.try_emplace(host);
    Name& name = it->second;
    if (std::string zone = zone_of(host); fresh && !zone.empty()) ++zones_[zone].hosts;
    if (!name.running && name.good_until > now) {
      addresses = name.take_turn(in_order);
      error = name.error;
    } else if (name.running || ask(host, name)) {
      name.waiting.emplace_back(std::move(done), in_order);
      return;
    } else {
      error = "the resolver's thread cannot be started";
    }
  }
  done(addresses, error);
}

bool Resolver::ask(const std::string& host, Name& name) {
  if (!thread_.joinable()) {
    // Signals are for the control thread.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      thread_ = std::thread([this] { work(); });
    } catch (const std::system_error&) {  // a limit of the user or of the container: no reason to end
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (!thread_.joinable()) return false;
  }
  name.running = true;
  queue_.push_back({false, host});
  wake();
  return true;
}

void Resolver::forget_old(Usec now) {
  std::erase_if(names_, [&](const auto& n) {
    if (n.second.running || n.second.good_until > now) return false;
    if (auto zone = zones_.find(zone_of(n.first)); zone != zones_.end()) --zone->second.hosts;
    return true;
  });
  std::erase_if(zones_, [](const auto& z) { return z.second.hosts == 0 && !z.second.running; });
}

void Resolver::work() {
  pthread_setname_np(pthread_self(), "resolver");
  auto channel = std::make_unique<DnsChannel>(options_.resolv_conf);
  for (;;) {
    std::vector<Job> jobs;
    Usec until;
    {
      std::lock_guard lock(mutex_);
      if (stop_) return;
      if (channel->outstanding() == 0 && std::exchange(reopen_, false))
        channel = std::make_unique<DnsChannel>(options_.resolv_conf);
      until = due_zones(monotonic_now());
      while (!queue_.empty() && channel->outstanding() + static_cast<int>(jobs.size()) < kMaxOutstanding) {
        jobs.push_back(std::move(queue_.front()));
        queue_.pop_front();
      }
    }
    for (const Job& job : jobs) {
      if (job.zone)
        channel->soa_serial(job.name, [this, zone = job.name](auto number) { serial(zone, number); });
      else
        channel->lookup(job.name, [this, host = job.name](DnsChannel::Found f) { found(host, std::move(f)); });
    }
    channel->wait(wake_fd_, until);
    std::uint64_t count;
    [[maybe_unused]] ssize_t n = ::read(wake_fd_, &count, sizeof count);
  }
}

void Resolver::found(const std::string& host, DnsChannel::Found answer) {
  std::vector<std::pair<Done, std::vector<Address>>> waiting;
  bool moved = false;
  {
    std::lock_guard lock(mutex_);
    Name& name = names_[host];
    name.running = false;
    name.addresses = answer.addresses;
    name.usable = std::move(answer.usable);
    name.error = answer.error;
    Usec ttl =
        answer.error.empty() ? std::min(times_.max_ttl, answer.ttl.value_or(times_.max_ttl)) : times_.nxdomain_ttl;
    name.good_until = monotonic_now() + ttl;
    if (answer.error.empty()) {
      moved = !name.known.empty() && name.known != answer.addresses;  // both sorted
      name.known = answer.addresses;
    }
    for (auto& [done, in_order] : std::exchange(name.waiting, {}))
      waiting.emplace_back(std::move(done), name.take_turn(in_order));
  }
  if (moved && options_.moved) options_.moved(host, answer.addresses);
  for (auto& [done, addresses] : waiting) done(addresses, answer.error);
}

// Asks for the serials whose turn it is; returns when to look again, -1 = when told to.
Usec Resolver::due_zones(Usec now) {
  if (times_.zone_check_period <= 0 || zones_.empty()) {
    next_zone_check_ = 0;
    return -1;
  }
  if (!next_zone_check_) next_zone_check_ = now + times_.zone_check_period;
  if (now >= next_zone_check_) {
    for (auto& [name, zone] : zones_)
      if (!std::exchange(zone.running, true)) queue_.push_back({true, name});
    next_zone_check_ = now + times_.zone_check_period;
  }
  return next_zone_check_;
}

void Resolver::serial(const std::string& zone_name, std::optional<std::uint32_t> serial) {
  std::uint32_t old;
  {
    std::lock_guard lock(mutex_);
    ZoneState& zone = zones_[zone_name];
    zone.running = false;
    // Serials are compared as RFC 1982 says: they wrap around.
    if (!serial || (zone.known && static_cast<std::int32_t>(*serial - zone.serial) <= 0)) return;
    old = std::exchange(zone.serial, *serial);
    zone.known = true;
    for (auto& [host, name] : names_)
      if (!name.running && zone_of(host) == zone_name) ask(host, name);
  }
  if (options_.log) (*options_.log)(LogLevel::log, "zone '{}' serial changed: old={} new={}", zone_name, old, *serial);
}

void Resolver::configure(const ResolverTimes& times) {
  std::lock_guard lock(mutex_);
  if (times.zone_check_period != times_.zone_check_period) next_zone_check_ = 0;
  times_ = times;
  wake();
}

void Resolver::reopen() {
  std::lock_guard lock(mutex_);
  reopen_ = true;
  wake();
}

Resolver::State Resolver::state() {
  std::lock_guard lock(mutex_);
  State result{{}, {}, 0};
  Usec now = monotonic_now();
  for (const auto& [host, name] : names_) {
    result.hosts.push_back({host, name.addresses, std::max<Usec>(0, name.good_until - now)});
    result.queries += name.running;
  }
  for (const auto& [name, zone] : zones_) {
    result.zones.push_back({name, zone.serial, zone.hosts});
    result.queries += zone.running;
  }
  return result;
}

}  // namespace pgf::net
