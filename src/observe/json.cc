#include "observe/json.h"

#include <algorithm>

#include "base/utf8.h"

namespace pgf::observe {

// The text may stand in HTML and in a line of its own, too: `<`, control characters and U+2028 are never in it.
Json& Json::value(std::string_view text) {
  comma();
  out_ += '"';
  while (!text.empty()) {
    std::uint32_t code;
    const std::size_t length = utf8_character(text, code);
    const auto c = static_cast<unsigned char>(text[0]);
    if (!length)
      out_ += fmt::format("\\\\x{:02x}", c);
    else if (c < 0x20 || c == 0x7f || c == '<' || c == '>' || c == '&')
      out_ += fmt::format("\\u{:04x}", c);
    else if (c == '"' || c == '\\')
      (out_ += '\\') += text[0];
    else if (text.starts_with("\xe2\x80\xa8") || text.starts_with("\xe2\x80\xa9"))
      out_ += text[2] == '\xa8' ? "\\u2028" : "\\u2029";
    else
      out_ += text.substr(0, length);
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  out_ += '"';
  return *this;
}

}  // namespace pgf::observe
