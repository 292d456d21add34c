#pragma once
#include <array>
#include <cstdint>
#include <string_view>

namespace pgf::auth {

// Addresses as rules write them, without the system's help. The result is the number of bytes: 4, 16, or 0 if the text
// is no address.
std::size_t parse_ip_literal(std::string_view text, std::array<std::uint8_t, 16>& bytes);
// "24" for an address of `size` bytes: that many leading ones.
bool parse_mask_bits(std::string_view text, std::size_t size, std::array<std::uint8_t, 16>& mask);

}  // namespace pgf::auth
