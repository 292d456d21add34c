#include "net/resolver.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

namespace pgf::net {
namespace {

struct Answer {
  std::vector<Address> addresses;
  std::string error;
};

std::future<Answer> ask(Resolver& r, const std::string& host) {
  auto promise = std::make_shared<std::promise<Answer>>();
  r.start(host, [promise](const std::vector<Address>& a, const std::string& e) { promise->set_value({a, e}); });
  return promise->get_future();
}

bool ready(std::future<Answer>& f) { return f.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }

TEST(Resolver, LiteralsNeedNoThread) {
  Resolver r({.lookup = [](const std::string&, std::vector<Address>&) { return std::string("asked"); }});
  auto four = ask(r, "10.1.2.3"), six = ask(r, "::1");
  ASSERT_TRUE(ready(four) && ready(six));
  EXPECT_EQ(format_host(four.get().addresses.at(0)), "10.1.2.3");
  EXPECT_EQ(format_host(six.get().addresses.at(0)), "::1");
}

TEST(Resolver, Localhost) {
  Resolver r;
  Answer a = ask(r, "localhost").get();
  ASSERT_EQ(a.error, "");
  ASSERT_FALSE(a.addresses.empty());
  EXPECT_TRUE(format_host(a.addresses[0]) == "127.0.0.1" || format_host(a.addresses[0]) == "::1");
}

TEST(Resolver, CachesAnswersAndFailures) {
  std::atomic<int> asked = 0;
  Resolver r({.max_ttl = 60 * kSecond,
              .nxdomain_ttl = 30 * kMillisecond,
              .lookup = [&](const std::string& host, std::vector<Address>& out) {
                ++asked;
                if (host != "good") return std::string("no such host");
                out.push_back(*parse_ip("10.0.0.1", 0));
                return std::string();
              }});
  EXPECT_EQ(ask(r, "good").get().addresses.size(), 1u);
  auto again = ask(r, "good");
  EXPECT_TRUE(ready(again));
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(ask(r, "bad").get().error, "no such host");
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(ask(r, "bad").get().error, "no such host");
  EXPECT_EQ(asked, 3);
  EXPECT_EQ(r.entries().size(), 2u);
  r.forget();
  EXPECT_EQ(ask(r, "good").get().error, "");
  EXPECT_EQ(asked, 4);
}

TEST(Resolver, SlowNameBlocksNoOther) {
  std::atomic<int> slow = 0;
  std::promise<void> go;
  std::shared_future<void> gate = go.get_future().share();
  Resolver r({.lookup = [&](const std::string& host, std::vector<Address>& out) {
    if (host == "slow") {
      ++slow;
      gate.wait();
    }
    out.push_back(*parse_ip("10.0.0.1", 0));
    return std::string();
  }});
  auto a = ask(r, "slow"), b = ask(r, "slow");
  EXPECT_EQ(ask(r, "fast").get().error, "");
  EXPECT_FALSE(ready(a));
  go.set_value();
  EXPECT_EQ(a.get().error, "");
  EXPECT_EQ(b.get().error, "");
  EXPECT_EQ(slow, 1);
}

TEST(Resolver, EndsWhileBusy) {
  std::atomic<int> done = 0;
  {
    Resolver r({.threads = 1, .lookup = [&](const std::string&, std::vector<Address>& out) {
                  std::this_thread::sleep_for(std::chrono::milliseconds(20));
                  out.push_back(*parse_ip("10.0.0.1", 0));
                  return std::string();
                }});
    for (int i = 0; i < 5; ++i) {
      r.start("name" + std::to_string(i), [&](const auto&, const auto&) { ++done; });
    }
  }
  EXPECT_LE(done, 5);
}

}  // namespace
}  // namespace pgf::net
