#pragma once
// Passwords judged by the system: libpam and libldap block, so they run in threads of their own.
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "auth/external.h"

namespace pgf::external {

// Each returns why the password is not good, in words for the log; empty = it is good. They block.
std::string ask_pam(const auth::ExternalRequest& request);
std::string ask_ldap(const auth::ExternalRequest& request);

// A queue of requests and the threads that take from it. Thread-safe.
class Judges {
 public:
  // `reason` as above. Called in a judge's thread, where it should do no more than post to a mailbox.
  using Done = std::function<void(std::string reason)>;
  using Ask = std::function<std::string(const auth::ExternalRequest&)>;  // for tests; the default asks the system

  explicit Judges(unsigned threads = 8, std::size_t most_waiting = 1000, Ask ask = {});
  Judges(const Judges&) = delete;
  Judges& operator=(const Judges&) = delete;
  // No `done` is called from here on. Does not wait for requests that are being judged: that may take long.
  ~Judges();

  // False: too many are waiting already, and `done` will not be called.
  bool start(auth::ExternalRequest request, Done done);

 private:
  struct Job {
    auth::ExternalRequest request;
    Done done;
  };
  // Shared with the threads, which may outlast this object.
  struct State {
    std::mutex mutex;  // guards everything below, and is held while a `done` runs
    std::condition_variable changed;
    std::deque<Job> queue;
    unsigned running = 0, idle = 0;  // threads
    bool stop = false;
  };
  static void work(std::shared_ptr<State> state, Ask ask);

  const unsigned most_threads_;
  const std::size_t most_waiting_;
  const Ask ask_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace pgf::external
