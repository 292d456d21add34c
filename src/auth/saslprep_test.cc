#include "auth/saslprep.h"

#include <gtest/gtest.h>

namespace pgf::auth {
namespace {

TEST(SaslPrep, LeavesAlone) {
  for (std::string_view same :
       {"", "secret", "tab\there", "\x7f", "pässwörd €", "пароль", "密码", "\xF0\x9F\x94\x91"}) {
    EXPECT_EQ(saslprep(same), same);
  }
}

TEST(SaslPrep, Maps) {
  EXPECT_EQ(saslprep("I\u00ADX"), "IX");            // RFC 4013 section 3: soft hyphen
  EXPECT_EQ(saslprep("\u00AA"), "a");               // and compatibility
  EXPECT_EQ(saslprep("a\u00A0b\u3000c"), "a b c");  // odd spaces
  EXPECT_EQ(saslprep("a\u200Bb\u200Dc"), "a bc");   // zero width space and joiner
  EXPECT_EQ(saslprep("m\u00B2 \u00B5"), "m2 \u03BC");
  EXPECT_EQ(saslprep("\uFF30\uFF57\uFF01"), "Pw!");  // full width
  EXPECT_EQ(saslprep("\u00BD\u2026"), "1\u20442...");
}

TEST(SaslPrep, FallsBackToRaw) {
  for (std::string_view raw :
       {"\u00AD", "é\x07", "é\u00AD\uE000", "\uFFFDé", "\u200Eé", "\U0010FFFFé",
        // Not UTF-8: Latin-1, cut short, overlong, surrogate, beyond Unicode, stray continuation.
        "caf\xE9", "\xC3", "\xE2\x82", "\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80",
        "\xF8\x88\x80\x80\x80", "a\x80", "\xC3(", "\u00AD\xFF"}) {
    EXPECT_EQ(saslprep(raw), raw);
  }
}

}  // namespace
}  // namespace pgf::auth
