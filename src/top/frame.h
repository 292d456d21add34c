#pragma once
// One picture of the terminal. Pure: everything it depends on is handed in.
#include <string>
#include <string_view>
#include <vector>

#include "top/sheet.h"

namespace pgf::top {

struct Look {
  std::size_t width = 80, height = 24;  // height 0: as many lines as there are
  bool styled = true;                   // inverse video and colours
  std::size_t first_row = 0;            // scrolled to
};

struct Picture {
  std::string title;  // first line
  std::vector<std::string> head;
  View view = View::pools;
  Order order;
  std::string notice;  // what is wrong; shown instead of the keys
};

// Lines without their ends. None is wider than look.width, none has a control character that is not ours: names in
// there come from whoever connects.
std::vector<std::string> draw(const Picture& picture, const Sheet& sheet, const Look& look);

// Harmless: no control characters, valid UTF-8, at most `width` characters (… for what does not fit).
std::string harmless(std::string_view text, std::size_t width);
std::size_t width_of(std::string_view text);  // characters; text is valid UTF-8

}  // namespace pgf::top
