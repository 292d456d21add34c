#include <cstdlib>

#include "admin/parse.h"
#include "base/bytes.h"

// Any text gives a command that fits its verb, or an error text; never both promises broken.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace pgf::admin;
  auto parsed = parse(pgf::as_text({data, size}));
  if (!parsed) {
    if (parsed.error().empty()) std::abort();
    return 0;
  }
  const Command& command = *parsed;
  if (!command.verb || command.tag().empty()) std::abort();
  if (command.database.size() > 63 || command.key.size() > 63 || command.value.size() > 255) std::abort();
  bool shows = command.help || command.view || command.parameter;
  if (command.verb->action == Action::show && !shows) std::abort();
  if (command.verb->who == Who::admin && !command.parameter && !command.needs_admin()) std::abort();
  if (command.port < 0 || command.port > 65535 || (command.port > 0 && command.host.empty())) std::abort();
  const bool needs = command.verb->argument == Argument::database;
  if (needs && command.database.empty() && command.problem.empty()) std::abort();
  return 0;
}
