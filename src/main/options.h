#pragma once
#include <expected>
#include <string>

namespace pgf {

struct Options {
  bool daemon = false, quiet = false, reboot = false, check = false;
  int verbose = 0;
  std::string user, config;
};

// Error = exit status, with everything said already (help, version, complaints).
std::expected<Options, int> parse_options(int argc, char** argv);

}  // namespace pgf
