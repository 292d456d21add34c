// The life of a stream, on both engines: bytes, pauses, ends, leaving.
#include "net/engine.h"

#include <thread>

#include "net/engine_test_kit.h"

namespace pgf::net::test {

static_assert(sizeof(Stream) <= 200);

TEST_P(EngineTest, Echo) {
  Pair p;
  Owner o;
  o.bytes = [](Stream& s, const Received& r) { s.forward(r, r.bytes); };
  Stream* s = engine->adopt(p.fd[0], Kind::client, &o);
  s->resume();
  std::string got;
  for (int round = 0; round < 50; ++round) {
    put(p.peer(), "hello");
    got.clear();
    ASSERT_TRUE(loop->until([&] { return (got += drain(p.peer())).size() >= 5; }));
    EXPECT_EQ(got, "hello");
  }
  EXPECT_EQ(s->bytes_in, 250u);
  ASSERT_TRUE(loop->until([&] { return s->bytes_out == 250; }));
  EXPECT_EQ(s->queued(), 0u);
  s->close();
  loop->spin(10 * kMillisecond);
  char c;
  EXPECT_EQ(0, ::recv(p.peer(), &c, 1, 0));
}

TEST_P(EngineTest, Fragmented) {
  Pair p;
  Owner o;
  engine->adopt(p.fd[0], Kind::client, &o)->resume();
  std::string sent;
  for (int i = 0; i < 300; ++i) {
    std::string part(static_cast<std::size_t>(1 + i % 7), static_cast<char>('a' + i % 26));
    sent += part;
    put(p.peer(), part);
    if (i % 3 == 0) {
      ASSERT_TRUE(loop->until([&] { return o.in.size() == sent.size(); }));
    }
  }
  ASSERT_TRUE(loop->until([&] { return o.in.size() == sent.size(); }));
  EXPECT_EQ(o.in, sent);
}

TEST_P(EngineTest, ManySmallSendsGoOutTogetherInOrder) {
  Pair p;
  Owner o;
  Stream* s = engine->adopt(p.fd[0], Kind::server, &o);
  std::string sent, got;
  for (int i = 0; i < 3000; ++i) {
    std::string part = std::to_string(i) + ",";
    sent += part;
    s->send(as_bytes(part));
  }
  EXPECT_EQ(s->queued(), sent.size());
  std::uint64_t before = engine->syscalls;
  ASSERT_TRUE(loop->until([&] { return (got += drain(p.peer())).size() >= sent.size(); }));
  EXPECT_EQ(got, sent);
  EXPECT_LT(engine->syscalls - before, 12u);
}

TEST_P(EngineTest, ServerDeliversOncePerArm) {
  Pair p;
  Owner o;
  Stream* s = engine->adopt(p.fd[0], Kind::server, &o);
  put(p.peer(), "one");
  loop->spin(20 * kMillisecond);
  EXPECT_EQ(o.in, "");
  EXPECT_FALSE(s->looks_idle());
  s->arm();
  s->arm();
  ASSERT_TRUE(loop->until([&] { return o.in == "one"; }));
  EXPECT_FALSE(s->armed());
  EXPECT_TRUE(s->looks_idle());
  put(p.peer(), "two");
  loop->spin(20 * kMillisecond);
  EXPECT_EQ(o.in, "one");
  s->arm();
  ASSERT_TRUE(loop->until([&] { return o.in == "onetwo"; }));
  // Armed first, bytes later.
  s->arm();
  loop->spin(5 * kMillisecond);
  put(p.peer(), "three");
  ASSERT_TRUE(loop->until([&] { return o.in == "onetwothree"; }));
  // Armed, paused, bytes: kept for the next arm().
  s->arm();
  loop->spin(5 * kMillisecond);
  s->pause();
  put(p.peer(), "four");
  loop->spin(20 * kMillisecond);
  EXPECT_EQ(o.in, "onetwothree");
  s->arm();
  ASSERT_TRUE(loop->until([&] { return o.in == "onetwothreefour"; }));
}

TEST_P(EngineTest, PauseKeepsBytesAndOrder) {
  for (bool tcp : {false, true}) {
    int mine, peer;
    if (tcp) {
      std::tie(mine, peer) = tcp_pair();
    } else {
      int fd[2];
      ASSERT_EQ(0, ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd));
      mine = fd[0], peer = fd[1];
    }
    Owner o;
    Stream* s = engine->adopt(mine, Kind::client, &o);
    s->resume();
    std::string sent;
    for (int round = 0; round < 40; ++round) {
      s->pause();
      for (int i = 0; i < 5; ++i) {
        std::string part(static_cast<std::size_t>(1000 + 777 * i), static_cast<char>('a' + (round + i) % 26));
        sent += part;
        put(peer, part);
        if (i == 2) loop->spin(1 * kMillisecond);
      }
      std::size_t had = o.in.size();
      loop->spin(1 * kMillisecond);
      EXPECT_EQ(o.in.size(), had);
      s->resume();
      if (round % 4) {
        ASSERT_TRUE(loop->until([&] { return o.in.size() == sent.size(); }));
      }
    }
    ASSERT_TRUE(loop->until([&] { return o.in.size() == sent.size(); }));
    EXPECT_EQ(o.in, sent);
    s->close();
    ::close(peer);
  }
}

TEST_P(EngineTest, PauseInsideOnBytes) {
  Pair p;
  Owner o;
  o.bytes = [&](Stream& s, const Received& r) {
    o.in += as_text(r.bytes);
    s.pause();
  };
  Stream* s = engine->adopt(p.fd[0], Kind::client, &o);
  s->resume();
  put(p.peer(), std::string(100'000, 'x'));
  int rounds = 0;
  while (o.in.size() < 100'000) {
    ASSERT_LT(++rounds, 100);
    int before = o.deliveries;
    s->resume();
    ASSERT_TRUE(loop->until([&] { return o.deliveries > before; }));
    loop->spin(3 * kMillisecond);
    EXPECT_EQ(o.deliveries, before + 1);
  }
}

TEST_P(EngineTest, EofAfterData) {
  for (Kind kind : {Kind::client, Kind::server}) {
    Pair p;
    Owner o;
    std::string at_close;
    o.bytes = [&](Stream& s, const Received& r) {
      o.in += as_text(r.bytes);
      s.arm();
    };
    o.closed = [&](Stream&, int) { at_close = o.in; };
    Stream* s = engine->adopt(p.fd[0], kind, &o);
    put(p.peer(), std::string(50'000, 'z'));
    p.close_peer();
    s->arm();
    ASSERT_TRUE(loop->until([&] { return o.closes == 1; }));
    EXPECT_EQ(at_close.size(), 50'000u);
    EXPECT_EQ(o.close_error, 0);
    loop->spin(5 * kMillisecond);
    EXPECT_EQ(o.closes, 1);
    s->close();
  }
}

TEST_P(EngineTest, EofWhilePausedComesAfterTheBytes) {
  Pair p;
  Owner o;
  Stream* s = engine->adopt(p.fd[0], Kind::client, &o);
  s->resume();
  loop->spin(2 * kMillisecond);
  s->pause();
  put(p.peer(), "last words");
  loop->spin(5 * kMillisecond);
  p.close_peer();
  loop->spin(5 * kMillisecond);
  EXPECT_EQ(o.in, "");
  EXPECT_EQ(o.closes, 0);
  s->resume();
  ASSERT_TRUE(loop->until([&] { return o.closes == 1; }));
  EXPECT_EQ(o.in, "last words");
}

TEST_P(EngineTest, HalfClosedPeerStillGetsAnAnswer) {
  Pair p;
  Owner o;
  o.closed = [](Stream& s, int) {
    s.send(as_bytes("bye"));
    s.close_after_flush();
  };
  engine->adopt(p.fd[0], Kind::client, &o)->resume();
  ::shutdown(p.peer(), SHUT_WR);
  std::string got;
  ASSERT_TRUE(loop->until([&] { return (got += drain(p.peer())) == "bye"; }));
}

TEST_P(EngineTest, Reset) {
  auto [mine, peer] = tcp_pair();
  Owner o;
  Stream* s = engine->adopt(mine, Kind::client, &o);
  s->resume();
  loop->spin(2 * kMillisecond);
  linger hard{1, 0};
  ::setsockopt(peer, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
  ::close(peer);
  ASSERT_TRUE(loop->until([&] { return o.closes == 1; }));
  EXPECT_EQ(o.close_error, ECONNRESET);
  s->send(as_bytes("into the void"));
  loop->spin(2 * kMillisecond);
  EXPECT_EQ(o.closes, 1);
  s->close();
}

TEST_P(EngineTest, SendErrorIsReportedWhilePaused) {
  Pair p;
  Owner o;
  Stream* s = engine->adopt(p.fd[0], Kind::client, &o);
  p.close_peer();
  s->send(as_bytes("x"));
  ASSERT_TRUE(loop->until([&] { return o.closes == 1; }));
  EXPECT_EQ(o.close_error, EPIPE);
  EXPECT_EQ(s->queued(), 0u);
  s->close();
}

TEST_P(EngineTest, CloseInEveryCallback) {
  {
    Pair p;
    Owner o;
    o.bytes = [](Stream& s, const Received&) { s.close(); };
    engine->adopt(p.fd[0], Kind::client, &o)->resume();
    put(p.peer(), std::string(60'000, 'q'));
    ASSERT_TRUE(loop->until([&] { return o.deliveries == 1; }));
    loop->spin(5 * kMillisecond);
    EXPECT_EQ(o.deliveries, 1);
    EXPECT_EQ(o.closes, 0);
  }
  Pair p;
  Owner o;
  o.drained = [](Stream& s) { s.close(); };
  Stream* s = engine->adopt(p.fd[0], Kind::client, &o);
  s->resume();
  s->want_drained();
  EXPECT_EQ(o.drains, 0);  // never from inside a call
  ASSERT_TRUE(loop->until([&] { return o.drains == 1; }));
}

TEST_P(EngineTest, CloseByAnotherStreamsCallback) {
  Pair a, b;
  Owner oa, ob;
  Stream *sa = engine->adopt(a.fd[0], Kind::client, &oa), *sb = engine->adopt(b.fd[0], Kind::client, &ob);
  // Whoever is first closes the other one, whose bytes are in the same batch.
  oa.bytes = [&](Stream&, const Received&) { sb->close(); };
  ob.bytes = [&](Stream&, const Received&) { sa->close(); };
  sa->resume();
  sb->resume();
  loop->spin(2 * kMillisecond);
  put(a.peer(), "a");
  put(b.peer(), "b");
  ASSERT_TRUE(loop->until([&] { return oa.deliveries + ob.deliveries > 0; }));
  loop->spin(5 * kMillisecond);
  EXPECT_EQ(oa.deliveries + ob.deliveries, 1);
}

TEST_P(EngineTest, CloseWithSendInFlight) {
  for (int i = 0; i < 20; ++i) {
    auto [mine, peer] = tcp_pair();
    Owner o;
    Stream* s = engine->adopt(mine, Kind::client, &o);
    s->resume();
    std::string much(8 << 20, 'm');
    s->send(as_bytes(much));
    loop->spin(i % 3 * kMillisecond);
    EXPECT_GT(s->queued(), 0u);
    s->close();
    loop->spin(2 * kMillisecond);
    // The peer sees the end soon although it never read.
    while (drain(peer).size() > 0) {
    }
    pollfd pf{peer, POLLIN, 0};
    ASSERT_TRUE(loop->until([&] {
      drain(peer);
      return ::poll(&pf, 1, 0) == 1 && (pf.revents & (POLLHUP | POLLERR | POLLIN));
    }));
    ::close(peer);
  }
}

TEST_P(EngineTest, CloseAfterFlushToSlowReader) {
  auto [mine, peer] = tcp_pair();
  Owner o;
  Stream* s = engine->adopt(mine, Kind::client, &o);
  s->resume();
  std::string much(6 << 20, 'm');
  s->send(as_bytes(much));
  s->close_after_flush();
  std::size_t got = 0;
  bool end = false;
  char buffer[20'000];
  ASSERT_TRUE(loop->until([&] {
    ssize_t n = ::recv(peer, buffer, sizeof buffer, MSG_DONTWAIT);
    if (n > 0) got += static_cast<std::size_t>(n);
    if (n == 0) end = true;
    return end;
  }));
  EXPECT_EQ(got, much.size());
  EXPECT_EQ(o.closes, 0);
  ::close(peer);
}

TEST_P(EngineTest, LingerEnds) {
  auto [mine, peer] = tcp_pair();
  Owner o;
  Stream* s = engine->adopt(mine, Kind::client, &o);
  std::string much(16 << 20, 'm');
  s->send(as_bytes(much));
  s->close_after_flush(50 * kMillisecond);
  loop->spin(100 * kMillisecond);
  std::size_t got = 0;
  bool end = false;
  std::string buffer(1 << 20, 0);
  ASSERT_TRUE(loop->until([&] {
    ssize_t n = ::recv(peer, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (n > 0) got += static_cast<std::size_t>(n);
    if (n == 0 || (n < 0 && errno != EAGAIN)) end = true;
    return end;
  }));
  EXPECT_LT(got, much.size());
  ::close(peer);
}

TEST_P(EngineTest, DetachAndAdoptElsewhere) {
  Pair p;
  Owner o;
  Stream* s = engine->adopt(p.fd[0], Kind::client, &o);
  s->resume();
  put(p.peer(), "one");
  ASSERT_TRUE(loop->until([&] { return o.in == "one"; }));
  s->detach();
  EXPECT_EQ(o.detached_fd, -1);
  ASSERT_TRUE(loop->until([&] { return o.detached_fd >= 0; }));
  EXPECT_EQ(o.detached_fd, p.fd[0]);
  put(p.peer(), "two");
  loop->spin(3 * kMillisecond);
  EXPECT_EQ(o.in, "one");
  std::thread([&] {
    auto other = make();
    Loop there(*other);
    Owner o2;
    o2.bytes = [&](Stream& t, const Received& r) {
      o2.in += as_text(r.bytes);
      t.send(as_bytes("three"));
    };
    other->adopt(o.detached_fd, Kind::client, &o2)->resume();
    std::string got;
    EXPECT_TRUE(there.until([&] { return (got += drain(p.peer())) == "three"; }));
    EXPECT_EQ(o2.in, "two");
  }).join();
}

TEST_P(EngineTest, DetachOfIdleServer) {
  Pair p;
  Owner o;
  Stream* s = engine->adopt(p.fd[0], Kind::server, &o);
  loop->spin(2 * kMillisecond);
  s->detach();
  EXPECT_EQ(o.detached_fd, -1);
  ASSERT_TRUE(loop->until([&] { return o.detached_fd >= 0; }));
  ::close(o.detached_fd);
}

TEST_P(EngineTest, DetachRacesWithData) {
  int detached = 0, delivered = 0;
  for (int i = 0; i < 200; ++i) {
    Pair p;
    Owner o;
    Stream* s = engine->adopt(p.fd[0], Kind::client, &o);
    s->resume();
    loop->spin(0);
    if (i % 2) put(p.peer(), "data");
    s->detach();
    if (i % 2 == 0) put(p.peer(), "data");
    ASSERT_TRUE(loop->until([&] { return o.detached_fd >= 0 || o.deliveries; }));
    if (o.detached_fd >= 0) {
      ++detached;
      EXPECT_EQ(o.deliveries, 0);
      EXPECT_EQ(drain(o.detached_fd), "data");  // left in the kernel, moves with the fd
      ::close(o.detached_fd);
    } else {
      ++delivered;
      EXPECT_EQ(o.in, "data");
      put(p.peer(), "more");  // still a working stream
      ASSERT_TRUE(loop->until([&] { return o.in == "datamore"; }));
      EXPECT_EQ(o.detached_fd, -1);
      s->close();
    }
  }
  EXPECT_EQ(detached + delivered, 200);
}

PGF_BOTH_ENGINES(EngineTest);

TEST(Probe, Answers) {
  std::string why = probe_uring();
  if (!why.empty()) GTEST_SKIP() << why;
  EXPECT_STREQ(make_uring()->name(), "io_uring");
  EXPECT_STREQ(make_epoll()->name(), "epoll");
}

}  // namespace pgf::net::test
