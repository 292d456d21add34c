#pragma once
// pgflotilla --check: what is wrong with a configuration, and what it would start. Starts nothing, opens no socket,
// creates no file.
#include <string>

#include "config/config.h"

namespace pgf {

// `text` is for a human, on stdout. True: the program would start with this.
struct Checked {
  bool good = false;
  std::string text;
};
Checked check_config(const config::LoadResult& loaded, const std::string& path, const std::string& user);

}  // namespace pgf
