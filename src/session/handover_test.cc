#include "session/handover.h"

#include <gtest/gtest.h>

namespace pgf::session {
namespace {

TEST(Handover, FieldsComeBackInOrder) {
  wire::ParamNames names("search_path");
  wire::ParamSet given(names.size()), got(names.size());
  given.set(names.find("TimeZone"), "Asia/Tokyo");
  given.set(names.find("search_path"), std::string_view("a\0b", 3));
  std::string state = Pack().number(7).text("").text("x").params(names, given).number(~0ull).take();
  Unpack in(state);
  EXPECT_EQ(in.number(), 7u);
  EXPECT_EQ(in.text(), "");
  EXPECT_EQ(in.text(), "x");
  in.params(names, got);
  EXPECT_EQ(in.number(), ~0ull);
  EXPECT_FALSE(in.failed());
  EXPECT_EQ(*got.get(names.find("timezone")), "Asia/Tokyo");
  EXPECT_EQ(got.get(names.find("search_path"))->size(), 3u);
  EXPECT_EQ(got.get(names.find("application_name")), nullptr);
}

TEST(Handover, UntrackedParametersAreLeftOut) {
  wire::ParamNames more("extra"), fewer("");
  wire::ParamSet given(more.size()), got(fewer.size());
  given.set(more.find("extra"), "1");
  std::string state = Pack().params(more, given).number(5).take();
  Unpack in(state);
  in.params(fewer, got);
  EXPECT_EQ(in.number(), 5u);
  EXPECT_FALSE(in.failed());
}

TEST(Handover, CutStatesFailAndSayNothing) {
  wire::ParamNames names("");
  wire::ParamSet given(names.size());
  given.set(0, "ISO");
  const std::string whole = Pack().number(1).text("held").params(names, given).take();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    std::string cut = whole.substr(0, size);
    wire::ParamSet got(names.size());
    Unpack in(cut);
    in.number();
    in.text();
    in.params(names, got);
    EXPECT_TRUE(in.failed()) << size;
    EXPECT_EQ(got.get(0), nullptr) << size;
    EXPECT_EQ(in.number(), 0u);
    EXPECT_EQ(in.text(), "");
  }
}

}  // namespace
}  // namespace pgf::session
