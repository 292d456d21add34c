#include "config/nearest.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace pgf::config {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Three rows of the usual table: the swap looks two rows back.
  std::vector<std::size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) above[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

std::string_view nearest(std::string_view word, std::span<const std::string_view> known) {
  constexpr std::size_t kLongest = 64;  // longer words are no typing errors, and the table is quadratic
  if (word.empty() || word.size() > kLongest) return {};
  std::string_view best;
  std::size_t best_distance = std::max<std::size_t>(2, word.size() / 4) + 1;
  for (std::string_view candidate : known) {
    std::size_t distance = edit_distance(word, candidate);
    // A distance of the whole word would turn any two letters into any other two.
    if (distance < best_distance && distance < word.size()) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string hint(std::string_view nearest_word) {
  return nearest_word.empty() ? std::string{} : fmt::format(", did you mean \"{}\"?", nearest_word);
}

}  // namespace pgf::config
