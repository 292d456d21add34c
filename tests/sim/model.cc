#include "model.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace pgf::sim {

int tracked(std::string_view name) {
  auto same = [&](std::string_view other) {
    return std::ranges::equal(name, other, [](char a, char b) { return (a | 0x20) == (b | 0x20); });
  };
  auto it = std::ranges::find_if(kTracked, same);
  return it == kTracked.end() ? -1 : static_cast<int>(it - kTracked.begin());
}

std::string canonical(int parameter, std::string_view value) {
  if (parameter == 0 && (value == "ISO" || value == "iso")) return "ISO, MDY";
  if (parameter == 1 && value == "utf8") return "UTF8";
  return std::string(value);
}

std::string digest(const Params& params) {
  std::string all;
  for (const std::string& p : params) all.append(p).append(1, '|');
  return all;
}

std::vector<std::string_view> words(std::string_view text) {
  std::vector<std::string_view> result;
  while (!text.empty()) {
    const std::size_t blank = std::min(text.find(' '), text.size());
    if (blank > 0) result.push_back(text.substr(0, blank));
    text.remove_prefix(std::min(blank + 1, text.size()));
  }
  return result;
}

std::uint64_t number(std::string_view word) {
  std::uint64_t n = 0;
  std::from_chars(word.data(), word.data() + word.size(), n);
  return n;
}

void Talk::read(Random& random) {
  const Bytes there = end_.arrived();
  const std::size_t n = random.part(there.size());
  if (used_ > 0) in_.erase(0, std::exchange(used_, 0));
  in_.append(as_text(there.first(n)));
  end_.consume(n);
}

void Talk::write(Random& random) {
  if (end_.broken()) return out.clear();
  out.erase(0, end_.send(as_bytes(out).first(random.part(out.size()))));
}

bool Talk::complete(bool startup) const {
  const std::size_t head = startup ? 0 : 1;
  const Bytes rest = as_bytes(in_).subspan(used_);
  return rest.size() >= head + 4 && rest.size() >= head + load_be32(rest.data() + head);
}

std::optional<Talk::Message> Talk::next(bool startup) {
  if (!complete(startup)) return std::nullopt;
  const std::size_t head = startup ? 0 : 1;
  const Bytes rest = as_bytes(in_).subspan(used_);
  const std::size_t length = load_be32(rest.data() + head);
  if (length < 4) throw Violation("a message with a bad length");
  used_ += head + length;
  return Message{startup ? '\0' : static_cast<char>(rest[0]), rest.subspan(head + 4, length - 4)};
}

}  // namespace pgf::sim
