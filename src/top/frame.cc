#include "top/frame.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/utf8.h"

namespace pgf::top {
namespace {

constexpr std::string_view kInverse = "\x1b[7m", kBold = "\x1b[1m", kYellow = "\x1b[33m", kRed = "\x1b[31m",
                           kNormal = "\x1b[0m";
constexpr std::size_t kWidestColumn = 40, kGap = 2;
constexpr std::string_view kKeys =
    "p pools  c clients  w workers  h hosts  < > sort by  r reverse  arrows scroll  q quit";

std::string padded(std::string_view text, std::size_t width, bool right) {
  const std::size_t room = width - std::min(width, width_of(text));
  return right ? std::string(room, ' ') + std::string(text) : std::string(text) + std::string(room, ' ');
}

std::string styled(std::string_view style, const std::string& text, const Look& look) {
  return look.styled && !style.empty() ? std::string(style) + text + std::string(kNormal) : text;
}

std::string_view style_of(Mood mood) {
  return mood == Mood::bad ? kRed : mood == Mood::warning ? kYellow : std::string_view();
}

// A line of cells, cut where the terminal ends.
class Line {
 public:
  Line(const Look& look) : look_(look) {}
  void add(std::string_view part, std::size_t width, bool right, std::string_view style) {
    if (used_ >= look_.width) return;
    if (used_ > 0) put("", std::min(kGap, look_.width - used_), false, {});
    put(part, std::min(width, look_.width - used_), right, style);
  }
  std::string text;

 private:
  void put(std::string_view part, std::size_t width, bool right, std::string_view style) {
    if (width == 0) return;
    text += styled(style, padded(harmless(part, width), width, right), look_);
    used_ += width;
  }
  const Look& look_;
  std::size_t used_ = 0;
};

}  // namespace

std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string harmless(std::string_view text, std::size_t width) {
  std::string out;
  std::size_t used = 0, last = 0;  // last: where the last character that is in begins
  while (!text.empty() && used <= width) {
    std::uint32_t code = 0;
    const std::size_t size = utf8_character(text, code);
    if (used == width) {  // one more than fits
      if (width == 0) return {};
      return out.substr(0, last) + "…";
    }
    last = out.size();
    if (size == 0 || is_control(code))
      out += '?';
    else
      out += text.substr(0, size);
    text.remove_prefix(size ? size : 1);
    ++used;
  }
  return out;
}

std::vector<std::string> draw(const Picture& picture, const Sheet& sheet, const Look& look) {
  std::vector<std::string> lines;
  lines.push_back(styled(kBold, harmless(picture.title, look.width), look));
  for (const std::string& line : picture.head) lines.push_back(harmless(line, look.width));
  const bool bad = !picture.notice.empty();
  lines.push_back(styled(bad ? kRed : std::string_view(), harmless(bad ? picture.notice : kKeys, look.width), look));

  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i < sheet.columns.size(); ++i) {
    std::size_t width = width_of(sheet.columns[i].title) + 1;  // room for the mark of the order
    for (const auto& row : sheet.rows) width = std::max(width, width_of(harmless(row[i].text, kWidestColumn)));
    widths.push_back(width);
  }
  Line header(look);
  for (std::size_t i = 0; i < sheet.columns.size(); ++i) {
    std::string title(sheet.columns[i].title);
    if (i == picture.order.column) title += picture.order.descending ? 'v' : '^';
    header.add(title, widths[i], sheet.columns[i].numeric, kInverse);
  }
  lines.push_back(header.text);

  for (std::size_t n = look.first_row; n < sheet.rows.size(); ++n) {
    if (look.height > 0 && lines.size() >= look.height) break;
    Line line(look);
    for (std::size_t i = 0; i < sheet.columns.size(); ++i)
      line.add(sheet.rows[n][i].text, widths[i], sheet.columns[i].numeric, style_of(sheet.rows[n][i].mood));
    lines.push_back(line.text);
  }
  if (look.height > 0 && lines.size() > look.height) lines.resize(look.height);
  return lines;
}

}  // namespace pgf::top
