// Every fuzz target (src/*/x_fuzz.cc) on its corpus, tests/fuzz/corpus/x_fuzz, and on mutations of it: the same ones
// each time. scripts/fuzz looks further; what it finds becomes a file of the corpus, and stays found.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#define PGF_FUZZER(name) extern "C" int name(const std::uint8_t* data, std::size_t size);
#include "fuzzers.inc"
#undef PGF_FUZZER

namespace {

constexpr int kMutations = 5000;
constexpr auto kLongestRun = std::chrono::milliseconds(500);  // of one target's mutations: some are slow
constexpr std::size_t kLongest = 4096;

using Input = std::vector<std::uint8_t>;
using Target = int (*)(const std::uint8_t*, std::size_t);

// What is being run, for the handler of a crash.
struct {
  const char* name = "";
  const Input* input = nullptr;
} now;

void on_crash(int signal) {
  std::fprintf(stderr, "%s fails; its input, for xxd -r -p: ", now.name);
  for (std::size_t i = 0; now.input && i < now.input->size(); ++i) std::fprintf(stderr, "%02x", (*now.input)[i]);
  std::fprintf(stderr, "\n");
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

std::vector<Input> read_corpus(const std::string& name) {
  std::vector<std::filesystem::path> paths;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(PGF_ROOT "/tests/fuzz/corpus/" + name, none))
    paths.push_back(entry.path());
  std::ranges::sort(paths);
  std::vector<Input> inputs;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return inputs;
}

class Mutator {
 public:
  explicit Mutator(const std::string& name) : random_(static_cast<unsigned>(std::hash<std::string>{}(name))) {}

  std::size_t below(std::size_t n) { return random_() % std::max<std::size_t>(1, n); }

  Input mutate(Input in, const std::vector<Input>& corpus) {
    for (std::size_t n = 1 + below(4); n > 0; --n) change(in, corpus);
    if (in.size() > kLongest) in.resize(kLongest);
    return in;
  }

 private:
  void change(Input& in, const std::vector<Input>& corpus) {
    static constexpr std::uint8_t kOdd[] = {0,   1,    4,    5,   0x7f, 0x80, 0xff, ' ',
                                            '"', '\'', '\\', ',', '=',  '\n', '#',  '@'};
    const std::size_t at = below(in.size() + 1);
    auto place = in.begin() + static_cast<std::ptrdiff_t>(at);
    switch (below(7)) {
      case 0:
        if (at < in.size()) *place ^= static_cast<std::uint8_t>(1u << below(8));
        break;
      case 1:
        if (at < in.size()) *place = kOdd[below(std::size(kOdd))];
        break;
      case 2:
        in.insert(place, kOdd[below(std::size(kOdd))]);
        break;
      case 3:
        in.erase(place, place + static_cast<std::ptrdiff_t>(below(std::min<std::size_t>(in.size() - at, 16) + 1)));
        break;
      case 4:
        in.resize(at);
        break;
      case 5: {  // a piece of another input
        const Input& other = corpus[below(corpus.size())];
        const std::size_t from = below(other.size()), n = below(std::min<std::size_t>(other.size() - from, 64) + 1);
        auto begin = other.begin() + static_cast<std::ptrdiff_t>(from);
        in.insert(place, begin, begin + static_cast<std::ptrdiff_t>(n));
        break;
      }
      default: {  // the same once more
        const std::size_t n = below(std::min<std::size_t>(in.size() - at, 32) + 1);
        const Input piece(place, place + static_cast<std::ptrdiff_t>(n));
        in.insert(place, piece.begin(), piece.end());
      }
    }
  }

  std::mt19937 random_;
};

void run(const char* name, Target target) {
  now.name = name;
  for (int signal : {SIGABRT, SIGILL, SIGTRAP, SIGSEGV, SIGBUS}) ::signal(signal, on_crash);
  auto feed = [&](const Input& in) {
    now.input = &in;
    // Exactly as long as it is: memory checkers see whoever reads past its end.
    std::unique_ptr<std::uint8_t[]> exact(new std::uint8_t[in.size()]);
    std::ranges::copy(in, exact.get());
    target(exact.get(), in.size());
    now.input = nullptr;
  };
  std::vector<Input> corpus = read_corpus(name);
  EXPECT_FALSE(corpus.empty()) << "no input in tests/fuzz/corpus/" << name;
  corpus.emplace_back();
  for (const Input& in : corpus) feed(in);
  Mutator mutator(name);
  const int mutations = std::getenv("PGF_MUTATIONS") ? std::atoi(std::getenv("PGF_MUTATIONS")) : kMutations;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < mutations; ++i) {
    if (mutations == kMutations && std::chrono::steady_clock::now() - begin > kLongestRun) break;
    feed(mutator.mutate(corpus[mutator.below(corpus.size())], corpus));
  }
}

#define PGF_FUZZER(name) \
  TEST(Fuzz, name) { run(#name, ::name); }
#include "fuzzers.inc"

}  // namespace
