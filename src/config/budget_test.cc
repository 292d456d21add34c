#include "config/budget.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "config/test_files.h"

namespace pgf::config {
namespace {

std::shared_ptr<const Config> config_of(const std::string& text) {
  LoadResult result = load_text(text);
  EXPECT_TRUE(result.config) << (result.errors.empty() ? "" : result.errors[0]);
  return result.config;
}

std::string error_of(const std::string& text) {
  LoadResult result = load_text(text);
  EXPECT_EQ(result.config == nullptr, !result.errors.empty());
  return result.errors.empty() ? "" : result.errors.back();
}

TEST(Budget, TheSumOfAllPartsIsTheWholeAndNoPartIsNothing) {
  for (int n = 1; n <= 9; ++n)
    for (int whole = n; whole < 40; ++whole) {
      int sum = 0;
      for (int id = 1; id <= n; ++id) {
        auto c = config_of(
            fmt::format("[pgbouncer]\nbudget=fleet\nfleet_size={}\npeer_id={}\ndefault_pool_size={}\n", n, id, whole));
        const int part = resolve(*c, {}, "u").pool_size;
        EXPECT_GE(part, 1);
        sum += part;
      }
      EXPECT_EQ(sum, whole) << n;
    }
}

TEST(Budget, WithoutNumbersWhatIsLeftOverIsNobodys) {
  const std::string fleet = "[pgbouncer]\nbudget=fleet\nfleet_size=3\ndefault_pool_size=11\n";
  for (const char* more : {"", "peer_id=4\n", "peer_id=1\n[peers]\n* = host=x\n"})
    EXPECT_EQ(resolve(*config_of(fleet + more), {}, "u").pool_size, 3) << more;
  EXPECT_EQ(resolve(*config_of(fleet + "peer_id=2\n"), {}, "u").pool_size, 4);
}

TEST(Budget, EveryLimitIsDivided) {
  auto c = config_of(
      "[pgbouncer]\nbudget=fleet\nfleet_size=2\nmax_client_conn=101\nmax_db_client_connections=10\nmin_pool_size=4\n"
      "reserve_pool_size=3\n[databases]\nd = pool_size=8 max_db_connections=20\n"
      "[users]\nu = max_user_connections=6 max_user_client_connections=12\n");
  const PoolPolicy p = resolve(*c, c->databases.at("d"), "u");
  EXPECT_EQ(p.pool_size, 4);
  EXPECT_EQ(p.min_pool_size, 2);
  EXPECT_EQ(p.reserve_pool_size, 1);
  EXPECT_EQ(p.max_db_connections, 10);
  EXPECT_EQ(p.max_user_connections, 3);
  const ClientPolicy cp = resolve_client(*c, c->databases.at("d"), "u");
  EXPECT_EQ(cp.max_db_client_connections, 5);
  EXPECT_EQ(cp.max_user_client_connections, 6);
  EXPECT_EQ(max_client_conn(*c), 50);
}

TEST(Budget, NoLimitStaysNone) {
  auto c = config_of("[pgbouncer]\nbudget=fleet\nfleet_size=50\ndefault_pool_size=0\n");
  EXPECT_EQ(resolve(*c, {}, "u").pool_size, 0);
  EXPECT_EQ(resolve(*c, {}, "u").max_db_connections, 0);
}

TEST(Budget, OnlyWithBudgetFleetAndWithoutAFile) {
  EXPECT_EQ(resolve(*config_of("[pgbouncer]\nfleet_size=4\n"), {}, "u").pool_size, 20);
  EXPECT_EQ(resolve(*config_of("[pgbouncer]\nbudget=fleet\nfleet_file=/x\n"), {}, "u").pool_size, 20);
  EXPECT_EQ(config_of("[pgbouncer]\nfleet_size=4\n")->warnings.size(), 1u);
}

TEST(Budget, WhatCannotBeIsRefused) {
  const std::string fleet = "[pgbouncer]\nbudget=fleet\n";
  EXPECT_EQ(error_of(fleet), "budget = fleet needs fleet_file (processes of one machine) or fleet_size (of several)");
  EXPECT_EQ(error_of(fleet + "fleet_file=/x\nfleet_size=2\n"),
            "budget = fleet: either fleet_file (one machine) or fleet_size (several), not both");
  EXPECT_EQ(error_of(fleet + "fleet_size=21\n"),
            "budget = fleet: default_pool_size = 20 cannot be divided among fleet_size = 21 processes");
  EXPECT_EQ(error_of(fleet + "fleet_size=2\nreserve_pool_size=1\n"),
            "budget = fleet: reserve_pool_size = 1 cannot be divided among fleet_size = 2 processes");
  EXPECT_EQ(error_of(fleet + "fleet_size=5\n[databases]\nd = pool_size=4\n"),
            "budget = fleet: [databases] d: pool_size = 4 cannot be divided among fleet_size = 5 processes");
  EXPECT_EQ(error_of(fleet + "fleet_size=5\n[users]\nu = max_user_connections=4\n"),
            "budget = fleet: [users] u: max_user_connections = 4 cannot be divided among fleet_size = 5 processes");
}

}  // namespace
}  // namespace pgf::config
