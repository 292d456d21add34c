#pragma once
// Names of servers to addresses, without making a loop wait: a few threads that call getaddrinfo (so /etc/hosts and
// nsswitch.conf count, as with PgBouncer), a cache, and at most one lookup per name in flight.
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/time.h"
#include "net/socket.h"

namespace pgf::net {

struct ResolverOptions {
  Usec max_ttl = 15 * kSecond;       // dns_max_ttl: getaddrinfo does not tell a record's own
  Usec nxdomain_ttl = 15 * kSecond;  // dns_nxdomain_ttl: how long a failure is remembered
  unsigned threads = 4;              // a slow name holds up only its own
  // For tests; the default asks getaddrinfo.
  std::function<std::string(const std::string& host, std::vector<Address>& out)> lookup;
};

// Thread-safe.
class Resolver {
 public:
  // Exactly one of the two is non-empty. Addresses have port 0.
  using Done = std::function<void(const std::vector<Address>& addresses, const std::string& error)>;

  explicit Resolver(ResolverOptions options = {});
  Resolver(const Resolver&) = delete;
  Resolver& operator=(const Resolver&) = delete;
  // Waits for lookups that are running; `done` of those that are not answered by then is dropped.
  ~Resolver();

  // `done` is called once: for a literal or a name in the cache inside this call, in the caller's thread; otherwise
  // later, in a thread of the resolver, where it should do no more than post to a mailbox.
  void start(const std::string& host, Done done);

  void set_ttl(Usec max_ttl, Usec nxdomain_ttl);  // after RELOAD
  void forget();                                  // empties the cache

  struct Entry {  // for SHOW DNS_HOSTS
    std::string host;
    std::vector<Address> addresses;
    std::string error;
    Usec ttl_left;
  };
  std::vector<Entry> entries();

 private:
  struct Name {
    std::vector<Address> addresses;
    std::string error;
    Usec good_until = -1;
    bool running = false;
    std::vector<Done> waiting;
  };

  void work();

  std::mutex mutex_;  // guards everything below
  std::condition_variable changed_;
  ResolverOptions options_;
  std::unordered_map<std::string, Name> names_;
  std::deque<std::string> queue_;
  bool stop_ = false;
  std::vector<std::thread> threads_;  // started with the first lookup: many configurations have literals only
};

}  // namespace pgf::net
