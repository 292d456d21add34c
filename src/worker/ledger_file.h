#pragma once
// The file behind pool::Ledger (`fleet_file`): opened, checked and mapped before any thread exists. Each member has a
// seat, and as long as its process lives it holds the lock on that seat's byte: the kernel lets go of it when the
// process ends, however it ends.
#include <sys/types.h>

#include <expected>
#include <memory>
#include <string>

#include "base/log.h"
#include "pool/ledger.h"
#include "worker/descriptors.h"

namespace pgf::worker {

class LedgerFile final : public pool::Ledger::Bells {
 public:
  // The error says what is wrong with the file. One that is something else, or in use, is left as it is.
  static std::expected<std::unique_ptr<LedgerFile>, std::string> open(const std::string& path);
  ~LedgerFile();
  LedgerFile(const LedgerFile&) = delete;

  pool::Ledger& ledger() { return *ledger_; }

  // The process that ends now hands its connections to this one: its seat is ours to empty.
  void succeed(pid_t predecessor);
  // Who lives, who is dead and for how long; what the dead had is given back. Three times a second.
  void look_around(Usec now, Log& log);
  void count_members();
  // Sleeps until somebody rings, or for so long. `heard` is what bell() said before the last look.
  std::uint32_t bell() const;
  void sleep(std::uint32_t heard, Usec longest) const;
  void ring_self() { ring(ledger_->bit()); }
  bool replaced() const;  // another file has its name now, or none

  void ring(std::uint32_t whom) override;

  // Somebody may cut the file short while we use it; then the kernel says SIGBUS to whoever touches it next. The
  // handler puts empty memory in its place and raises Ledger::lost. One such file per process.
  void survive_its_loss();

 private:
  LedgerFile(Descriptor file, pool::ledger::Table* table, int seat, std::string path);

  Descriptor file_;
  pool::ledger::Table* table_;
  const std::string path_;
  std::unique_ptr<pool::Ledger> ledger_;
  Usec dead_since_[pool::ledger::kMembers]{};  // keeper's thread only
};

}  // namespace pgf::worker
