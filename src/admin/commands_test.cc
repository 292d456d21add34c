#include "admin/commands.h"

#include <gmock/gmock.h>

#include "admin/reply.h"
#include "observe/answer_test.h"
#include "observe/views.h"

namespace pgf::admin {
namespace {

using observe::test::fields;
using observe::test::rows;
using observe::test::split;
using observe::test::types;
using testing::HasSubstr;

TEST(Commands, FindVerb) {
  for (const Verb& verb : verbs()) EXPECT_EQ(find_verb(verb.name), &verb);
  EXPECT_EQ(find_verb("select"), find_verb("Show"));
  EXPECT_FALSE(find_verb("SELECTS"));
  EXPECT_FALSE(find_verb("RELOA"));
  EXPECT_FALSE(find_verb(""));
}

TEST(Commands, TagsAreTheNames) {
  for (const Verb& verb : verbs()) EXPECT_EQ(verb.tag, verb.name);
}

TEST(Commands, WhichTakeDatabasesOfTheStar) {
  std::string creating;
  for (const Verb& verb : verbs())
    if (verb.creates_database) creating.append(verb.name).append(" ");
  EXPECT_EQ(creating, "PAUSE DISABLE RECONNECT WAIT_CLOSE KILL ");
}

TEST(Commands, WhichRefuseTheConsole) {
  EXPECT_EQ(find_verb("PAUSE")->console_refused, "cannot pause admin db: ");
  EXPECT_EQ(find_verb("DISABLE")->console_refused, "cannot disable admin db: ");
  EXPECT_EQ(find_verb("ENABLE")->console_refused, "cannot enable admin db: ");
  EXPECT_EQ(find_verb("KILL")->console_refused, "cannot kill admin db: ");
  EXPECT_EQ(find_verb("RECONNECT")->console_refused, "cannot reconnect admin db: ");
  EXPECT_EQ(find_verb("WAIT_CLOSE")->console_refused, "cannot wait in admin db: ");
  EXPECT_EQ(find_verb("RESUME")->console_refused, "");
}

TEST(Commands, HelpNamesEverything) {
  std::string text = help_text();
  for (const Verb& verb : verbs()) EXPECT_THAT(text, HasSubstr("\n\t" + std::string(verb.name)));
  for (const observe::View& view : observe::views()) EXPECT_THAT(text, HasSubstr("\n\tSHOW " + std::string(view.name)));
  EXPECT_THAT(text, HasSubstr("\n\tSHOW HELP\n"));
  EXPECT_THAT(text, HasSubstr("\n\tSET key = value\n"));
  EXPECT_THAT(text, HasSubstr("\n\tPAUSE [database]\n"));
  EXPECT_THAT(text, HasSubstr("\n\tDISABLE database\n"));
  EXPECT_THAT(text, HasSubstr("\n\tKILL_CLIENT id\n"));
  EXPECT_TRUE(text.ends_with("\n\tSHUTDOWN [WAIT_FOR_SERVERS|WAIT_FOR_CLIENTS]"));
}

TEST(Reply, HelpIsANotice) {
  std::string out;
  help(out);
  EXPECT_EQ(types(out), "NCZ");
  std::string notice = fields(split(out)[0].body);
  EXPECT_THAT(notice, HasSubstr("SNOTICE"));
  EXPECT_THAT(notice, HasSubstr("|MConsole usage"));
  EXPECT_THAT(notice, HasSubstr("|D\n\tSHOW HELP"));
  EXPECT_EQ(split(out)[1].body, std::string("SHOW\0", 5));
}

TEST(Reply, ErrorHasThreeFieldsAndTheClientMayGoOn) {
  std::string out;
  error(out, "no such database: x");
  ASSERT_EQ(types(out), "EZ");
  EXPECT_EQ(fields(split(out)[0].body), "SERROR|C08P01|Mno such database: x");
  EXPECT_EQ(split(out)[1].body, "I");
  out.clear();
  error(out, "RELOAD failed", kReloadFailed);
  EXPECT_EQ(fields(split(out)[0].body), "SERROR|CF0000|MRELOAD failed");
}

TEST(Reply, Done) {
  std::string out;
  done(out, "SET a=1");
  ASSERT_EQ(types(out), "CZ");
  EXPECT_EQ(split(out)[0].body, std::string("SET a=1\0", 8));
}

TEST(Reply, CompatibilityNames) {
  std::string out;
  show_parameter(out, *find_parameter("TIMEZONE"));
  ASSERT_EQ(types(out), "TDCZ");
  EXPECT_EQ(observe::test::columns(split(out)[0].body), "timezone s");
  EXPECT_EQ(rows(out).at(0), "GMT");
  out.clear();
  set_ignored(out);
  ASSERT_EQ(types(out), "NCZ");
  EXPECT_THAT(fields(split(out)[0].body), HasSubstr("|MSET ignored"));
  EXPECT_EQ(split(out)[1].body, std::string("SET\0", 4));
}

}  // namespace
}  // namespace pgf::admin
