// sim_test: many seeds, some milliseconds each.
//
//   sim_test                        as scripts/test runs it: SIM_SEEDS seeds from SIM_FIRST on, SIM_SECONDS at most
//   sim_test --seed N [--trace]     one seed, with all that happens in it
//   sim_test --seeds N [--first N]  so many seeds; the failing ones are named
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <mutex>
#include <thread>
#include <vector>

#include "world.h"

// All randomness of the program comes from the C library's generator, whose place this takes in here: cancel keys and
// the order of hosts must be the same in each run of a seed.
static thread_local pgf::sim::Random* for_the_program = nullptr;
extern "C" void arc4random_buf(void* to, std::size_t size) noexcept {
  static thread_local pgf::sim::Random before(1);
  pgf::sim::Random& random = for_the_program ? *for_the_program : before;
  for (auto* bytes = static_cast<unsigned char*>(to); size > 0; --size)
    *bytes++ = static_cast<unsigned char>(random.next());
}

namespace pgf::sim {
namespace {

Result run_seed(std::uint64_t seed, std::FILE* out = nullptr, const Special& special = {}) {
  Random secrets(~seed);
  for_the_program = &secrets;
  Trace trace(out);
  Result result = World(seed, trace, special).run();
  for_the_program = nullptr;
  return result;
}

double seconds_on(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) / 1e9;
}

struct Sum {
  std::size_t seeds = 0, failed = 0;
  Result all;
  void add(std::uint64_t seed, const Result& r) {
    ++seeds;
    all.steps += r.steps;
    all.statements += r.statements;
    all.answers += r.answers;
    all.refused += r.refused;
    all.clients += r.clients;
    all.cancels_hit += r.cancels_hit;
    all.moved_servers += r.moved_servers;
    all.moved_clients += r.moved_clients;
    all.cancels_passed_on += r.cancels_passed_on;
    all.faults += r.faults;
    all.time += r.time;
    if (r.violation.empty()) return;
    ++failed;
    fmt::print("seed {}: {}\n", seed, r.violation);
    std::fflush(stdout);
  }
  void print() const {
    fmt::print(
        "{} seeds, {} failed: {} steps, {} clients, {} statements, {} answers, {} refused, {} cancels that hit, {} "
        "passed on to peers, {} "
        "servers "
        "and {} clients moved, {} faults, {} s of simulated time, {:.1f} s of CPU time\n",
        seeds, failed, all.steps, all.clients, all.statements, all.answers, all.refused, all.cancels_hit,
        all.cancels_passed_on, all.moved_servers, all.moved_clients, all.faults, all.time / kSecond,
        seconds_on(CLOCK_PROCESS_CPUTIME_ID));
  }
};

std::uint64_t from_env(const char* name, std::uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value ? std::strtoull(value, nullptr, 10) : otherwise;
}

// Corners where something was found: what these runs have in common makes it likely again, whatever else changes.
void expect_no_violation(const Special& special, std::uint64_t seeds) {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed)
    EXPECT_EQ("", run_seed(seed, nullptr, special).violation) << "seed " << seed;
}

TEST(Simulator, OneSeedIsOneStory) {
  for (std::uint64_t seed : {1, 2, 3, 4, 5, 6, 7, 8}) {
    const Result first = run_seed(seed), again = run_seed(seed);
    EXPECT_EQ(first.hash, again.hash) << "seed " << seed;
    EXPECT_EQ(first.steps, again.steps) << "seed " << seed;
  }
}

TEST(Simulator, PoolsThatShareOnePlaceTakeTurns) {
  Special special{.workers = 2, .calm = true, .two_databases = true, .one_user = true, .mode = "transaction"};
  special.ini = "max_user_connections = 1\nmin_pool_size = 0\n";
  expect_no_violation(special, 60);
}

TEST(Simulator, OneCheckIsForOneClient) {
  Special special{.workers = 1, .calm = true, .mode = "transaction"};
  special.ini = "server_check_delay = 0\ndefault_pool_size = 3\n";
  expect_no_violation(special, 60);
}

TEST(Simulator, AServersLastWordIsTheClients) {
  Special special{.faults = true};
  special.ini = "query_timeout = 1\nidle_transaction_timeout = 1\ntransaction_timeout = 2\n";
  expect_no_violation(special, 100);
}

TEST(Simulator, PipelinesAfterAnError) { expect_no_violation({.calm = true, .mode = "transaction"}, 100); }

// 10,000 of them, or as many as the time allows; each core plays its own.
TEST(Simulator, ManySeeds) {
  const std::uint64_t first = from_env("SIM_FIRST", 1000), end = first + from_env("SIM_SEEDS", 10'000);
  const auto seconds = static_cast<double>(from_env("SIM_SECONDS", 120));
  const double since = seconds_on(CLOCK_MONOTONIC);
  std::atomic<std::uint64_t> next = first;
  std::mutex one_at_a_time;
  Sum sum;
  auto play_on = [&] {
    for (std::uint64_t seed; seconds_on(CLOCK_MONOTONIC) - since < seconds && (seed = next.fetch_add(1)) < end;) {
      const Result result = run_seed(seed);
      std::lock_guard lock(one_at_a_time);
      sum.add(seed, result);
      if (sum.failed == 10) next = end;
    }
  };
  std::vector<std::jthread> others;
  for (unsigned i = 1; i < std::min(std::thread::hardware_concurrency(), 8u); ++i) others.emplace_back(play_on);
  play_on();
  others.clear();
  sum.print();
  EXPECT_EQ(0u, sum.failed) << "sim_test --seed N --trace tells what happened";
  EXPECT_GT(sum.all.moved_servers + sum.all.moved_clients, 0u);
  EXPECT_GT(sum.all.cancels_hit, 0u);
  EXPECT_GT(sum.all.cancels_passed_on, 0u);
}

int play(std::uint64_t first, std::uint64_t count, bool trace) {
  Sum sum;
  for (std::uint64_t seed = first; seed < first + count; ++seed)
    sum.add(seed, run_seed(seed, trace ? stdout : nullptr));
  sum.print();
  return sum.failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace pgf::sim

int main(int argc, char** argv) {
  std::uint64_t first = 1, count = 0;
  bool trace = false;
  for (int i = 1; i < argc; ++i) {
    auto value = [&] { return i + 1 < argc ? std::strtoull(argv[++i], nullptr, 10) : 0; };
    if (!std::strcmp(argv[i], "--seed")) {
      first = value();
      count = 1;
    } else if (!std::strcmp(argv[i], "--seeds")) {
      count = value();
    } else if (!std::strcmp(argv[i], "--first")) {
      first = value();
    } else if (!std::strcmp(argv[i], "--trace")) {
      trace = true;
    }
  }
  if (count > 0) return pgf::sim::play(first, count, trace);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
