#include "auth/saslprep.h"

#include <algorithm>
#include <iterator>
#include <optional>

namespace pgf::auth {
namespace {

struct Range {
  char32_t first, last;
};

constexpr bool in(const auto& ranges, char32_t c) {
  return std::ranges::any_of(ranges, [c](Range r) { return r.first <= c && c <= r.last; });
}

// RFC 3454 C.1.2. Tested before the next table: U+200B is in both.
constexpr Range kSpaces[] = {{0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200B},
                             {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}};
// RFC 3454 B.1.
constexpr Range kDropped[] = {{0xAD, 0xAD},     {0x34F, 0x34F},   {0x1806, 0x1806}, {0x180B, 0x180D},
                              {0x200C, 0x200D}, {0x2060, 0x2060}, {0xFE00, 0xFE0F}, {0xFEFF, 0xFEFF}};
// RFC 3454 C.2.1 to C.9 (surrogates are no valid UTF-8 in the first place).
constexpr Range kProhibited[] = {
    {0, 0x1F},          {0x7F, 0x9F},        {0x340, 0x341},     {0x6DD, 0x6DD},     {0x70F, 0x70F},
    {0x180E, 0x180E},   {0x200C, 0x200F},    {0x2028, 0x202E},   {0x2060, 0x2063},   {0x206A, 0x206F},
    {0x2FF0, 0x2FFB},   {0xE000, 0xF8FF},    {0xFDD0, 0xFDEF},   {0xFEFF, 0xFEFF},   {0xFFF9, 0xFFFF},
    {0x1D173, 0x1D17A}, {0x1FFFE, 0x1FFFF},  {0x2FFFE, 0x2FFFF}, {0x3FFFE, 0x3FFFF}, {0x4FFFE, 0x4FFFF},
    {0x5FFFE, 0x5FFFF}, {0x6FFFE, 0x6FFFF},  {0x7FFFE, 0x7FFFF}, {0x8FFFE, 0x8FFFF}, {0x9FFFE, 0x9FFFF},
    {0xAFFFE, 0xAFFFF}, {0xBFFFE, 0xBFFFF},  {0xCFFFE, 0xCFFFF}, {0xDFFFE, 0xDFFFF}, {0xE0001, 0xE0001},
    {0xE0020, 0xE007F}, {0xEFFFE, 0x10FFFF},
};

// Compatibility characters that keyboards have a key for.
struct Compat {
  char32_t from;
  std::u32string_view to;
};
constexpr Compat kCompat[] = {
    {0xA8, U" \u0308"},  {0xAA, U"a"},        {0xAF, U" \u0304"},  {0xB2, U"2"},     {0xB3, U"3"},
    {0xB4, U" \u0301"},  {0xB5, U"\u03BC"},   {0xB8, U" \u0327"},  {0xB9, U"1"},     {0xBA, U"o"},
    {0xBC, U"1\u20444"}, {0xBD, U"1\u20442"}, {0xBE, U"3\u20444"}, {0x2026, U"..."}, {0x2122, U"TM"},
};

// Strict: no surrogates, no overlong forms, nothing above U+10FFFF.
std::optional<std::u32string> decode_utf8(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    auto byte = [&](std::size_t at) { return static_cast<std::uint8_t>(text[at]); };
    std::uint8_t lead = byte(i);
    std::size_t length = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
    if (length == 0 || length > text.size() - i) return std::nullopt;
    char32_t c = length == 1 ? lead : lead & (0xFF >> (length + 1));
    for (std::size_t k = 1; k < length; ++k) {
      if ((byte(i + k) & 0xC0) != 0x80) return std::nullopt;
      c = c << 6 | (byte(i + k) & 0x3F);
    }
    constexpr char32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
    if (c < kSmallest[length] || c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) return std::nullopt;
    out += c;
    i += length;
  }
  return out;
}

void append_utf8(std::string& out, char32_t c) {
  auto put = [&](char32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80) return put(c);
  if (c < 0x800) {
    put(0xC0 | c >> 6);
  } else {
    if (c < 0x10000) {
      put(0xE0 | c >> 12);
    } else {
      put(0xF0 | c >> 18);
      put(0x80 | (c >> 12 & 0x3F));
    }
    put(0x80 | (c >> 6 & 0x3F));
  }
  put(0x80 | (c & 0x3F));
}

}  // namespace

std::string saslprep(std::string_view password) {
  std::string raw(password);
  // As in PostgreSQL, ASCII is never changed, not even control characters refused.
  if (std::ranges::all_of(password, [](char c) { return static_cast<std::uint8_t>(c) < 0x80; })) return raw;
  auto decoded = decode_utf8(password);
  if (!decoded) return raw;

  std::string prepared;
  prepared.reserve(password.size());
  for (char32_t c : *decoded) {
    if (in(kSpaces, c)) {
      prepared += ' ';
    } else if (in(kDropped, c)) {
    } else if (in(kProhibited, c)) {
      return raw;
    } else if (c >= 0xFF01 && c <= 0xFF5E) {
      prepared += static_cast<char>(c - 0xFF01 + '!');
    } else if (auto* compat = std::ranges::find(kCompat, c, &Compat::from); compat != std::end(kCompat)) {
      for (char32_t part : compat->to) append_utf8(prepared, part);
    } else {
      append_utf8(prepared, c);
    }
  }
  return prepared.empty() ? raw : prepared;
}

}  // namespace pgf::auth
