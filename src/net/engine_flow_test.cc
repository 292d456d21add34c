// Much data, few buffers, and no allocation: how the engines behave under load.
#include <sys/resource.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>

#include "net/engine_test_kit.h"

namespace {
std::atomic<std::uint64_t> allocations{0};
}

// Counted for the steady-state test; the sanitizers bring their own. (Inlined, the pair confuses g++.)
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define PGF_COUNT_ALLOCATIONS 1
[[gnu::noinline]] void* operator new(std::size_t n) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(n)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }
#endif

namespace pgf::net::test {

class FlowTest : public EngineTest {};

// Server → client relay with the watermarks, as sessions do it.
struct Relay {
  Owner server, client;
  Stream *from = nullptr, *to = nullptr;
  std::size_t highest = 0;
  bool copy = false;
  Relay() {
    server.bytes = [this](Stream& s, const Received& r) {
      if (copy) {
        to->send(r.bytes);
      } else {
        to->forward(r, r.bytes);
      }
      highest = std::max(highest, to->queued());
      if (to->queued() < Stream::kHighMark) {
        s.arm();
      } else {
        s.pause();
        to->want_drained();
      }
    };
    client.drained = [this](Stream&) { from->arm(); };
  }
};

std::uint8_t pattern(std::size_t i) { return static_cast<std::uint8_t>(i * 31 + (i >> 10)); }

void write_all(int fd, std::size_t total) {
  nonblocking(fd, false);
  std::vector<std::uint8_t> block(65'536);
  for (std::size_t at = 0; at < total;) {
    std::size_t n = std::min(block.size(), total - at);
    for (std::size_t i = 0; i < n; ++i) block[i] = pattern(at + i);
    for (std::size_t done = 0; done < n;) {
      ssize_t w = ::send(fd, block.data() + done, n - done, MSG_NOSIGNAL);
      if (w <= 0) return;
      done += static_cast<std::size_t>(w);
    }
    at += n;
  }
}

bool read_all(int fd, std::size_t total, int pause_every) {
  nonblocking(fd, false);
  std::vector<std::uint8_t> block(50'000);
  int reads = 0;
  for (std::size_t at = 0; at < total;) {
    ssize_t n = ::recv(fd, block.data(), block.size(), 0);
    if (n <= 0) return false;
    for (ssize_t i = 0; i < n; ++i) {
      if (block[static_cast<std::size_t>(i)] != pattern(at + static_cast<std::size_t>(i))) return false;
    }
    at += static_cast<std::size_t>(n);
    if (pause_every && ++reads % pause_every == 0) ::usleep(2000);
  }
  return true;
}

TEST_P(FlowTest, HundredMegabytesWithBackPressure) {
  for (Kind source : {Kind::server, Kind::client}) {
    for (bool copy : {false, true}) {
      std::size_t total = copy ? 20u << 20 : 100u << 20;
      auto [server_fd, server_peer] = tcp_pair();
      auto [client_fd, client_peer] = tcp_pair();
      Relay r;
      r.copy = copy;
      r.from = engine->adopt(server_fd, source, &r.server);
      r.to = engine->adopt(client_fd, Kind::client, &r.client);
      r.from->arm();
      std::atomic<bool> ok = false, over = false;
      std::thread writer([&, fd = server_peer] { write_all(fd, total); });
      std::thread reader([&, fd = client_peer] {
        ok = read_all(fd, total, 200);
        over = true;
        engine->wake();
      });
      EXPECT_TRUE(loop->until([&] { return over.load(); }, 120 * kSecond));
      reader.join();
      writer.join();
      EXPECT_TRUE(ok);
      EXPECT_LE(r.highest, Stream::kHighMark + 5 * 32768);
      EXPECT_EQ(r.server.closes + r.client.closes, 0);
      r.from->close();
      r.to->close();
      ::close(server_peer);
      ::close(client_peer);
    }
  }
}

// Readers that never read must not take the buffers away from the others.
TEST_P(FlowTest, StuckReadersDoNotStarveOthers) {
  use({.client_buffers = 8, .client_buffer_size = 4096, .server_buffers = 4, .server_buffer_size = 32768});
  constexpr int kStuck = 8;
  std::vector<std::unique_ptr<Relay>> relays;
  std::vector<int> peers;
  std::vector<std::thread> writers;
  for (int i = 0; i <= kStuck; ++i) {
    auto [server_fd, server_peer] = tcp_pair();
    auto [client_fd, client_peer] = tcp_pair();
    auto r = std::make_unique<Relay>();
    r->from = engine->adopt(server_fd, Kind::server, &r->server);
    r->to = engine->adopt(client_fd, Kind::client, &r->client);
    r->from->arm();
    relays.push_back(std::move(r));
    peers.push_back(client_peer);
    peers.push_back(server_peer);
    if (i < kStuck) writers.emplace_back([fd = server_peer] { write_all(fd, 64u << 20); });
  }
  loop->spin(500 * kMillisecond);  // now the stuck ones are full
  std::atomic<bool> ok = false, over = false;
  std::thread writer([&] { write_all(peers[2 * kStuck + 1], 8u << 20); });
  std::thread reader([&] {
    ok = read_all(peers[2 * kStuck], 8u << 20, 0);
    over = true;
    engine->wake();
  });
  EXPECT_TRUE(loop->until([&] { return over.load(); }));
  EXPECT_TRUE(ok);
  for (int fd : peers) ::shutdown(fd, SHUT_RDWR);
  for (auto& t : writers) t.join();
  writer.join();
  reader.join();
  engine.reset();
  for (int fd : peers) ::close(fd);
}

TEST_P(FlowTest, BufferStorm) {
  use({.client_buffers = 4, .client_buffer_size = 4096, .server_buffers = 4, .server_buffer_size = 4096});
  constexpr std::size_t kStreams = 100;
  std::vector<std::unique_ptr<Pair>> pairs;
  std::vector<std::unique_ptr<Owner>> owners;
  std::string text(10'000, 'e');
  std::vector<std::string> got(kStreams);
  for (std::size_t i = 0; i < kStreams; ++i) {
    pairs.push_back(std::make_unique<Pair>());
    owners.push_back(std::make_unique<Owner>());
    owners[i]->bytes = [](Stream& s, const Received& r) {
      s.forward(r, r.bytes);
      s.arm();
    };
    engine->adopt(pairs[i]->fd[0], i % 2 ? Kind::client : Kind::server, owners[i].get())->arm();
  }
  for (int round = 0; round < 5; ++round) {
    for (auto& g : got) g.clear();
    for (auto& p : pairs) put(p->peer(), text);
    ASSERT_TRUE(loop->until([&] {
      std::size_t full = 0;
      for (std::size_t i = 0; i < kStreams; ++i) full += (got[i] += drain(pairs[i]->peer())).size() == text.size();
      return full == kStreams;
    })) << "round "
        << round;
    for (auto& g : got) ASSERT_EQ(g, text);
  }
}

// Streams come and go while everything is busy: nothing may be delivered to the wrong one.
TEST_P(FlowTest, Churn) {
  use({.client_buffers = 8, .client_buffer_size = 4096, .server_buffers = 4, .server_buffer_size = 32768});
  unsigned seed = 12345;
  auto random = [&](unsigned n) { return (seed = seed * 1103515245 + 12345) / 65536 % n; };
  struct One {
    Owner owner;
    std::unique_ptr<Pair> pair;
    Stream* stream = nullptr;
    char letter = 0;
    bool broken = false;
  };
  std::vector<std::unique_ptr<One>> ones(40);
  std::vector<std::unique_ptr<One>> old;
  int turns = 0;
  ASSERT_TRUE(loop->until(
      [&] {
        for (int k = 0; k < 20; ++k) {
          auto& one = ones[random(40)];
          if (!one) {
            one = std::make_unique<One>();
            One* o = one.get();
            o->letter = static_cast<char>('a' + random(26));
            o->pair = std::make_unique<Pair>();
            o->owner.bytes = [o](Stream& s, const Received& r) {
              o->broken |= as_text(r.bytes).find_first_not_of(o->letter) != std::string_view::npos;
              s.forward(r, r.bytes);
              s.arm();
            };
            o->stream = engine->adopt(o->pair->fd[0], random(2) ? Kind::client : Kind::server, &o->owner);
            o->stream->arm();
          }
          std::string text(random(9000), one->letter);
          switch (random(7)) {
            case 0:
              one->stream->close();
              old.push_back(std::move(one));
              break;
            case 1:
              one->stream->close_after_flush(20 * kMillisecond);
              old.push_back(std::move(one));
              break;
            case 2:
              one->stream->pause();
              break;
            case 3:
              one->stream->resume();
              break;
            case 4:
              one->broken |= drain(one->pair->peer()).find_first_not_of(one->letter) != std::string::npos;
              break;
            case 5:
              one->stream->send(as_bytes(text));
              break;
            default:
              ::send(one->pair->peer(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
          }
        }
        loop->interval = static_cast<Usec>(random(300));
        if (old.size() > 50) {
          for (auto& o : old) EXPECT_FALSE(o->broken);
          old.clear();
        }
        return ++turns > 4000;
      },
      60 * kSecond));
  for (auto& o : ones) {
    if (o) {
      EXPECT_FALSE(o->broken);
    }
  }
  engine.reset();
}

TEST_P(FlowTest, NoAllocationInSteadyState) {
  constexpr int kStreams = 16;
  std::vector<std::unique_ptr<Pair>> clients, servers;
  std::vector<std::unique_ptr<Relay>> relays;
  for (int i = 0; i < kStreams; ++i) {
    clients.push_back(std::make_unique<Pair>());
    servers.push_back(std::make_unique<Pair>());
    relays.push_back(std::make_unique<Relay>());
    Relay& r = *relays.back();
    r.client.bytes = [&r](Stream&, const Received& in) {
      r.from->send(in.bytes);
      r.from->arm();
    };
    r.from = engine->adopt(servers.back()->fd[0], Kind::server, &r.server);
    r.to = engine->adopt(clients.back()->fd[0], Kind::client, &r.client);
    r.to->resume();
  }
  static char scratch[1 << 16];
  std::string query(200, 'q'), answer(12'000, 'a');
  std::uint64_t transactions = 0, from = 0, limit = 2000;
  bool waiting[kStreams] = {};
  std::size_t missing[kStreams] = {};
  auto step = [&] {
    for (std::size_t i = 0; i < kStreams; ++i) {
      int c = clients[i]->peer(), s = servers[i]->peer();
      if (::recv(s, scratch, sizeof scratch, MSG_DONTWAIT) > 0) {
        // a large answer (lent), and sometimes a small one (copied)
        std::size_t n = transactions % 3 ? answer.size() : 100;
        missing[i] = n;
        ::send(s, answer.data(), n, MSG_NOSIGNAL);
      }
      ssize_t n = ::recv(c, scratch, sizeof scratch, MSG_DONTWAIT);
      if (n > 0 && (missing[i] -= static_cast<std::size_t>(n)) == 0) {
        waiting[i] = false;
        ++transactions;
      }
      if (!waiting[i]) {
        waiting[i] = true;
        ::send(c, query.data(), query.size(), MSG_NOSIGNAL);
      }
    }
    if (transactions >= 500 && from == 0) from = allocations.load();
    return transactions >= limit;
  };
  loop->interval = 0;
  ASSERT_TRUE(loop->until(step));
#ifdef PGF_COUNT_ALLOCATIONS
  EXPECT_LE(allocations.load() - from, 0u);
#endif
}

// One system call per turn on io_uring, whatever the number of streams.
TEST_P(FlowTest, CappedSends) {
  if (std::string_view(GetParam()) != "epoll") GTEST_SKIP();
  int fds[2];  // each send is one record
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
  Owner owner;
  engine->send_cap = 4096;
  Stream* s = engine->adopt(fds[0], Kind::client, &owner);
  std::vector<std::uint8_t> bytes(10'000);
  s->send(bytes);
  std::size_t largest = 0, total = 0;
  ASSERT_TRUE(loop->until([&] {
    std::vector<char> record(65'536);
    for (ssize_t n; (n = ::recv(fds[1], record.data(), record.size(), 0)) > 0;) {
      largest = std::max(largest, static_cast<std::size_t>(n));
      total += static_cast<std::size_t>(n);
    }
    return total == bytes.size();
  }));
  EXPECT_EQ(largest, 4096U);
  s->close();
  ::close(fds[1]);
}

TEST_P(FlowTest, SystemCallsPerTurn) {
  if (std::string_view(GetParam()) != "io_uring") GTEST_SKIP();
  std::vector<std::unique_ptr<Pair>> pairs;
  std::vector<std::unique_ptr<Owner>> owners;
  for (int i = 0; i < 64; ++i) {
    pairs.push_back(std::make_unique<Pair>());
    owners.push_back(std::make_unique<Owner>());
    owners.back()->bytes = [](Stream& s, const Received& r) { s.send(r.bytes); };
    engine->adopt(pairs.back()->fd[0], Kind::client, owners.back().get())->resume();
  }
  loop->spin(5 * kMillisecond);
  std::uint64_t turns = engine->turns, calls = engine->syscalls;
  int rounds = 0;
  ASSERT_TRUE(loop->until([&] {
    for (auto& p : pairs) {
      drain(p->peer(), 4096);
      put(p->peer(), "x");
    }
    return ++rounds == 100;
  }));
  EXPECT_LE(engine->syscalls - calls, engine->turns - turns);
}

PGF_BOTH_ENGINES(FlowTest);

}  // namespace pgf::net::test
