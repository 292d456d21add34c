#include "base/cgroup.h"

#include <gtest/gtest.h>

#include <map>

namespace pgf {
namespace {

double cores(const std::map<std::string, std::string>& files) {
  int reads = 0;
  return cgroup_cores([&](const std::string& path) -> std::optional<std::string> {
    EXPECT_LT(++reads, 100);
    if (reads > 100) std::abort();
    auto it = files.find(path);
    return it == files.end() ? std::nullopt : std::optional(it->second);
  });
}

TEST(Cgroup, LeastOfAllGroupsAbove) {
  EXPECT_EQ(cores({{"/proc/self/cgroup", "0::/a/b\n"},
                   {"/sys/fs/cgroup/a/b/cpu.max", "max 100000\n"},
                   {"/sys/fs/cgroup/a/cpu.max", "150000 100000\n"},
                   {"/sys/fs/cgroup/cpu.max", "400000 100000\n"}}),
            1.5);
  EXPECT_EQ(cores({{"/proc/self/cgroup", "0::/\n"}, {"/sys/fs/cgroup/cpu.max", "50000 100000\n"}}), 0.5);
}

TEST(Cgroup, OnlyTheHierarchyOfVersion2) {
  EXPECT_EQ(cores({{"/proc/self/cgroup", "10::/a\n1:name=systemd:/b\n0::/c\n"},
                   {"/sys/fs/cgroup/a/cpu.max", "1 1"},
                   {"/sys/fs/cgroup/c/cpu.max", "3 1"}}),
            3);
  EXPECT_EQ(cores({{"/proc/self/cgroup", "4:cpu:/x\n"}, {"/sys/fs/cgroup/x/cpu.max", "1 1"}}), 0);
}

TEST(Cgroup, NothingUseful) {
  EXPECT_EQ(cores({}), 0);
  EXPECT_EQ(cores({{"/proc/self/cgroup", ""}}), 0);
  EXPECT_EQ(cores({{"/proc/self/cgroup", "0::/a"}}), 0);
  for (const char* text :
       {"", "max", "max 100000", "nonsense", "1", "0 100000", "-5 100000", "5 0", "inf 1", "1e308 1e-300"})
    EXPECT_EQ(cores({{"/proc/self/cgroup", "0::/a"}, {"/sys/fs/cgroup/a/cpu.max", text}}), 0) << text;
}

// Such a path never came to its end.
TEST(Cgroup, PathWithoutSlash) {
  EXPECT_EQ(cores({{"/proc/self/cgroup", "0::a"}}), 0);
  EXPECT_EQ(cores({{"/proc/self/cgroup", "0::"}}), 0);
}

}  // namespace
}  // namespace pgf
