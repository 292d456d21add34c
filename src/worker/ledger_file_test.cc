#include "worker/ledger_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

namespace pgf::worker {
namespace {

// Two open files of one process are two members: locks are the open file's.
class LedgerFiles : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/pgf-ledger-XXXXXX";
    folder = ::mkdtemp(name);
    path = folder + "/fleet";
    log.open({.file = folder + "/log", .to_stderr = false});
  }
  void TearDown() override { std::filesystem::remove_all(folder); }

  std::unique_ptr<LedgerFile> join() {
    auto file = LedgerFile::open(path);
    EXPECT_TRUE(file) << file.error();
    return file ? *std::move(file) : nullptr;
  }
  std::string refusal() {
    auto file = LedgerFile::open(path);
    EXPECT_FALSE(file);
    return file ? "" : file.error().substr(file.error().find(": ") + 2);
  }
  void write(std::string_view bytes) {
    std::filesystem::remove(path);
    std::ofstream(path) << bytes;
    ::chmod(path.c_str(), 0600);
  }
  // A process that does this and is killed at once.
  template <class F>
  void killed(F what) {
    const pid_t child = ::fork();
    if (child == 0) {
      what();
      ::kill(::getpid(), SIGKILL);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
  }

  std::string folder, path;
  Log log;
};

constexpr Usec kLater = 5 * kSecond;

TEST_F(LedgerFiles, NobodyElseMayReadIt) {
  auto a = join();
  struct stat st {};
  ASSERT_EQ(::stat(path.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
  EXPECT_EQ(st.st_size, static_cast<off_t>(sizeof(pool::ledger::Table)));
}

TEST_F(LedgerFiles, MembersSeeEachOther) {
  auto a = join(), b = join();
  pool::Stake one(a->ledger(), "x"), two(b->ledger(), "x");
  EXPECT_TRUE(one.take(1, true, 1));
  EXPECT_FALSE(two.take(1, true, 1));
  EXPECT_EQ(b->ledger().members, 2);
  EXPECT_EQ(a->ledger().members, 1);
  a->count_members();
  EXPECT_EQ(a->ledger().members, 2);
  EXPECT_EQ(a->ledger().others, b->ledger().bit());
}

TEST_F(LedgerFiles, TheDeadAreMournedThenForgotten) {
  auto a = join();
  killed([&] {
    auto own = join();
    pool::Stake stake(own->ledger(), "x");
    for (int i = 0; i < 3; ++i) stake.take(3, true, 1);
    own.release();
  });
  pool::Stake stake(a->ledger(), "x");
  EXPECT_FALSE(stake.take(3, true, 1));
  a->look_around(kSecond, log);
  a->count_members();
  EXPECT_EQ(a->ledger().members, 1) << "it takes no part any more";
  EXPECT_FALSE(stake.take(3, true, 1)) << "but its connections may not have ended yet";
  a->look_around(kSecond + kLater, log);
  EXPECT_EQ(stake.total(), 0);
  EXPECT_TRUE(stake.take(3, true, 1));
}

TEST_F(LedgerFiles, OneOfManyForgetsTheDead) {
  auto a = join(), b = join();
  killed([&] {
    auto own = join();
    pool::Stake(own->ledger(), "x").take(0, true, 1);
    own.release();
  });
  for (auto* file : {a.get(), b.get()}) file->look_around(kSecond, log);
  for (auto* file : {a.get(), b.get()}) file->look_around(kSecond + kLater, log);
  EXPECT_EQ(pool::Stake(a->ledger(), "x").total(), 0);
  auto c = join();
  EXPECT_EQ(c->ledger().me(), 2) << "its seat is free";
}

TEST_F(LedgerFiles, TheFirstOneBeginsAnew) {
  killed([&] {
    auto own = join();
    pool::Stake(own->ledger(), "x").take(0, true, 1);
    own.release();
  });
  auto a = join();
  EXPECT_EQ(pool::Stake(a->ledger(), "x").total(), 0);
  EXPECT_EQ(a->ledger().members, 1);
}

TEST_F(LedgerFiles, WhatADeathWhileMakingItLeaves) {
  for (std::size_t size : {std::size_t{0}, std::size_t{16}, std::size_t{17}, sizeof(pool::ledger::Table) - 1}) {
    std::string bytes(pool::ledger::kMagic);
    bytes.resize(size);
    write(bytes);
    EXPECT_TRUE(join()) << size;
  }
}

TEST_F(LedgerFiles, ForeignFilesAreLeftAlone) {
  for (const std::string& bytes :
       {std::string("x"), std::string("a letter"), std::string(sizeof(pool::ledger::Table), 0)}) {
    write(bytes);
    EXPECT_EQ(refusal(), "is something else than a fleet file: it is left as it is");
    EXPECT_EQ(std::filesystem::file_size(path), bytes.size());
  }
  ::chmod(path.c_str(), 0640);
  EXPECT_EQ(refusal(), "is open to others (mode 0640): it must be 0600");
  std::filesystem::remove(path);
  std::filesystem::create_symlink(folder + "/there", path);
  EXPECT_EQ(refusal(), "cannot be opened: Too many levels of symbolic links");
  std::filesystem::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(refusal(), "is not a regular file");
}

TEST_F(LedgerFiles, SomebodyElses) {
  write("");
  if (::geteuid() != 0 || ::chown(path.c_str(), 12345, 12345) != 0) GTEST_SKIP() << "needs root";
  EXPECT_EQ(refusal(), "belongs to another user");
}

TEST_F(LedgerFiles, InUseAndNotFit) {
  auto a = join();
  a->ledger().table().version = 99;
  EXPECT_EQ(refusal(), "is in use by another version of pgflotilla");
  a->ledger().table().version = pool::ledger::kVersion;
  const auto size = static_cast<off_t>(sizeof(pool::ledger::Table));
  ASSERT_EQ(::truncate(path.c_str(), size + 1), 0);
  EXPECT_EQ(refusal(), "has the wrong size, and others use it: end them all first");
  ASSERT_EQ(::truncate(path.c_str(), 0), 0);
  EXPECT_EQ(refusal(), "was emptied while others use it: end them all first");
}

TEST_F(LedgerFiles, AnotherVersionsFileThatNobodyUses) {
  join()->ledger().table().version = 99;
  EXPECT_TRUE(join());
}

TEST_F(LedgerFiles, SeatsAreLimited) {
  std::vector<std::unique_ptr<LedgerFile>> all;
  for (int i = 0; i < pool::ledger::kMembers; ++i) all.push_back(join());
  EXPECT_EQ(refusal(), "32 processes use it already");
  pool::Stake(all[5]->ledger(), "x").take(0, true, 1);
  all[5].reset();
  all[5] = join();
  EXPECT_EQ(all[5]->ledger().me(), 5) << "there is no other";
  EXPECT_EQ(pool::Stake(all[0]->ledger(), "x").total(), 0) << "what the last one had there is not ours";
}

TEST_F(LedgerFiles, TheSuccessorHasThePlacesOfTheOldProcess) {
  auto third = join(), old = join(), next = join();
  pool::Stake before(old->ledger(), "x"), mine(next->ledger(), "x");
  for (int i = 0; i < 3; ++i) before.take(3, true, 1);
  const int seat = old->ledger().me();
  third->ledger().table().seats[0].pid = 1;
  old.reset();
  next->succeed(::getpid());
  EXPECT_EQ(next->ledger().predecessor, seat);
  EXPECT_EQ(next->ledger().members, 2);
  mine.take(0, true, 1);
  mine.inherited();
  EXPECT_EQ(mine.total(), 3);
  for (Usec now : {kSecond, kSecond + kLater}) third->look_around(now, log);
  EXPECT_EQ(mine.total(), 3) << "nobody else's business";
  for (Usec now : {kSecond, kSecond + kLater}) next->look_around(now, log);
  EXPECT_EQ(mine.total(), 1);
}

TEST_F(LedgerFiles, ABellWakes) {
  auto a = join(), b = join();
  const std::uint32_t heard = a->bell();
  std::thread ringer([&] { b->ring(a->ledger().bit()); });
  while (a->bell() == heard) a->sleep(heard, 3600 * kSecond);
  ringer.join();
}

TEST_F(LedgerFiles, ReplacedOrGone) {
  auto a = join();
  EXPECT_FALSE(a->replaced());
  std::filesystem::remove(path);
  EXPECT_TRUE(a->replaced());
  auto b = join();
  EXPECT_TRUE(a->replaced());
  EXPECT_FALSE(b->replaced());
}

TEST_F(LedgerFiles, CutShort) {
  auto a = join(), b = join();
  a->survive_its_loss();
  pool::Stake stake(a->ledger(), "x");
  a->count_members();
  EXPECT_TRUE(stake.take(4, true, 1));
  ASSERT_EQ(::truncate(path.c_str(), 0), 0);
  EXPECT_TRUE(stake.take(4, true, 2));
  EXPECT_TRUE(a->ledger().lost);
  EXPECT_FALSE(stake.take(4, true, 3)) << "half of four";
  a->look_around(kSecond, log);
  a->count_members();
  EXPECT_EQ(a->ledger().members, 2);
  ::signal(SIGBUS, SIG_DFL);
}

}  // namespace
}  // namespace pgf::worker
