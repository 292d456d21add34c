#pragma once
// Writes the text that Prometheus reads: families of samples, in one of two formats.
#include <fmt/format.h>

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "base/histogram.h"

namespace pgf::observe {

enum class Exposition { prometheus, openmetrics };  // text 0.0.4, OpenMetrics 1.0

inline double seconds(std::uint64_t usec) { return static_cast<double>(usec) / 1e6; }

// `a="1",b="2"`, escaped. Bytes that are no UTF-8 become `\xNN`: one of them would make the whole page unreadable.
using Labels = std::initializer_list<std::pair<std::string_view, std::string_view>>;
std::string labels(Labels pairs);

class Page {
 public:
  explicit Page(Exposition exposition) : open_(exposition == Exposition::openmetrics) {}

  // Samples that follow belong to it. A counter's name is given without `_total`.
  void family(std::string_view name, std::string_view type, std::string_view help);
  template <class N>
  void sample(std::string_view labels, N value) {
    line(counter_ ? "_total" : "", labels, value);
  }
  void histogram(std::string_view labels, const Histogram& h);
  std::string finish();

 private:
  template <class N>
  void line(std::string_view suffix, std::string_view labels, N value) {
    if (labels.empty())
      fmt::format_to(std::back_inserter(out_), "{}{} {}\n", name_, suffix, value);
    else
      fmt::format_to(std::back_inserter(out_), "{}{}{{{}}} {}\n", name_, suffix, labels, value);
  }

  const bool open_;
  std::string out_, name_;
  bool counter_ = false;
};

}  // namespace pgf::observe
