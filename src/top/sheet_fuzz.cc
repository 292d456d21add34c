// What the console says, shown: any cell may hold anything, columns may be missing. The input: tables, each a line of
// its name, a line of columns and lines of cells (tabs between), and an empty line; \x01 begins the later sample.
#include <cstdlib>

#include "base/bytes.h"
#include "top/frame.h"
#include "top/sheet.h"

namespace {

using namespace pgf::top;

std::vector<std::string> split(std::string_view text, char by) {
  std::vector<std::string> parts;
  while (true) {
    const std::size_t end = text.find(by);
    parts.emplace_back(text.substr(0, end));
    if (end == text.npos) return parts;
    text.remove_prefix(end + 1);
  }
}

Sample read(std::string_view text) {
  Sample sample;
  Table* table = nullptr;
  for (const std::string& line : split(text, '\n')) {
    if (line.empty()) {
      table = nullptr;
    } else if (!table) {
      table = &sample.tables[line];
      *table = {};
    } else if (table->columns.empty()) {
      table->columns = split(line, '\t');
    } else if (table->rows.size() < 50) {
      table->rows.push_back(split(line, '\t'));
    }
  }
  return sample;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = pgf::as_text({data, size});
  const std::size_t cut = std::min(text.find('\x01'), text.size());
  Sample before = read(text.substr(0, cut)), now = read(text.substr(std::min(cut + 1, text.size())));
  before.at = 1'000'000;
  now.at = 2'000'000;
  for (View view : {View::pools, View::clients, View::workers, View::hosts}) {
    for (const Sample* earlier : {static_cast<const Sample*>(nullptr), static_cast<const Sample*>(&before)}) {
      Sheet sheet = make_sheet(view, now, earlier);
      for (const auto& row : sheet.rows)
        if (row.size() != sheet.columns.size()) std::abort();
      for (std::size_t column = 0; column < sheet.columns.size(); ++column) sort(sheet, {column, column % 2 == 0});
      sort(sheet, usual_order(view));
      const Picture picture{"title", head_lines(now, earlier), view, usual_order(view), {}};
      for (std::size_t width : {1, 40}) {
        for (const std::string& line : draw(picture, sheet, {.width = width, .height = 12, .styled = false})) {
          if (width_of(line) > width) std::abort();
          for (unsigned char c : line)
            if (c < ' ' || c == 0x7f) std::abort();
        }
      }
    }
  }
  return 0;
}
