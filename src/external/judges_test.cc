#include "external/judges.h"

#include <gmock/gmock.h>

#include <atomic>
#include <future>
#include <latch>

namespace pgf::external {
namespace {

auth::ExternalRequest request(std::string user) {
  auth::ExternalRequest r;
  r.user = std::move(user);
  r.password = "secret";
  return r;
}

TEST(Judges, AnswersAreThoseOfTheQuestions) {
  Judges judges(3, 100, [](const auto& r) { return r.password == "secret" ? "no " + r.user : "?"; });
  std::vector<std::promise<std::string>> answers(50);
  for (std::size_t i = 0; i < answers.size(); ++i)
    ASSERT_TRUE(judges.start(request(std::to_string(i)), [&, i](std::string s) { answers[i].set_value(s); }));
  for (std::size_t i = 0; i < answers.size(); ++i) EXPECT_EQ(answers[i].get_future().get(), "no " + std::to_string(i));
}

TEST(Judges, AsManyAtOnceAsThereAreThreads) {
  std::latch both(2);
  Judges judges(2, 100, [&](const auto&) {
    both.arrive_and_wait();  // comes to an end only if two run at once
    return std::string();
  });
  std::promise<void> first, second;
  ASSERT_TRUE(judges.start(request("a"), [&](std::string) { first.set_value(); }));
  ASSERT_TRUE(judges.start(request("b"), [&](std::string) { second.set_value(); }));
  first.get_future().get();
  second.get_future().get();
}

TEST(Judges, TheQueueHasAnEnd) {
  std::promise<void> go;
  std::shared_future<void> gone = go.get_future().share();
  std::promise<void> begun;
  std::atomic<int> done = 0;
  Judges judges(1, 2, [&, first = std::make_shared<std::atomic<bool>>(true)](const auto&) {
    if (first->exchange(false)) begun.set_value();
    gone.wait();
    return std::string();
  });
  auto count = [&](std::string) { ++done; };
  ASSERT_TRUE(judges.start(request("running"), count));
  begun.get_future().get();
  EXPECT_TRUE(judges.start(request("waiting"), count));
  EXPECT_TRUE(judges.start(request("waiting"), count));
  EXPECT_FALSE(judges.start(request("too many"), count));
  go.set_value();
  std::promise<void> last;
  while (!judges.start(request("last"), [&](std::string) { last.set_value(); })) {
  }
  last.get_future().get();
  EXPECT_EQ(done, 3);
}

TEST(Judges, EndDoesNotWaitForAVerdict) {
  struct Shared {
    std::promise<void> begun, go;
    std::atomic<bool> told = false;
    std::promise<void> ended;
  };
  auto shared = std::make_shared<Shared>();
  {
    Judges judges(1, 10, [shared](const auto&) {
      shared->begun.set_value();
      shared->go.get_future().get();
      shared->ended.set_value();
      return std::string();
    });
    ASSERT_TRUE(judges.start(request("slow"), [shared](std::string) { shared->told = true; }));
    shared->begun.get_future().get();
  }
  shared->go.set_value();
  shared->ended.get_future().get();
  EXPECT_FALSE(shared->told);
}

}  // namespace
}  // namespace pgf::external
