#include "base/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

namespace pgf {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

class LogTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/pgf_log_test.XXXXXX";
    ASSERT_TRUE(mkdtemp(name));
    dir = name;
  }
  void TearDown() override { std::filesystem::remove_all(dir); }

  LogTarget target(std::string_view file = "log") {
    LogTarget t;
    t.file = dir / file;
    t.to_stderr = false;
    return t;
  }
  std::string text(std::string_view file = "log") {
    std::ostringstream all;
    all << std::ifstream(dir / file).rdbuf();
    return all.str();
  }
  std::vector<std::string> lines(std::string_view file = "log") {
    std::istringstream in(text(file));
    std::vector<std::string> all;
    for (std::string line; std::getline(in, line);) all.push_back(line);
    return all;
  }

  std::filesystem::path dir;
  Log log;
};

// behaviour.md: `YYYY-MM-DD HH:MM:SS.mmm TZ [PID] LEVEL MESSAGE`
TEST_F(LogTest, LineFormat) {
  ASSERT_EQ(log.open(target()), "");
  log(LogLevel::log, "C-{}: {}", 1, "hello");
  std::string pid = std::to_string(getpid());
  EXPECT_THAT(text(), MatchesRegex("[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{3} [A-Z0-9+-]+ \\[" +
                                   pid + "\\] LOG C-1: hello\n"));
}

TEST_F(LogTest, Levels) {
  LogTarget t = target();
  t.verbose = 2;
  ASSERT_EQ(log.open(t), "");
  for (LogLevel level :
       {LogLevel::fatal, LogLevel::error, LogLevel::warning, LogLevel::log, LogLevel::debug, LogLevel::noise})
    log(level, "x");
  auto all = lines();
  ASSERT_EQ(all.size(), 6u);
  const char* names[] = {"FATAL", "ERROR", "WARNING", "LOG", "DEBUG", "NOISE"};
  for (std::size_t i = 0; i < 6; ++i) EXPECT_THAT(all[i], HasSubstr("] " + std::string(names[i]) + " x"));
}

TEST_F(LogTest, VerboseDecides) {
  EXPECT_TRUE(log.enabled(LogLevel::log));  // before open(), too
  EXPECT_FALSE(log.enabled(LogLevel::debug));
  for (int verbose : {0, 1, 2, 9}) {
    LogTarget t = target();
    t.verbose = verbose;
    ASSERT_EQ(log.open(t), "");
    EXPECT_TRUE(log.enabled(LogLevel::fatal));
    EXPECT_TRUE(log.enabled(LogLevel::log));
    EXPECT_EQ(log.enabled(LogLevel::debug), verbose >= 1);
    EXPECT_EQ(log.enabled(LogLevel::noise), verbose >= 2);
  }
  ASSERT_EQ(log.open(target()), "");
  log(LogLevel::debug, "unseen");
  EXPECT_EQ(text(), "");
}

// A name from the network cannot forge a line of its own: what follows a newline starts with a tab.
TEST_F(LogTest, NewlinesAreIndented) {
  ASSERT_EQ(log.open(target()), "");
  log(LogLevel::log, "a\nb\n\nc");
  EXPECT_THAT(text(), ::testing::EndsWith(" LOG a\n\tb\n\t\n\tc\n"));
}

TEST_F(LogTest, BracesAndPercentInAMessageAreText) {
  ASSERT_EQ(log.open(target()), "");
  log.write(LogLevel::log, "{} %s %n {0");
  EXPECT_THAT(text(), ::testing::EndsWith(" LOG {} %s %n {0\n"));
}

TEST_F(LogTest, LongMessageIsWhole) {
  ASSERT_EQ(log.open(target()), "");
  std::string big(1 << 20, 'x');
  log.write(LogLevel::log, big);
  EXPECT_THAT(text(), ::testing::EndsWith(" LOG " + big + "\n"));
}

TEST_F(LogTest, AppendsToWhatIsThere) {
  std::ofstream(dir / "log") << "old\n";
  ASSERT_EQ(log.open(target()), "");
  log(LogLevel::log, "new");
  EXPECT_THAT(text(), StartsWith("old\n"));
  EXPECT_EQ(lines().size(), 2u);
}

TEST_F(LogTest, ReopenAfterRotation) {
  ASSERT_EQ(log.open(target()), "");
  log(LogLevel::log, "one");
  std::filesystem::rename(dir / "log", dir / "log.1");
  log(LogLevel::log, "two");  // still the old file
  ASSERT_EQ(log.open(target()), "");
  log(LogLevel::log, "three");
  EXPECT_EQ(lines("log.1").size(), 2u);
  ASSERT_EQ(lines().size(), 1u);
  EXPECT_THAT(lines()[0], HasSubstr("three"));
}

TEST_F(LogTest, ReopenLeaksNoDescriptor) {
  auto open_files = [] {
    auto all = std::filesystem::directory_iterator("/proc/self/fd");
    return std::distance(begin(all), end(all));
  };
  ASSERT_EQ(log.open(target()), "");
  auto before = open_files();
  for (int i = 0; i < 100; ++i) {
    log.open(target());
    log.open(target("no/such/dir"));
  }
  EXPECT_EQ(open_files(), before);
}

TEST_F(LogTest, FailedOpenKeepsTheOldFile) {
  ASSERT_EQ(log.open(target()), "");
  LogTarget bad = target("missing/log");
  bad.verbose = 2;
  EXPECT_EQ(log.open(bad), "could not open log file " + bad.file + ": No such file or directory");
  log(LogLevel::log, "still here");
  EXPECT_THAT(text(), HasSubstr("still here"));
  EXPECT_FALSE(log.enabled(LogLevel::debug));  // nothing of the refused target was taken
}

TEST_F(LogTest, NoFileIsGoodToo) {
  ASSERT_EQ(log.open(target()), "");
  LogTarget none;
  none.to_stderr = false;
  ASSERT_EQ(log.open(none), "");
  log(LogLevel::log, "nowhere");
  EXPECT_EQ(text(), "");
}

TEST_F(LogTest, FullDiskCostsTheLineOnly) {
  if (access("/dev/full", W_OK)) GTEST_SKIP() << "no /dev/full";
  LogTarget full;
  full.file = "/dev/full";
  full.to_stderr = false;
  ASSERT_EQ(log.open(full), "");
  for (int i = 0; i < 100; ++i) log(LogLevel::log, "lost");
  ASSERT_EQ(log.open(target()), "");
  log(LogLevel::log, "back");
  log(LogLevel::log, "to normal");
  ASSERT_EQ(lines().size(), 3u);
  EXPECT_THAT(lines()[0], HasSubstr("WARNING 100 lines of the log were lost"));
  EXPECT_THAT(lines()[1], HasSubstr("LOG back"));
}

// Nobody waits for a reader that stands still, and no line is glued to the torn one.
TEST_F(LogTest, FullPipeCostsTheLineOnly) {
  std::string path = dir / "pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  int reader = ::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  ASSERT_EQ(log.open(target("pipe")), "");
  constexpr int kLines = 100;
  for (int i = 0; i < kLines; ++i) log(LogLevel::log, "<{}>{}", i, std::string(5000, 'x'));
  std::string all;
  auto drain = [&] {
    char buffer[65536];
    for (ssize_t n; (n = ::read(reader, buffer, sizeof buffer)) > 0;) all.append(buffer, static_cast<std::size_t>(n));
  };
  drain();
  log(LogLevel::log, "back");
  drain();
  ::close(reader);
  std::istringstream in(all);
  int whole = 0, lost = 0;
  bool back = false;
  for (std::string line; std::getline(in, line);) {
    whole += line.size() > 5000;
    if (std::size_t at = line.find("WARNING "); at != line.npos) lost = std::stoi(line.substr(at + 8));
    back |= line.ends_with(" LOG back") && line.size() < 100;
  }
  EXPECT_GT(whole, 5);
  EXPECT_EQ(whole + lost, kLines);
  EXPECT_TRUE(back);
}

// What a name from the network holds does not move the cursor of whoever reads the log.
TEST_F(LogTest, ControlCharactersAreWrittenOut) {
  ASSERT_EQ(log.open(target()), "");
  log(LogLevel::log, "a\rb\x1b[2J\x7f\tпароль");
  EXPECT_THAT(text(), ::testing::EndsWith(" LOG a\\x0db\\x1b[2J\\x7f\tпароль\n"));
}

TEST_F(LogTest, StandardError) {
  LogTarget t = target();
  t.to_stderr = true;
  ASSERT_EQ(log.open(t), "");
  testing::internal::CaptureStderr();
  log(LogLevel::warning, "both");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), text());
  EXPECT_THAT(text(), HasSubstr("WARNING both"));
}

// Lines of several threads never mix, and RELOAD may reopen the file under them.
TEST_F(LogTest, ThreadsWriteWholeLines) {
  constexpr int kThreads = 8, kLines = 500;
  ASSERT_EQ(log.open(target()), "");
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < kLines; ++i) log(LogLevel::log, "<{}-{}>", t, i);
    });
  for (int i = 0; i < 50; ++i) EXPECT_EQ(log.open(target()), "");
  for (std::thread& t : threads) t.join();
  std::set<std::string> seen;
  for (const std::string& line : lines()) {
    EXPECT_THAT(line, MatchesRegex(".* LOG <[0-9]-[0-9]+>"));
    seen.insert(line.substr(line.find('<')));
  }
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(kThreads * kLines));
}

// ---- log_format = json ----

TEST_F(LogTest, Json) {
  LogTarget t = target();
  t.json = true;
  ASSERT_EQ(log.open(t), "");
  const LogField fields[] = {{"client", 17}, {"database", "p\"0"}};
  log.write(LogLevel::log, "he said \"no\"\nand left\xff", "C-0x1: ", fields);
  const std::string pid = std::to_string(getpid());
  EXPECT_THAT(text(), MatchesRegex("\\{\"time\":\"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{3}"
                                   "[+-][0-9]{2}:[0-9]{2}\",\"level\":\"LOG\",\"pid\":" +
                                   pid + ",\"message\":\".*\"\\}\n"));
  EXPECT_THAT(text(), ::testing::EndsWith(R"("message":"he said \"no\"\nand left)"
                                          "\ufffd"
                                          R"(","client":17,"database":"p\"0"})"
                                          "\n"));
}

TEST_F(LogTest, PrefixIsForThePlainFormatAndFieldsAreForJson) {
  const LogField fields[] = {{"client", -1}};
  ASSERT_EQ(log.open(target()), "");
  log.write(LogLevel::log, "text", "C-0x1: a\x1b ", fields);
  EXPECT_THAT(text(), ::testing::EndsWith(" LOG C-0x1: a\\x1b text\n"));
  LogTarget t = target();
  t.json = true;
  ASSERT_EQ(log.open(t), "");  // RELOAD and SET change it
  log.write(LogLevel::warning, "text", "C-0x1: ", fields);
  ASSERT_EQ(lines().size(), 2u);
  EXPECT_THAT(lines()[1], HasSubstr("\"level\":\"WARNING\""));
  EXPECT_THAT(lines()[1], ::testing::EndsWith(R"("message":"text","client":-1})"));
}

TEST_F(LogTest, LostLinesAreJsonToo) {
  if (access("/dev/full", W_OK)) GTEST_SKIP() << "no /dev/full";
  LogTarget full;
  full.file = "/dev/full";
  full.to_stderr = false;
  full.json = true;
  ASSERT_EQ(log.open(full), "");
  for (int i = 0; i < 3; ++i) log(LogLevel::log, "lost");
  LogTarget t = target();
  t.json = true;
  ASSERT_EQ(log.open(t), "");
  log(LogLevel::log, "back");
  ASSERT_EQ(lines().size(), 2u);
  EXPECT_THAT(lines()[0], ::testing::EndsWith(R"("message":"3 lines of the log were lost"})"));
  EXPECT_THAT(lines()[0], StartsWith("{"));
}

TEST_F(LogTest, TheJournalGetsItsPriority) {
  LogTarget t = target();
  t.to_stderr = t.journal = t.json = true;
  ASSERT_EQ(log.open(t), "");
  testing::internal::CaptureStderr();
  log(LogLevel::warning, "both");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "<4>" + text());
}

}  // namespace
}  // namespace pgf
