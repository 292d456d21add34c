#pragma once
// Names of servers to addresses for all workers: a cache, at most one question per name in flight, and one thread that
// asks (dns_channel.h), so that no loop ever waits for DNS.
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/time.h"
#include "net/dns_channel.h"
#include "net/socket.h"

namespace pgf::net {

// What RELOAD and SET may change.
struct ResolverTimes {
  Usec max_ttl = 15 * kSecond;       // dns_max_ttl: a record's own time counts if it is shorter
  Usec nxdomain_ttl = 15 * kSecond;  // dns_nxdomain_ttl: how long a failure is remembered
  Usec zone_check_period = 0;        // dns_zone_check_period; 0: off
};

struct ResolverOptions {
  ResolverTimes times;
  std::string resolv_conf;  // empty: the system's
  Log* log = nullptr;
  // The addresses of a name are others than before, the order aside. Called in the resolver's thread.
  std::function<void(const std::string& host, const std::vector<Address>& addresses)> moved;
};

// Thread-safe.
class Resolver {
 public:
  // Exactly one of the two is non-empty. Addresses have port 0.
  using Done = std::function<void(const std::vector<Address>& addresses, const std::string& error)>;

  explicit Resolver(ResolverOptions options = {});
  Resolver(const Resolver&) = delete;
  Resolver& operator=(const Resolver&) = delete;
  ~Resolver();  // `done` of those that are not answered by then is dropped

  // `done` is called once: for a literal or a name in the cache inside this call, in the caller's thread; otherwise
  // later, in the resolver's thread, where it should do no more than post to a mailbox.
  // Each caller gets the next address first, unless it wants them in the resolver's order.
  void start(const std::string& host, Done done, bool in_order = false);

  void configure(const ResolverTimes& times);
  void reopen();  // RELOAD: reads the resolv.conf again as soon as no answer is awaited

  struct Host {  // for SHOW DNS_HOSTS
    std::string name;
    std::vector<Address> addresses;
    Usec ttl_left;
  };
  struct Zone {  // for SHOW DNS_ZONES
    std::string name;
    std::uint32_t serial;
    int hosts;
  };
  struct State {  // sorted by name
    std::vector<Host> hosts;
    std::vector<Zone> zones;
    int queries;  // not answered yet
  };
  State state();

 private:
  struct Name {
    std::vector<Address> addresses, usable;
    std::vector<Address> known;  // of the last answer that had some
    std::string error;
    std::size_t turn = 0;
    Usec good_until = -1;
    bool running = false;
    std::vector<std::pair<Done, bool>> waiting;  // in_order

    std::vector<Address> take_turn(bool in_order);
  };
  struct ZoneState {
    std::uint32_t serial = 0;
    bool known = false, running = false;
    int hosts = 0;
  };
  struct Job {
    bool zone;
    std::string name;
  };

  // With the mutex held.
  bool ask(const std::string& host, Name& name);  // false: there is no thread to be had
  void forget_old(Usec now);
  Usec due_zones(Usec now);
  void wake();
  // The resolver's thread.
  void work();
  void found(const std::string& host, DnsChannel::Found answer);
  void serial(const std::string& zone, std::optional<std::uint32_t> serial);

  const ResolverOptions options_;
  const int wake_fd_;
  std::mutex mutex_;  // guards everything below
  ResolverTimes times_;
  std::map<std::string, Name> names_;
  std::map<std::string, ZoneState> zones_;
  std::deque<Job> queue_;
  Usec next_zone_check_ = 0;  // 0: not set
  bool stop_ = false, reopen_ = false;
  std::thread thread_;  // started with the first lookup: many configurations have literals only
};

}  // namespace pgf::net
