#pragma once
// What the engine's tests share: a loop that runs until a condition holds, an owner made of lambdas, raw peers.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "net/engine.h"
#include "net/socket.h"

namespace pgf::net::test {

struct Owner final : StreamOwner {
  std::function<void(Stream&, const Received&)> bytes;
  std::function<void(Stream&, int)> closed;
  std::function<void(Stream&)> drained;
  std::function<void(Stream&, int)> connected;
  std::function<void(Stream&)> secure;
  std::string in;
  std::unique_ptr<Tls> detached_tls;
  int secured = 0;
  int closes = 0, close_error = -1, drains = 0, connects = 0, connect_error = -1, detached_fd = -1, deliveries = 0;

  void on_bytes(Stream& s, const Received& r) override {
    ++deliveries;
    if (bytes) return bytes(s, r);
    in += as_text(r.bytes);
  }
  void on_closed(Stream& s, int error) override {
    ++closes;
    close_error = error;
    if (closed) closed(s, error);
  }
  void on_drained(Stream& s) override {
    ++drains;
    if (drained) drained(s);
  }
  void on_connected(Stream& s, int error) override {
    ++connects;
    connect_error = error;
    if (connected) connected(s, error);
  }
  void on_detached(int fd, std::unique_ptr<Tls> tls) override {
    detached_fd = fd;
    detached_tls = std::move(tls);
  }
  void on_secure(Stream& s) override {
    ++secured;
    if (secure) secure(s);
  }
};

struct Acceptor final : AcceptOwner {
  std::function<void(int)> accept;
  std::vector<int> fds;
  int errors = 0, last_tag = -1;
  void on_accept(int fd, int tag) override {
    last_tag = tag;
    if (accept) return accept(fd);
    fds.push_back(fd);
  }
  void on_accept_error(int, int) override { ++errors; }
  ~Acceptor() {
    for (int fd : fds) ::close(fd);
  }
};

struct Loop final : LoopOwner {
  explicit Loop(Engine& e) : engine(e) {}
  Engine& engine;
  std::function<bool()> done;
  std::function<void()> wake;
  Usec deadline = 0, interval = 2 * kMillisecond;
  int wakes = 0;
  bool timed_out = false;

  Usec on_turn(Usec now) override {
    if (done()) {
      engine.stop();
      return -1;
    }
    if (now > deadline) {
      timed_out = true;
      engine.stop();
    }
    return interval < 0 ? -1 : now + interval;
  }
  void on_wake() override {
    ++wakes;
    if (wake) wake();
  }
  // Runs the engine until `condition` holds at the end of a turn.
  ::testing::AssertionResult until(std::function<bool()> condition, Usec limit = 20 * kSecond) {
    done = std::move(condition);
    timed_out = false;
    deadline = monotonic_now() + limit;
    engine.run(*this);
    return timed_out ? ::testing::AssertionFailure() << "timed out" : ::testing::AssertionSuccess();
  }
  void spin(Usec time) {
    Usec end = monotonic_now() + time;
    (void)until([=] { return monotonic_now() >= end; });
  }
};

inline void nonblocking(int fd, bool on) {
  int flags = ::fcntl(fd, F_GETFL);
  ::fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK);
}

// [0] for the engine, [1] for the test.
struct Pair {
  int fd[2] = {-1, -1};
  Pair() { EXPECT_EQ(0, ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd)); }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;
  ~Pair() { close_peer(); }
  int peer() const { return fd[1]; }
  void close_peer() {
    if (fd[1] >= 0) ::close(std::exchange(fd[1], -1));
  }
};

inline std::pair<int, Address> listener() {
  auto fd = listen_tcp(*parse_ip("127.0.0.1", 0), {.backlog = 1024});
  EXPECT_TRUE(fd.has_value()) << (fd ? "" : fd.error());
  return {*fd, *local_address(*fd)};
}

// A connected pair over loopback TCP: {for the engine, for the test}, both nonblocking.
inline std::pair<int, int> tcp_pair() {
  auto [fd, address] = listener();
  int client = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(0, ::connect(client, address.get(), address.length));
  pollfd p{fd, POLLIN, 0};
  ::poll(&p, 1, 1000);
  int server = ::accept4(fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  EXPECT_GE(server, 0);
  nonblocking(client, true);
  ::close(fd);
  return {server, client};
}

inline std::string drain(int fd, std::size_t limit = 1 << 18) {
  static thread_local char buffer[1 << 18];
  ssize_t n = ::recv(fd, buffer, std::min(limit, sizeof buffer), MSG_DONTWAIT);
  return std::string(buffer, n > 0 ? static_cast<std::size_t>(n) : 0);
}

inline void put(int fd, std::string_view text) {
  ASSERT_EQ(static_cast<ssize_t>(text.size()), ::send(fd, text.data(), text.size(), MSG_NOSIGNAL));
}

class EngineTest : public ::testing::TestWithParam<const char*> {
 protected:
  static std::unique_ptr<Engine> make(const EngineOptions& options = {}) {
    return std::string_view(GetParam()) == "io_uring" ? make_uring(options) : make_epoll(options);
  }
  void SetUp() override {
    if (std::string_view(GetParam()) == "io_uring") {
      if (auto why = probe_uring(); !why.empty()) GTEST_SKIP() << why;
    }
    engine = make();
    loop = std::make_unique<Loop>(*engine);
  }
  void use(const EngineOptions& options) {
    engine = make(options);
    loop = std::make_unique<Loop>(*engine);
  }
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Loop> loop;
};

#define PGF_BOTH_ENGINES(suite)                                                 \
  INSTANTIATE_TEST_SUITE_P(Both, suite, ::testing::Values("io_uring", "epoll"), \
                           [](const auto& i) { return std::string(i.param); })

}  // namespace pgf::net::test
