#pragma once
// What `pgflotilla top` shows, made from the console's tables. Pure: text in, text out.
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/time.h"
#include "top/console.h"

namespace pgf::top {

enum class View { pools, clients, workers, hosts };
inline constexpr std::array<std::string_view, 4> kViewNames{"pools", "clients", "workers", "hosts"};

// What the console said at one moment. Only what a view needs is asked for: SHOW CLIENTS is long.
struct Sample {
  Usec at = 0;
  std::map<std::string, Table, std::less<>> tables;  // by what was shown

  const Table& table(std::string_view what) const;
};
// What to ask for: for the head, and for this view.
std::vector<std::string_view> wanted(View view);

enum class Mood { plain, warning, bad };

struct Cell {
  std::string text;
  double number = 0;  // to sort by, if the column is one of numbers
  Mood mood = Mood::plain;
};
struct Heading {
  std::string_view title;
  bool numeric = false;
};
struct Sheet {
  std::vector<Heading> columns;
  std::vector<std::vector<Cell>> rows;
};

// Rates are over the time between the samples; without an earlier one there are none.
Sheet make_sheet(View view, const Sample& now, const Sample* before);
std::vector<std::string> head_lines(const Sample& now, const Sample* before);

struct Order {
  std::size_t column = 0;
  bool descending = false;
};
Order usual_order(View view);
void sort(Sheet& sheet, Order order);

// "1.2k", "3.4M"; "850us", "1.2s": three digits are enough to see.
std::string short_number(double value);
std::string short_time(double microseconds);

}  // namespace pgf::top
