#include "observe/exposition.h"

#include "base/utf8.h"

namespace pgf::observe {
namespace {

constexpr int kFirstBucket = 6, kLastBucket = 26;  // 64 µs to 67 s, a power of two each

void append_escaped(std::string& out, std::string_view text) {
  while (!text.empty()) {
    std::uint32_t code;
    const std::size_t length = utf8_character(text, code);
    if (!length)
      out += fmt::format("\\\\x{:02x}", static_cast<unsigned char>(text[0]));
    else if (text[0] == '\n')
      out += "\\n";
    else if (text[0] == '"' || text[0] == '\\')
      (out += '\\') += text[0];
    else
      out += text.substr(0, length);
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
}

}  // namespace

std::string labels(Labels pairs) {
  std::string out;
  for (const auto& [name, value] : pairs) {
    if (!out.empty()) out += ',';
    (out += name) += "=\"";
    append_escaped(out, value);
    out += '"';
  }
  return out;
}

void Page::family(std::string_view name, std::string_view type, std::string_view help) {
  name_ = name;
  counter_ = type == "counter";
  std::string_view suffix = counter_ && !open_ ? "_total" : "";
  out_ += fmt::format("# HELP {}{} {}\n# TYPE {}{} {}\n", name, suffix, help, name, suffix, type);
}

void Page::histogram(std::string_view labels, const Histogram& h) {
  const std::string before = labels.empty() ? "" : fmt::format("{},", labels);
  // Durations are whole microseconds, cut off: what counts as 127 took less than 128.
  for (int power = kFirstBucket; power <= kLastBucket; ++power)
    line("_bucket", fmt::format("{}le=\"{}\"", before, seconds(std::uint64_t{1} << power)), h.below(power));
  line("_bucket", before + "le=\"+Inf\"", h.count());
  line("_sum", labels, seconds(static_cast<std::uint64_t>(h.sum())));
  line("_count", labels, h.count());
}

std::string Page::finish() {
  if (open_) out_ += "# EOF\n";
  return std::move(out_);
}

}  // namespace pgf::observe
