#pragma once
// "Did you mean ...?" for misspelt keys.
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace pgf::config {

// Insertions, deletions, replacements and swaps of neighbours that turn a into b.
std::size_t edit_distance(std::string_view a, std::string_view b);
// The closest of the known words, or empty when even that one is too far to be a typing error.
std::string_view nearest(std::string_view word, std::span<const std::string_view> known);
// `, did you mean "K"?` or nothing.
std::string hint(std::string_view nearest_word);

}  // namespace pgf::config
