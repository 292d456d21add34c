// Connecting, accepting and waking, on both engines.
#include <sys/resource.h>

#include <atomic>
#include <thread>

#include "net/engine_test_kit.h"
#include "net/mailbox.h"

namespace pgf::net::test {

class DoorTest : public EngineTest {};

TEST_P(DoorTest, Connect) {
  auto [fd, address] = listener();
  Acceptor a;
  Owner theirs;
  theirs.bytes = [](Stream& s, const Received& r) { s.send(r.bytes); };
  a.accept = [&](int accepted) { engine->adopt(accepted, Kind::client, &theirs)->resume(); };
  engine->listen(fd, 7, &a);
  Owner o;
  o.connected = [](Stream& s, int error) {
    ASSERT_EQ(error, 0);
    s.send(as_bytes("ping"));
    s.arm();
  };
  Stream* s = engine->connect(address.get(), address.length, &o);
  ASSERT_NE(s, nullptr);
  EXPECT_TRUE(set_tcp_options(s->fd(), {}));
  ASSERT_TRUE(loop->until([&] { return o.in == "ping"; }));
  EXPECT_EQ(a.last_tag, 7);
  engine->unlisten(fd);
  loop->spin(2 * kMillisecond);
  ::close(fd);
}

TEST_P(DoorTest, ConnectRefused) {
  auto [fd, address] = listener();
  ::close(fd);
  Owner o;
  Stream* s = engine->connect(address.get(), address.length, &o);
  ASSERT_TRUE(loop->until([&] { return o.connects == 1; }));
  EXPECT_EQ(o.connect_error, ECONNREFUSED);
  loop->spin(2 * kMillisecond);
  EXPECT_EQ(o.closes, 0);
  s->close();
  auto missing = unix_address("/nonexistent/socket");
  Owner o2;
  s = engine->connect(missing->get(), missing->length, &o2);
  ASSERT_TRUE(loop->until([&] { return o2.connects == 1; }));
  EXPECT_EQ(o2.connect_error, ENOENT);
  s->close();
}

TEST_P(DoorTest, CloseWhileConnecting) {
  auto silent = parse_ip("192.0.2.1", 9);  // TEST-NET: nobody answers, or no route
  Owner o;
  Stream* s = engine->connect(silent->get(), silent->length, &o);
  loop->spin(2 * kMillisecond);
  int before = o.connects;
  s->close();
  loop->spin(5 * kMillisecond);
  EXPECT_EQ(o.connects, before);
}

TEST_P(DoorTest, AcceptStorm) {
  auto [fd, address] = listener();
  Acceptor a;
  engine->listen(fd, 1, &a);
  constexpr int kClients = 400;
  std::vector<int> clients;
  std::thread storm([&, where = address] {
    for (int i = 0; i < kClients; ++i) {
      int c = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      EXPECT_EQ(0, ::connect(c, where.get(), where.length));
      clients.push_back(c);
    }
  });
  EXPECT_TRUE(loop->until([&] { return a.fds.size() == kClients; }));
  storm.join();
  EXPECT_EQ(a.errors, 0);
  EXPECT_TRUE(::fcntl(a.fds[0], F_GETFL) & O_NONBLOCK);
  EXPECT_TRUE(::fcntl(a.fds[0], F_GETFD) & FD_CLOEXEC);
  for (int c : clients) ::close(c);
  engine->unlisten(fd);
  loop->spin(2 * kMillisecond);
  int c = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  ::connect(c, address.get(), address.length);
  loop->spin(5 * kMillisecond);
  EXPECT_EQ(a.fds.size(), static_cast<std::size_t>(kClients));
  ::close(c);
  ::close(fd);
}

// Out of descriptors: told once, paused, then accepting again.
TEST_P(DoorTest, AcceptPausesOnError) {
  auto [fd, address] = listener();
  Acceptor a;
  int client = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  rlimit before{};
  ASSERT_EQ(0, ::getrlimit(RLIMIT_NOFILE, &before));
  rlimit none{3, before.rlim_max};
  ASSERT_EQ(0, ::setrlimit(RLIMIT_NOFILE, &none));  // before listen(): io_uring takes the limit when accept is armed
  engine->listen(fd, 1, &a);
  ASSERT_EQ(0, ::connect(client, address.get(), address.length));
  EXPECT_TRUE(loop->until([&] { return a.errors > 0; }));
  loop->spin(100 * kMillisecond);
  EXPECT_EQ(a.errors, 1);
  ASSERT_EQ(0, ::setrlimit(RLIMIT_NOFILE, &before));
  EXPECT_TRUE(a.fds.empty());
  EXPECT_TRUE(loop->until([&] { return a.fds.size() == 1; }, kAcceptPause + 2 * kSecond));
  engine->unlisten(fd);
  ::close(client);
  ::close(fd);
}

TEST_P(DoorTest, WakeFromManyThreads) {
  struct Message {
    Message* mailbox_next = nullptr;
    int value = 0;
  };
  constexpr int kThreads = 8, kEach = 5000;
  std::vector<Message> messages(kThreads * kEach);
  Mailbox<Message> box;
  std::vector<int> next(kThreads, 0);
  int got = 0;
  loop->interval = -1;  // only a wake ends a wait
  loop->wake = [&] {
    box.drain([&](Message* m) {
      EXPECT_EQ(m->value % kEach, next[static_cast<std::size_t>(m->value / kEach)]++);  // FIFO per producer
      ++got;
    });
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        Message& m = messages[static_cast<std::size_t>(t * kEach + i)];
        m.value = t * kEach + i;
        box.push(&m);
        engine->wake();
        if (i % 64 == 0) std::this_thread::yield();
      }
    });
  }
  EXPECT_TRUE(loop->until([&] { return got == kThreads * kEach; }, 60 * kSecond));
  for (auto& t : threads) t.join();
}

TEST_P(DoorTest, IdleLoopSleeps) {
  Pair p;
  Owner o;
  engine->adopt(p.fd[0], Kind::client, &o)->resume();
  loop->spin(5 * kMillisecond);
  loop->interval = -1;
  std::uint64_t before = engine->turns;
  Engine* e = engine.get();
  std::atomic<bool> over = false;
  std::thread t([&] {
    ::usleep(50'000);
    over = true;
    e->wake();
  });
  ASSERT_TRUE(loop->until([&] { return over.load(); }));
  t.join();
  EXPECT_LE(engine->turns - before, 4u);
}

PGF_BOTH_ENGINES(DoorTest);

}  // namespace pgf::net::test
