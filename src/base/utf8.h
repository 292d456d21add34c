#pragma once
// UTF-8 that may be none.
#include <cstdint>
#include <string_view>

namespace pgf {

// How many bytes the character at the beginning of `text` (which is not empty) has, and its number. 0: there is none,
// but too long a form of a smaller number, a surrogate, something beyond Unicode, or the middle of one.
constexpr std::size_t utf8_character(std::string_view text, std::uint32_t& code) {
  const auto first = static_cast<std::uint8_t>(text[0]);
  const std::size_t size = first < 0x80 ? 1 : first >> 5 == 6 ? 2 : first >> 4 == 14 ? 3 : first >> 3 == 30 ? 4 : 0;
  if (size == 0 || text.size() < size) return 0;
  code = size == 1 ? first : first & (0xffu >> (size + 1));
  for (std::size_t i = 1; i < size; ++i) {
    const auto next = static_cast<std::uint8_t>(text[i]);
    if (next >> 6 != 2) return 0;
    code = code << 6 | (next & 0x3fu);
  }
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  return code < kLeast[size] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) ? 0 : size;
}

// Would it move the cursor of a terminal? (C0, DEL and C1)
constexpr bool is_control(std::uint32_t code) { return code < ' ' || (code >= 0x7f && code < 0xa0); }

}  // namespace pgf
