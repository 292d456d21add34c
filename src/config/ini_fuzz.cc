#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "config/config.h"

namespace {

// The input is every file, so includes recurse and the auth_file is garbage too.
struct EveryFile : pgf::config::FileReader {
  std::string text;
  std::optional<std::string> read(const std::string& path, std::string& error) override {
    if (!path.empty() && path[0] == '!') {
      error = "No such file or directory";
      return std::nullopt;
    }
    return text;
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace pgf::config;
  EveryFile files;
  files.text.assign(reinterpret_cast<const char*>(data), size);
  LoadResult result = load("f.ini", files);
  if (!result.config) {
    if (result.errors.empty()) std::abort();  // a refusal always says why
    return 0;
  }
  if (!result.errors.empty()) std::abort();
  (void)show(result.config->settings);
  for (const auto& [name, db] : result.config->databases) {
    if (needs_new_servers(db, db)) std::abort();
    (void)resolve(*result.config, db, name);
    (void)resolve_client(*result.config, db, name);
  }
  (void)find_database(*result.config, "any");
  return 0;
}
