#include "auth/ip_literal.h"

#include <charconv>
#include <vector>

namespace pgf::auth {
namespace {

bool parse_number(std::string_view text, int base, std::size_t max_digits, unsigned limit, unsigned& value) {
  if (text.empty() || text.size() > max_digits) return false;
  auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  return error == std::errc{} && stop == text.data() + text.size() && value <= limit;
}

bool parse_v4(std::string_view text, std::uint8_t* out) {
  for (int i = 0; i < 4; ++i) {
    std::size_t dot = i < 3 ? text.find('.') : text.size();
    if (dot == std::string_view::npos) return false;
    std::string_view part = text.substr(0, dot);
    unsigned value;
    // 010 is 8 to some and 10 to others: it is nothing.
    if (!parse_number(part, 10, 3, 255, value) || (part.size() > 1 && part[0] == '0')) return false;
    out[i] = static_cast<std::uint8_t>(value);
    text.remove_prefix(i < 3 ? dot + 1 : dot);
  }
  return true;
}

// Groups of one side of "::", the last one of the whole maybe in IPv4's form.
bool parse_groups(std::string_view text, bool last, std::vector<std::uint8_t>& out) {
  while (!text.empty()) {
    std::size_t colon = text.find(':');
    std::string_view part = text.substr(0, colon);
    bool final = colon == std::string_view::npos;
    if (final && last && part.find('.') != std::string_view::npos) {
      std::uint8_t v4[4];
      if (!parse_v4(part, v4)) return false;
      out.insert(out.end(), v4, v4 + 4);
      return true;
    }
    unsigned value;
    if (!parse_number(part, 16, 4, 0xffff, value) || out.size() >= 16) return false;
    out.push_back(static_cast<std::uint8_t>(value >> 8));
    out.push_back(static_cast<std::uint8_t>(value));
    if (final) return true;
    text.remove_prefix(colon + 1);
    if (text.empty()) return false;  // ends in a colon
  }
  return true;
}

bool parse_v6(std::string_view text, std::array<std::uint8_t, 16>& bytes) {
  std::size_t gap = text.find("::");
  std::vector<std::uint8_t> head, tail;
  if (gap == std::string_view::npos) {
    if (!parse_groups(text, true, head) || head.size() != 16) return false;
  } else {
    if (!parse_groups(text.substr(0, gap), false, head) || !parse_groups(text.substr(gap + 2), true, tail))
      return false;
    if (head.size() + tail.size() > 14) return false;  // the gap stands for something
  }
  bytes.fill(0);
  std::copy(head.begin(), head.end(), bytes.begin());
  std::copy(tail.rbegin(), tail.rend(), bytes.rbegin());
  return true;
}

}  // namespace

std::size_t parse_ip_literal(std::string_view text, std::array<std::uint8_t, 16>& bytes) {
  bytes.fill(0);
  if (text.find(':') == std::string_view::npos) return parse_v4(text, bytes.data()) ? 4 : 0;
  return parse_v6(text, bytes) ? 16 : 0;
}

bool parse_mask_bits(std::string_view text, std::size_t size, std::array<std::uint8_t, 16>& mask) {
  unsigned bits;
  if (!parse_number(text, 10, 3, static_cast<unsigned>(size) * 8, bits)) return false;
  mask.fill(0);
  for (unsigned i = 0; i < bits; ++i) mask[i / 8] |= static_cast<std::uint8_t>(0x80 >> i % 8);
  return true;
}

}  // namespace pgf::auth
