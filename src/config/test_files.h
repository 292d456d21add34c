#pragma once
// Files that exist only in a test.
#include <map>
#include <string>
#include <utility>

#include "config/config.h"

namespace pgf::config {

struct TestFiles : FileReader {
  std::map<std::string, std::string> files;
  int reads = 0;

  TestFiles() = default;
  explicit TestFiles(std::map<std::string, std::string> content) : files(std::move(content)) {}

  std::optional<std::string> read(const std::string& path, std::string& error) override {
    ++reads;
    auto it = files.find(path);
    if (it != files.end()) return it->second;
    error = "No such file or directory";
    return std::nullopt;
  }
};

inline LoadResult load_text(const std::string& ini) {
  TestFiles files{{{"f.ini", ini}}};
  return load("f.ini", files);
}

}  // namespace pgf::config
