#include "net/mailbox.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace pgf::net {
namespace {

struct Message {
  Message* mailbox_next = nullptr;
  int value = 0;
};

TEST(Mailbox, OldestFirst) {
  Mailbox<Message> box;
  Message m[3] = {{nullptr, 1}, {nullptr, 2}, {nullptr, 3}};
  EXPECT_TRUE(box.empty());
  EXPECT_EQ(box.pop_all(), nullptr);
  EXPECT_TRUE(box.push(&m[0]));
  EXPECT_FALSE(box.push(&m[1]));
  EXPECT_FALSE(box.push(&m[2]));
  std::vector<int> got;
  box.drain([&](Message* p) { got.push_back(p->value); });
  EXPECT_EQ(got, (std::vector<int>{1, 2, 3}));
  EXPECT_TRUE(box.empty());
  EXPECT_TRUE(box.push(&m[0]));
}

TEST(Mailbox, ManyProducersLoseNothing) {
  constexpr int kThreads = 4, kEach = 50'000;
  Mailbox<Message> box;
  std::vector<Message> messages(kThreads * kEach);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        Message& m = messages[static_cast<std::size_t>(t * kEach + i)];
        m.value = t * kEach + i;
        box.push(&m);
      }
    });
  }
  std::vector<int> next(kThreads, 0);
  int got = 0;
  while (got < kThreads * kEach) {
    box.drain([&](Message* m) {
      ASSERT_EQ(m->value % kEach, next[static_cast<std::size_t>(m->value / kEach)]++);
      ++got;
    });
    std::this_thread::yield();
  }
  for (auto& t : threads) t.join();
}

}  // namespace
}  // namespace pgf::net
