#pragma once
// Writes JSON text. Commas come by themselves; the caller sees to it that what he opens he closes.
#include <fmt/format.h>

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace pgf::observe {

class Json {
 public:
  Json& open(char bracket) {  // { or [
    comma();
    out_ += bracket;
    first_ = true;
    return *this;
  }
  Json& close(char bracket) {
    out_ += bracket;
    first_ = false;
    return *this;
  }
  Json& key(std::string_view name) {
    value(name);
    out_ += ':';
    first_ = true;
    return *this;
  }
  Json& value(std::string_view text);  // bytes that are no UTF-8 become `\xNN`
  Json& value(const char* text) { return value(std::string_view(text)); }
  Json& value(const std::string& text) { return value(std::string_view(text)); }
  Json& value(bool yes) { return raw(yes ? "true" : "false"); }
  Json& value(std::integral auto n) { return raw(fmt::format("{}", n)); }
  Json& value(double n) { return raw(fmt::format("{:.6g}", n)); }  // finite
  Json& null() { return raw("null"); }
  template <class T>
  Json& member(std::string_view name, const T& v) {
    return key(name).value(v);
  }

  std::string take() { return std::move(out_); }

 private:
  Json& raw(std::string_view text) {
    comma();
    out_ += text;
    return *this;
  }
  void comma() {
    if (!first_) out_ += ',';
    first_ = false;
  }

  std::string out_;
  bool first_ = true;  // nothing stands before the next one in its bracket
};

}  // namespace pgf::observe
