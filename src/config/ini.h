#pragma once
// The grammar of the ini file, without knowledge of any key. Lines, in whatever order:
//
//   [section]          what follows on the line is read as if it stood on the next
//   key = value        bare key: letters, digits, _ . - *; quoted key: '...', no escapes; value: to the end of the line
//   # ... or ; ...     comment, only as the first thing of a line
//   %include FILE      path as given, not relative to the including file; the section carries over both ways
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"

namespace pgf::config {

struct Place {
  std::string_view file;
  int line = 0;
};
std::string to_text(const Place& place);  // FILE:LINE

// Receives what was read. False stops the reading; whoever returns it has noted why.
struct IniVisitor {
  virtual ~IniVisitor() = default;
  virtual bool section(std::string_view name, const Place& place) = 0;
  virtual bool entry(std::string_view key, std::string_view value, const Place& place) = 0;
};

// False after the first thing wrong; errors then says what (unless the visitor stopped it).
bool read_ini(const std::string& path, FileReader& files, IniVisitor& visitor, std::vector<std::string>& errors);

}  // namespace pgf::config
