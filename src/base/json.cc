#include "base/json.h"

#include <fmt/format.h>

#include <cstdint>
#include <iterator>

#include "base/utf8.h"

namespace pgf {

void append_json(std::string& out, std::string_view text) {
  out += '"';
  while (!text.empty()) {
    std::uint32_t code = 0;
    const std::size_t size = utf8_character(text, code);
    if (size == 0) {
      out += "\ufffd";
    } else if (code == '"' || code == '\\') {
      out += '\\';
      out += text[0];
    } else if (code == '\n') {
      out += "\\n";
    } else if (code == '\t') {
      out += "\\t";
    } else if (is_control(code)) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", code);
    } else {
      out += text.substr(0, size);
    }
    text.remove_prefix(size ? size : 1);
  }
  out += '"';
}

}  // namespace pgf
