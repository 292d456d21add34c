#include <cstdlib>

#include "wire/startup.h"

// What was understood must mean the same when it is written out again with every character escaped.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace pgf::wire;
  auto options = parse_options(pgf::as_text({data, size}));
  if (!options) {
    if (options.error().empty()) std::abort();
    return 0;
  }
  std::string text;
  bool dashes = false;
  for (const auto& [key, value] : *options) {
    if (key.empty() || key.contains('=')) std::abort();
    text += (dashes = !dashes) ? " --" : "\t-c ";
    for (char c : key + "=" + value) text.append(1, '\\').append(1, c);
  }
  if (parse_options(text) != options) std::abort();
  return 0;
}
