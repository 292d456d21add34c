#include "net/resolver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <future>
#include <memory>

#include "net/dns_server_test_kit.h"

namespace pgf::net {
namespace {

using test::DnsServer;
using test::Question;
using test::reply;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

struct Answer {
  std::vector<std::string> addresses;
  std::string error;
};

std::vector<std::string> texts(const std::vector<Address>& addresses) {
  std::vector<std::string> result;
  for (const Address& a : addresses) result.push_back(format_host(a));
  return result;
}

std::future<Answer> ask(Resolver& r, const std::string& host) {
  auto promise = std::make_shared<std::promise<Answer>>();
  r.start(host, [promise](const std::vector<Address>& a, const std::string& e) { promise->set_value({texts(a), e}); });
  return promise->get_future();
}

bool ready(std::future<Answer>& f) { return f.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }

template <class F>
void wait_until(F condition) {
  for (int i = 0; i < 6000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ASSERT_TRUE(condition());
}

// A folder with a resolv.conf for that port and a hosts file of its own.
struct Files {
  explicit Files(int port, const std::string& more = "") {
    char path[] = "/tmp/pgf-dns-XXXXXX";
    dir = mkdtemp(path);
    resolv_conf = dir + "/resolv.conf";
    hosts = dir + "/hosts";
    write(resolv_conf, "nameserver 127.0.0.1:" + std::to_string(port) + "\n" + more);
    write(hosts, "127.0.0.9 filed\n");
    setenv("CARES_HOSTS", hosts.c_str(), 1);  // no thread of a resolver runs yet
  }
  ~Files() {
    unlink(resolv_conf.c_str());
    unlink(hosts.c_str());
    rmdir(dir.c_str());
  }
  static void write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }
  std::string dir, resolv_conf, hosts;
};

// A records as the map says, NXDOMAIN for all else.
struct Zone {
  std::map<std::string, std::vector<test::Record>> records;
  std::optional<std::string> operator()(const Question& q) const {
    auto it = records.find(q.name);
    if (it == records.end()) return reply(q, {}, test::kNxdomain);
    std::vector<test::Record> fitting;
    for (const auto& r : it->second)
      if (r.type == q.type || r.type == test::kCname || r.name != q.name) fitting.push_back(r);
    return reply(q, fitting);
  }
};

Zone one(const std::string& name, const std::string& ip, std::uint32_t ttl = 60) {
  return {{{name, {test::address(name, ip, ttl)}}}};
}

Usec ttl_left(Resolver& r, const std::string& name) {
  for (const auto& host : r.state().hosts)
    if (host.name == name) return host.ttl_left;
  return -1;
}

TEST(ResolvConf, Options) {
  auto c = read_resolv_conf("search x\nnameserver 10.0.0.1\noptions ndots:2 timeout:1 attempts:2\nnameserver ::1\n");
  EXPECT_EQ(c.servers, "");
  EXPECT_EQ(c.timeout_ms, 1000);
  EXPECT_EQ(c.tries, 2);
  c = read_resolv_conf("nameserver 10.0.0.1\n nameserver [::1]:5353\noptions timeout:99999999 attempts:0\n");
  EXPECT_EQ(c.servers, "10.0.0.1,[::1]:5353");
  EXPECT_EQ(c.timeout_ms, 30'000);
  EXPECT_EQ(c.tries, 3);
  c = read_resolv_conf("options retrans:250 retry:4 timeout:x\nnameserver\n");
  EXPECT_EQ(c.timeout_ms, 250);
  EXPECT_EQ(c.tries, 4);
}

TEST(Resolver, LiteralsAreNotAsked) {
  DnsServer server(one("10.1.2.3", "127.0.0.1"));
  Files files(server.port);
  Resolver r({.times = {}, .resolv_conf = files.resolv_conf, .log = nullptr, .moved = {}});
  auto four = ask(r, "10.1.2.3"), six = ask(r, "::1");
  ASSERT_TRUE(ready(four) && ready(six));
  EXPECT_THAT(four.get().addresses, ElementsAre("10.1.2.3"));
  EXPECT_THAT(six.get().addresses, ElementsAre("::1"));
  EXPECT_TRUE(r.state().hosts.empty());
  EXPECT_EQ(server.a_questions, 0);
}

struct Resolving : ::testing::Test {
  DnsServer server{Zone{}};
  Files files{server.port, "options retrans:100 retry:1\n"};
  std::atomic<int> moves = 0;
  std::promise<std::vector<std::string>> moved_to;

  ResolverOptions options(ResolverTimes times = {}) {
    return {times, files.resolv_conf, nullptr, [this](const std::string&, const std::vector<Address>& a) {
              if (++moves == 1) moved_to.set_value(texts(a));
            }};
  }
};

TEST_F(Resolving, HostsFileIsReadAgain) {
  Resolver r(options({.max_ttl = 20 * kSecond}));
  EXPECT_THAT(ask(r, "filed").get().addresses, ElementsAre("127.0.0.9"));
  EXPECT_GT(ttl_left(r, "filed"), 15 * kSecond);  // no record's time: dns_max_ttl
  EXPECT_EQ(server.a_questions, 0);
  EXPECT_FALSE(ask(r, "localhost").get().addresses.empty());

  r.configure({.max_ttl = 0, .nxdomain_ttl = 0});
  EXPECT_NE(ask(r, "filed2").get().error, "");
  Files::write(files.hosts, "127.0.0.10 filed2\n");
  EXPECT_THAT(ask(r, "filed2").get().addresses, ElementsAre("127.0.0.10"));
}

TEST_F(Resolving, BothFamiliesAreUsedInTurn) {
  server.change(Zone{{{"db.z",
                       {test::address("db.z", "127.0.0.2"), test::address("db.z", "::1"),
                        test::address("db.z", "127.0.0.1"), test::address("db.z", "127.0.0.1")}}}});
  Resolver r(options());
  std::vector<std::string> firsts;
  for (int i = 0; i < 4; ++i) {
    Answer a = ask(r, "db.z").get();
    ASSERT_EQ(a.error, "");
    firsts.push_back(a.addresses.at(0));
    EXPECT_GE(a.addresses.size(), 2u);
  }
  EXPECT_EQ(server.a_questions, 1);
  EXPECT_EQ(firsts[0], "127.0.0.1");
  EXPECT_EQ(firsts[1], "127.0.0.2");
  EXPECT_EQ(r.state().hosts.at(0).addresses.size(), 3u);
}

TEST_F(Resolving, OnlyIpv6) {
  server.change(one("six.z", "::1"));
  Resolver r(options());
  EXPECT_THAT(ask(r, "six.z").get().addresses, ElementsAre("::1"));
}

TEST_F(Resolving, RecordsTimeIsBoundedByMaxTtl) {
  server.change(Zone{{{"short.z", {test::address("short.z", "127.0.0.1", 3)}},
                      {"long.z", {test::address("long.z", "127.0.0.1", 2147483647)}},
                      {"wrapped.z", {test::address("wrapped.z", "127.0.0.1", 0x80000001)}},
                      {"zero.z", {test::address("zero.z", "127.0.0.1", 0)}},
                      {"alias.z", {test::cname("alias.z", "long.z", 2), test::address("long.z", "127.0.0.1", 50)}}}});
  Resolver r(options({.max_ttl = 1000 * kSecond}));
  for (const char* name : {"short.z", "long.z", "wrapped.z", "zero.z", "alias.z"})
    EXPECT_THAT(ask(r, name).get().addresses, ElementsAre("127.0.0.1")) << name;
  EXPECT_LE(ttl_left(r, "short.z"), 3 * kSecond);
  EXPECT_GT(ttl_left(r, "long.z"), 900 * kSecond);
  EXPECT_LE(ttl_left(r, "long.z"), 1000 * kSecond);
  EXPECT_EQ(ttl_left(r, "wrapped.z"), 0);
  EXPECT_EQ(ttl_left(r, "zero.z"), 0);
  EXPECT_LE(ttl_left(r, "alias.z"), 2 * kSecond);
  int asked = server.a_questions;
  ask(r, "zero.z").get();
  EXPECT_EQ(server.a_questions, asked + 1);
  ask(r, "long.z").get();
  EXPECT_EQ(server.a_questions, asked + 1);
}

TEST_F(Resolving, FailuresAreRememberedForTheirOwnTime) {
  Resolver r(options({.nxdomain_ttl = 1000 * kSecond}));
  EXPECT_THAT(ask(r, "none.z").get().error, HasSubstr("result=4"));  // ARES_ENOTFOUND
  int asked = server.a_questions;
  EXPECT_GE(asked, 1);
  EXPECT_THAT(ask(r, "none.z").get().error, HasSubstr("result=4"));
  EXPECT_EQ(server.a_questions, asked);
  EXPECT_GT(ttl_left(r, "none.z"), 900 * kSecond);
  r.configure({.nxdomain_ttl = 0});
  ask(r, "none2.z").get();
  server.change(one("none2.z", "127.0.0.1"));
  EXPECT_EQ(ask(r, "none2.z").get().error, "");
}

TEST_F(Resolving, BadAnswers) {
  Resolver r(options({.nxdomain_ttl = 0}));
  server.change([](const Question& q) { return reply(q, {}, test::kServfail); });
  EXPECT_NE(ask(r, "bad.z").get().error, "");
  server.change([](const Question& q) { return reply(q, {}); });  // no data
  EXPECT_NE(ask(r, "bad.z").get().error, "");
  server.change([](const Question&) { return std::nullopt; });
  EXPECT_THAT(ask(r, "bad.z").get().error, HasSubstr("Timeout"));
  server.change([](const Question& q) {  // to another question
    return reply({"other.z", q.type, q.tcp, q.bytes}, {test::address("other.z", "127.0.0.1")});
  });
  EXPECT_NE(ask(r, "bad.z").get().error, "");
  server.change([](const Question& q) {  // with another id
    std::string out = reply(q, {test::address(q.name, "127.0.0.1")});
    out[0] = static_cast<char>(out[0] ^ 1);
    return out;
  });
  EXPECT_NE(ask(r, "bad.z").get().error, "");
  EXPECT_NE(ask(r, std::string(70, 'x') + ".z").get().error, "");  // no question can be made of it
  EXPECT_NE(ask(r, "..").get().error, "");
  server.change(one("bad.z", "127.0.0.1"));
  EXPECT_EQ(ask(r, "bad.z").get().error, "");
}

TEST_F(Resolving, Garbage) {
  Resolver r(options({.max_ttl = 0, .nxdomain_ttl = 0}));
  unsigned state = 1;
  server.change([&state](const Question& q) {
    // Whole answers with bytes changed behind the id, or cut short.
    std::string out = reply(q, {test::cname(q.name, "b.z"), test::address("b.z", "127.0.0.1"), test::soa("z", 1)});
    auto next = [&state] { return (state = state * 1664525u + 1013904223u) >> 8; };
    for (int i = 0; i < 3; ++i) out[2 + next() % (out.size() - 2)] = static_cast<char>(next());
    if (next() % 3 == 0) out.resize(2 + next() % (out.size() - 2));
    return std::optional(out);
  });
  std::vector<std::future<Answer>> all;
  for (int i = 0; i < 300; ++i) all.push_back(ask(r, "g" + std::to_string(i) + ".z"));
  for (auto& f : all) {
    Answer a = f.get();
    EXPECT_EQ(a.addresses.empty(), !a.error.empty());
  }
}

TEST_F(Resolving, ManyAddressesComeByTcp) {
  server.change([](const Question& q) {
    std::vector<test::Record> records;
    for (int i = 1; i <= 60 && q.type == test::kA; ++i)
      records.push_back(test::address(q.name, "127.0.1." + std::to_string(i)));
    return q.tcp || q.type != test::kA ? reply(q, records) : reply(q, {}, 0, true);
  });
  Resolver r(options());
  EXPECT_EQ(ask(r, "many.z").get().addresses.size(), 60u);
  EXPECT_GE(server.tcp_questions, 1);
}

TEST_F(Resolving, CnameChains) {
  Zone zone;
  for (int i = 0; i < 8; ++i)
    zone.records["c.z"].push_back(
        test::cname(i ? "c" + std::to_string(i) + ".z" : "c.z", "c" + std::to_string(i + 1) + ".z"));
  zone.records["c.z"].push_back(test::address("c8.z", "127.0.0.1"));
  zone.records["loop.z"] = {test::cname("loop.z", "pool.z"), test::cname("pool.z", "loop.z")};
  server.change(zone);
  Resolver r(options());
  EXPECT_THAT(ask(r, "c.z").get().addresses, ElementsAre("127.0.0.1"));
  EXPECT_NE(ask(r, "loop.z").get().error, "");
}

TEST_F(Resolving, OneQuestionHoweverManyAsk) {
  std::promise<void> go;
  std::shared_future<void> gate = go.get_future().share();
  server.change([gate](const Question& q) {
    gate.wait();
    return one("db.z", "127.0.0.1")(q);
  });
  // Patient: nothing is asked again while the answer is held back.
  Files::write(files.resolv_conf, "nameserver 127.0.0.1:" + std::to_string(server.port) + "\noptions timeout:30\n");
  Resolver r(options());
  std::vector<std::thread> threads;
  std::atomic<int> answered = 0;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 250; ++i) r.start("db.z", [&](const auto& a, const auto&) { answered += a.size() == 1; });
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(answered, 0);
  EXPECT_EQ(r.state().queries, 1);
  go.set_value();
  wait_until([&] { return answered == 1000; });
  EXPECT_EQ(server.a_questions, 1);
  EXPECT_EQ(r.state().queries, 0);
}

TEST_F(Resolving, SilentNamesHoldUpNoOther) {
  server.change([](const Question& q) { return q.name == "fast.z" ? one("fast.z", "127.0.0.1")(q) : std::nullopt; });
  Files::write(files.resolv_conf, "nameserver 127.0.0.1:" + std::to_string(server.port) + "\noptions timeout:30\n");
  Resolver r(options());
  std::vector<std::future<Answer>> silent;
  for (int i = 0; i < 50; ++i) silent.push_back(ask(r, "s" + std::to_string(i) + ".z"));
  EXPECT_EQ(ask(r, "fast.z").get().error, "");
  for (auto& f : silent) EXPECT_FALSE(ready(f));
  EXPECT_EQ(r.state().queries, 50);
}  // and it ends at once, though they are under way

TEST_F(Resolving, MoreNamesThanQuestionsAtATime) {
  server.change([](const Question& q) { return reply(q, {test::address(q.name, "127.0.0.1")}); });
  Resolver r(options());
  std::atomic<int> answered = 0;
  for (int i = 0; i < 1500; ++i) r.start("n" + std::to_string(i) + ".z", [&](const auto&, const auto&) { ++answered; });
  wait_until([&] { return answered == 1500; });
  r.configure({.max_ttl = 0, .nxdomain_ttl = 0});
}

TEST_F(Resolving, MovedIsSaidOnce) {
  server.change(Zone{{{"db.z", {test::address("db.z", "127.0.0.2"), test::address("db.z", "127.0.0.1")}}}});
  Resolver r(options({.max_ttl = 0, .nxdomain_ttl = 0}));
  ask(r, "db.z").get();
  server.change(Zone{{{"db.z", {test::address("db.z", "127.0.0.1"), test::address("db.z", "127.0.0.2")}}}});
  ask(r, "db.z").get();
  server.change(Zone{});  // gone for a while: nothing is known about the addresses
  ask(r, "db.z").get();
  EXPECT_EQ(moves, 0);
  server.change(one("db.z", "127.0.0.3"));
  ask(r, "db.z").get();
  EXPECT_EQ(moves, 1);
  EXPECT_THAT(moved_to.get_future().get(), ElementsAre("127.0.0.3"));
  ask(r, "db.z").get();
  EXPECT_EQ(moves, 1);
}

TEST_F(Resolving, ZoneSerial) {
  std::atomic<std::uint32_t> serial = 0xfffffffe;
  std::atomic<int> host = 1;
  server.change([&](const Question& q) -> std::optional<std::string> {
    if (q.type == test::kSoa) return q.name == "z" ? reply(q, {test::soa("z", serial)}) : reply(q, {}, test::kNxdomain);
    return one(q.name, "127.0.0." + std::to_string(host))(q);
  });
  Resolver r(options({.max_ttl = 1000 * kSecond, .zone_check_period = 20 * kMillisecond}));
  for (const char* name : {"a.z", "b.z", "c.y", "plain", "filed", "dot."}) ask(r, name).get();
  auto zone = [&](std::size_t i) { return r.state().zones.at(i); };
  ASSERT_EQ(r.state().zones.size(), 2u);
  EXPECT_EQ(zone(0).name, "y");
  EXPECT_EQ(zone(0).hosts, 1);
  EXPECT_EQ(zone(1).name, "z");
  EXPECT_EQ(zone(1).hosts, 2);
  wait_until([&] { return zone(1).serial == 0xfffffffe && r.state().queries == 0; });
  int asked = server.a_questions, soas = server.soa_questions;
  wait_until([&] { return server.soa_questions > soas + 4; });
  EXPECT_EQ(server.a_questions, asked);  // the same serial
  serial = 0xfffffff0;                   // an older one: some secondary is behind
  soas = server.soa_questions;
  wait_until([&] { return server.soa_questions > soas + 4; });
  EXPECT_EQ(server.a_questions, asked);

  host = 2;
  serial = 3;  // newer, past the end of the numbers
  wait_until([&] { return moves == 2; });
  EXPECT_EQ(zone(1).serial, 3u);
  EXPECT_EQ(zone(0).serial, 0u);
  EXPECT_EQ(server.a_questions, asked + 2);
  EXPECT_THAT(ask(r, "b.z").get().addresses, ElementsAre("127.0.0.2"));
  EXPECT_THAT(ask(r, "c.y").get().addresses, ElementsAre("127.0.0.1"));

  r.configure({});  // off
  wait_until([&] { return r.state().queries == 0; });
  soas = server.soa_questions;
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(server.soa_questions, soas);
}

TEST_F(Resolving, ReopenReadsResolvConfAgain) {
  Resolver r(options({.nxdomain_ttl = 0}));
  EXPECT_NE(ask(r, "db.z").get().error, "");
  DnsServer other(one("db.z", "127.0.0.7"));
  Files::write(files.resolv_conf, "nameserver 127.0.0.1:" + std::to_string(other.port) + "\n");
  EXPECT_NE(ask(r, "db.z").get().error, "");
  r.reopen();
  EXPECT_THAT(ask(r, "db.z").get().addresses, ElementsAre("127.0.0.7"));
}

TEST_F(Resolving, AllAtOnceFromManyThreads) {
  server.change([](const Question& q) { return reply(q, {test::address(q.name, "127.0.0.1")}); });
  Resolver r(options({.max_ttl = 0, .nxdomain_ttl = 0, .zone_check_period = kMillisecond}));
  std::atomic<int> answered = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        r.start("n" + std::to_string(i % 7) + ".z" + std::to_string(i % 3),
                [&](const auto&, const auto&) { ++answered; });
        if (i % 50 == t) r.reopen();
        if (i % 20 == t) r.state();
        if (i % 30 == t) r.configure({.max_ttl = i * kMillisecond, .zone_check_period = kMillisecond});
      }
    });
  for (auto& t : threads) t.join();
  wait_until([&] { return answered == 800; });
}

}  // namespace
}  // namespace pgf::net
