#pragma once
// Which of several hosts the next connection goes to, and what is remembered about each address: is it alive, and what
// is it? Shared by all workers; asked when a connection is opened, never on a query's way. Times are passed in.
#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/time.h"
#include "config/config.h"

namespace pgf::pool {

// xoshiro256**: fast, and good enough for what is no secret.
class Random {
 public:
  using Seed = std::array<std::uint64_t, 4>;
  explicit Random(Seed seed);
  static Random strong();  // from the kernel's generator
  std::uint64_t next();
  std::uint32_t below(std::uint32_t n);  // 0 … n-1, each equally likely: what would favour some is drawn again

 private:
  Seed state_;
};

// Fisher and Yates: each order equally likely.
template <class T>
void shuffle(std::vector<T>& items, Random& random) {
  for (std::size_t left = items.size(); left > 1; --left)
    std::swap(items[left - 1], items[random.below(static_cast<std::uint32_t>(left))]);
}

// One element of a host list as a policy sees it. Elements of the same name and port are one host of that much weight.
struct Load {
  std::size_t same_as;  // the first element of this name and port: its own index, if it is that
  int open = 0, active = 0;
};
// The order in which a connection attempt tries the elements. `turn` is round-robin's.
std::vector<std::size_t> order(config::LoadBalance policy, std::span<const Load> loads, std::uint32_t turn,
                               Random& random);

enum class Role : std::uint8_t { unknown, primary, standby };
std::string_view to_text(Role role);

// What is known about a session for target_session_attrs.
struct SessionFacts {
  std::optional<bool> standby, read_only;
};
// libpq's reason why a session is not what was asked for, or empty. What is not known is not held against it.
// prefer-standby is `standby` in the first round, `any` in the second.
std::string_view misfit(config::TargetSession target, const SessionFacts& facts);
// Is enough known to say so? If not, the server is asked.
bool can_tell(config::TargetSession target, const SessionFacts& facts);

// One address with its port, whatever databases use it. Remembered as long as a host stands for it or a connection goes
// there. The atomics may be read by all; everything else belongs to Hosts.
class Address {
 public:
  explicit Address(std::string text_) : text(std::move(text_)) {}
  const std::string text;  // "127.0.0.1:5432", "[::1]:5432" or a socket's path
  std::atomic<Role> role{Role::unknown};
  std::atomic<bool> out{false};  // it failed, and has not answered since

 private:
  friend class Hosts;
  int failures = 0;  // in a row
  std::uint64_t all_failures = 0;
  Usec since = 0;     // in this state
  Usec next_try = 0;  // while out: to be asked whether it is back
  Usec wanted = 0;    // somebody with other hosts would have used it, last
  bool asked = false;
  Usec returned = 0;    // from being out, until the slow return is over
  Usec came_back = 0;   // the same, for kSettle
  Usec next_admit = 0;  // slow return
  Usec latency = 0;     // until its first answer
  Usec patience = 0;    // doubled each time that it took longer; 0: never
  std::string last_error;
};

// One host of a database's list. Remembered as long as it is in the list, or a connection goes there.
class Place {
 public:
  explicit Place(int workers) : active_(static_cast<std::size_t>(workers)) {}
  std::atomic<int> open{0};  // connections, those being opened included; all workers
  // Raised by whoever finds that a connection is no longer what it was: the others are asked before their next use.
  std::atomic<std::uint32_t> doubts{0};
  std::atomic<std::uint32_t> generation{0};  // RECONNECT of this host raises it: older servers are closed
  std::atomic<bool> left{false};             // it is in no list any more; the control thread writes
  // True for one caller per period, of all workers: the one that asks an idle server what it is.
  bool claim_role_check(Usec now, Usec period) { return claim(next_role_check_, now, period); }
  // Linked to a client. Each worker writes its own, so that this costs no worker anything on another's account.
  void add_active(int worker, int more) {
    auto& mine = active_[static_cast<std::size_t>(worker)].count;
    mine.store(mine.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  }
  int active() const;
  bool claim_move(Usec now, Usec period) { return claim(next_move_, now, period); }

 private:
  friend class Hosts;
  struct alignas(64) Active {
    std::atomic<int> count{0};
  };
  static bool claim(std::atomic<Usec>& due, Usec now, Usec period) {
    Usec next = due.load(std::memory_order_relaxed);
    return now >= next && due.compare_exchange_strong(next, now + period, std::memory_order_relaxed);
  }
  std::vector<Active> active_;
  std::atomic<Usec> next_role_check_{0}, next_move_{0};
  // Guarded by Hosts:
  std::vector<std::shared_ptr<Address>> addresses_;  // what its name last meant
  Usec unresolved_until_ = 0, unresolved_since_ = 0;
  std::uint64_t unresolved_times_ = 0;
  std::string unresolved_;  // why it means nothing, last
};

// Who writes for a database if several of its servers say that they take writes, as after a failover that went wrong:
// the first to have said so, until it fails or says something else. One per database, for all workers.
class Writer {
 public:
  // Is this somebody else than the one who writes? Any thread.
  bool is_other(const Address* address) const {
    const Address* one = is_.load(std::memory_order_relaxed);
    return one && address && one != address;
  }

 private:
  friend class Hosts;
  std::atomic<const Address*> is_{nullptr};  // under Hosts' mutex; others compare it only
  // Guarded by Hosts:
  std::shared_ptr<Address> kept_;            // so that the pointer means nobody else
  std::shared_ptr<const Address> reported_;  // who else wants to write, and was told of
};
// Whoever writes has to be one: where only a server that takes writes is wanted.
inline bool wants_writer(config::TargetSession target) {
  return target == config::TargetSession::read_write || target == config::TargetSession::primary;
}

class Hosts {
 public:
  // A healed host is given one connection per kAdmitStep, from all workers, until kReturnTime is over.
  static constexpr Usec kReturnTime = 5 * kSecond, kAdmitStep = 100 * kMillisecond;
  // How long a first answer is waited for, if there are other hosts: at least.
  static constexpr Usec kPatience = kSecond;
  // An address that is out is asked whether it is back: after 1, 2, 4 … 30 s, each up to a quarter longer.
  static constexpr Usec kFirstBackoff = kSecond, kLastBackoff = 30 * kSecond;
  // … as long as it was wanted in this time.
  static constexpr Usec kWanted = 10 * 60 * kSecond;

  // Connections are moved to a host that is back for so long, one of a host's per kMovePeriod.
  static constexpr Usec kUnresolved = 15 * kSecond;
  static constexpr Usec kSettle = 10 * 60 * kSecond, kMovePeriod = kSecond;
  // So often what nobody needs any more is forgotten.
  static constexpr Usec kTidyPeriod = 60 * kSecond;

  explicit Hosts(int workers, Random random = Random::strong()) : workers_(workers), random_(random) {}

  std::shared_ptr<Address> address(const std::string& text);
  std::shared_ptr<Place> place(const std::string& database, const std::string& host, int port);
  void resolved(Place& place, std::vector<std::shared_ptr<Address>> addresses);
  void unresolved(Place& place, Usec now, std::string_view reason);  // as if out, for kUnresolved

  // How a connection attempt is to go through the hosts (`places`, one per element): those that are out behind those
  // that are not, or the neighbour of a dead host would get its turns as well.
  std::vector<std::size_t> order(config::LoadBalance policy, std::span<Place* const> places, std::uint32_t turn,
                                 Usec now);
  // Hosts that are known not to be what is wanted go behind those that may be.
  void likely_first(std::vector<std::size_t>& order, std::span<Place* const> places, config::TargetSession target,
                    const Writer& writer) const;
  // A host that should give up a connection, or null: one that is back has two fewer (per weight), or, for
  // prefer-standby, a primary serves although a standby is up.
  Place* too_full(std::span<Place* const> places, config::TargetSession target, const Writer& writer, Usec now) const;

  // `address` takes writes. May it, or is there one already that does (`writes`) and works? `rival`: not said before.
  struct Claim {
    bool granted;
    std::string writes, rival;
  };
  Claim claim(Writer& writer, std::span<Place* const> places, const std::shared_ptr<Address>& address);
  // It does not take writes, or is about to end.
  void resign(Writer& writer, const Address& address);
  template <class T>
  void shuffle(std::vector<T>& items) {
    std::lock_guard lock(mutex_);
    pool::shuffle(items, random_);
  }

  // The news. Only failures to connect are failures; a server that answers, whatever it says, is alive.
  void failed(Address& address, Usec now, std::string_view reason);
  void answered(Address& address, Usec now, Usec latency);
  void probed(Address& address, Usec now, Usec latency);  // the same, but logins may take longer
  // No answer within patience(): that was too short, or it is dead; it is asked in the background, and is out
  // meanwhile.
  void silent(Address& address, Usec now, std::string_view reason);
  Usec patience(const Address& address) const;
  // May a connection go there now, as there are others? Counts as the wish to use it.
  enum class Admit { yes, out, returning };
  Admit admit(Address& address, Usec now);
  // An address that is due to be asked, and is the caller's to ask; its answer is failed() or probed().
  std::shared_ptr<Address> due(Usec now);

  // Hosts that are in no list of this configuration are forgotten when their last connection has ended: before any
  // worker has it.
  void keep(const config::Config& config);
  struct Remembered {
    std::size_t addresses, places;
  };
  Remembered remembered() const;
  bool knows(const std::string& address) const;

  struct Row {  // SHOW HOSTS
    std::string address, last_error;
    Role role;
    bool known, out, returning;
    Usec since, next_try, latency;
    std::uint64_t failures;
  };
  std::vector<Row> rows(const std::string& database, const std::string& host, int port, Usec now) const;

 private:
  static bool writes(const Writer& writer, std::span<Place* const> places);
  static bool may_fit(const Address& address, config::TargetSession target, const Address* writer);
  void go_out(Address& address, Usec now, std::string_view reason);
  void come_back(Address& address, Usec now);
  void tidy(Usec now);

  const int workers_;
  mutable std::mutex mutex_;  // everything below, and what is private in Address and Place
  Random random_;
  std::map<std::string, std::shared_ptr<Address>> addresses_;
  std::map<std::tuple<std::string, std::string, int>, std::shared_ptr<Place>> places_;
  Usec next_tidy_ = 0;
};

}  // namespace pgf::pool
