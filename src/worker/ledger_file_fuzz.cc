// A fleet_file that is something else, or that somebody writes into: it is refused and left as it is, or used, and
// never ends the program. First byte: does a member use it already? Then the bytes go into the file behind its back, at
// the place that the next two bytes say.
#include "base/fuzz_kit.h"
#include "worker/ledger_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/bytes.h"

namespace {

using namespace pgf;

struct Folder {
  std::string path;
  Log log;
  Folder() {
    std::string name = std::filesystem::is_directory("/dev/shm") ? "/dev/shm/pgf-fuzz-XXXXXX" : "/tmp/pgf-fuzz-XXXXXX";
    must(::mkdtemp(name.data()) != nullptr);
    path = name;
    LogTarget nowhere;
    nowhere.to_stderr = false;
    log.open(nowhere);
  }
  ~Folder() { std::filesystem::remove_all(path); }
};

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const std::string& path, std::string_view bytes, off_t at) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  must(fd >= 0 && ::pwrite(fd, bytes.data(), bytes.size(), at) == static_cast<ssize_t>(bytes.size()));
  ::close(fd);
}

void use(worker::LedgerFile& file, Log& log) {
  pool::Stake stake(file.ledger(), "db");
  file.look_around(kSecond, log);
  if (stake.take(5, true, 1)) stake.put();
  stake.want(5, kSecond);
  (void)stake.asked();
  file.look_around(5 * kSecond, log);
  must(file.ledger().members.load() >= 1 && file.ledger().members.load() <= pool::ledger::kMembers);
  must(!file.replaced());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Folder folder;
  const std::string path = folder.path + "/fleet";
  Cursor in({data, size});
  const bool in_use = in.u8() & 1;
  const off_t at = in.u16() % 2048;
  if (!in.ok()) return 0;
  const std::string_view bytes = as_text(in.rest());
  ::unlink(path.c_str());
  if (in_use) {
    auto first = worker::LedgerFile::open(path);
    must(first.has_value());
    write(path, bytes, at);
    auto second = worker::LedgerFile::open(path);
    must(second || !second.error().empty());
    if (second) use(**second, folder.log);
    use(**first, folder.log);
    return 0;
  }
  write(path, bytes, 0);
  const std::string before = contents(path);
  auto file = worker::LedgerFile::open(path);
  if (file)
    use(**file, folder.log);
  else
    must(contents(path) == before);
  must(file.has_value() == (before.empty() || pool::ledger::is_ledger(before)));
  return 0;
}
