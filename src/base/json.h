#pragma once
// Text as JSON wants it.
#include <string>
#include <string_view>

namespace pgf {

// Appends `text` as a JSON string with its quotes. Whatever the bytes are, the result is valid JSON in UTF-8 on one
// line: control characters (of C1, too) become \u00NN, and what is not UTF-8 becomes U+FFFD.
void append_json(std::string& out, std::string_view text);

}  // namespace pgf
