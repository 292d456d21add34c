#include "net/resolver.h"

#include <netdb.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "net/engine.h"

namespace pgf::net {
namespace {

std::string ask_system(const std::string& host, std::vector<Address>& out) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &list); error != 0) {
    return error == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(error);
  }
  for (addrinfo* i = list; i; i = i->ai_next) {
    if (i->ai_addrlen > sizeof(sockaddr_storage)) continue;
    Address a;
    std::memcpy(&a.storage, i->ai_addr, i->ai_addrlen);
    a.length = i->ai_addrlen;
    if (std::find(out.begin(), out.end(), a) == out.end()) out.push_back(a);
  }
  ::freeaddrinfo(list);
  return out.empty() ? "no address" : "";
}

constexpr std::size_t kMaxNames = 1024;  // then expired ones are dropped

}  // namespace

Resolver::Resolver(ResolverOptions options) : options_(std::move(options)) {
  if (!options_.lookup) options_.lookup = ask_system;
}

Resolver::~Resolver() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void Resolver::start(const std::string& host, Done done) {
  if (auto literal = parse_ip(host, 0)) return done({*literal}, {});
  std::vector<Address> addresses;
  std::string error;
  {
    std::lock_guard lock(mutex_);
    Usec now = monotonic_now();
    if (names_.size() >= kMaxNames) {
      std::erase_if(names_, [&](const auto& n) { return !n.second.running && n.second.good_until <= now; });
    }
    Name& name = names_[host];
    if (name.running || name.good_until <= now) {
      name.waiting.push_back(std::move(done));
      if (name.running) return;
      name.running = true;
      queue_.push_back(host);
      if (threads_.empty()) {
        // Signals are for the control thread.
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        for (unsigned i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { work(); });
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
      }
      changed_.notify_one();
      return;
    }
    addresses = name.addresses;
    error = name.error;
  }
  done(addresses, error);
}

void Resolver::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (stop_) return;
    std::string host = std::move(queue_.front());
    queue_.pop_front();

    lock.unlock();
    std::vector<Address> addresses;
    std::string error = options_.lookup(host, addresses);  // never changed after construction
    lock.lock();

    Name& name = names_[host];
    name.running = false;
    name.addresses = addresses;
    name.error = error;
    name.good_until = monotonic_now() + (error.empty() ? options_.max_ttl : options_.nxdomain_ttl);
    std::vector<Done> waiting = std::exchange(name.waiting, {});
    if (stop_) return;

    lock.unlock();
    for (Done& done : waiting) done(addresses, error);
    waiting.clear();
    lock.lock();
  }
}

void Resolver::set_ttl(Usec max_ttl, Usec nxdomain_ttl) {
  std::lock_guard lock(mutex_);
  options_.max_ttl = max_ttl;
  options_.nxdomain_ttl = nxdomain_ttl;
}

void Resolver::forget() {
  std::lock_guard lock(mutex_);
  std::erase_if(names_, [](const auto& n) { return !n.second.running; });
}

std::vector<Resolver::Entry> Resolver::entries() {
  std::lock_guard lock(mutex_);
  std::vector<Entry> result;
  Usec now = monotonic_now();
  for (const auto& [host, name] : names_) {
    result.push_back({host, name.addresses, name.error, std::max<Usec>(0, name.good_until - now)});
  }
  return result;
}

}  // namespace pgf::net
