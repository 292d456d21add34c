#pragma once
// The web page, as web/build.mjs has made it of web/: one file, nothing else is loaded. Where the build had no Node it
// is a page that says so.
#include <string_view>

namespace pgf::web {

struct BuiltPage {
  std::string_view html;
  std::string_view policy;  // its Content-Security-Policy
};
extern const BuiltPage kPage;

}  // namespace pgf::web
