#include "admin/commands.h"

#include <strings.h>

#include "observe/views.h"

namespace pgf::admin {
namespace {

// name, action, argument, who, tag, creates_database, console_refused. HELP keeps this order.
constexpr Verb kVerbs[] = {
    {"SHOW", Action::show, Argument::report, Who::all, "SHOW", false, ""},
    {"SET", Action::set, Argument::setting, Who::admin, "SET", false, ""},
    {"RELOAD", Action::reload, Argument::none, Who::admin, "RELOAD", false, ""},
    {"PAUSE", Action::pause, Argument::optional_database, Who::admin, "PAUSE", true, "cannot pause admin db: "},
    {"RESUME", Action::resume, Argument::optional_database, Who::admin, "RESUME", false, ""},
    {"SUSPEND", Action::suspend, Argument::none, Who::admin, "SUSPEND", false, ""},
    {"DISABLE", Action::disable, Argument::database, Who::admin, "DISABLE", true, "cannot disable admin db: "},
    {"ENABLE", Action::enable, Argument::database, Who::admin, "ENABLE", false, "cannot enable admin db: "},
    {"RECONNECT", Action::reconnect, Argument::database_and_host, Who::admin, "RECONNECT", true,
     "cannot reconnect admin db: "},
    {"WAIT_CLOSE", Action::wait_close, Argument::optional_database, Who::admin, "WAIT_CLOSE", true,
     "cannot wait in admin db: "},
    {"KILL", Action::kill, Argument::optional_database, Who::admin, "KILL", true, "cannot kill admin db: "},
    {"KILL_CLIENT", Action::kill_client, Argument::client_id, Who::admin, "KILL_CLIENT", false, ""},
    {"SHUTDOWN", Action::shutdown, Argument::shutdown_mode, Who::admin, "SHUTDOWN", false, ""},
};

constexpr Parameter kParameters[] = {
    {"client_encoding", "UTF-8"},
    {"default_transaction_isolation", "read committed"},
    {"standard_conforming_strings", "on"},
    {"datestyle", "ISO"},
    {"timezone", "GMT"},
};

bool same(std::string_view a, std::string_view b) {
  return a.size() == b.size() && strncasecmp(a.data(), b.data(), a.size()) == 0;
}

std::string_view usage(Argument argument) {
  switch (argument) {
    case Argument::none:
    case Argument::report:
      return "";  // reports are listed by name
    case Argument::optional_database:
      return " [database]";
    case Argument::database:
      return " database";
    case Argument::database_and_host:
      return " [database] [host=name [port=number]]";
    case Argument::setting:
      return " key = value";
    case Argument::client_id:
      return " id";
    case Argument::shutdown_mode:
      return " [WAIT_FOR_SERVERS|WAIT_FOR_CLIENTS]";
  }
  return "";
}

}  // namespace

std::span<const Verb> verbs() { return kVerbs; }

const Verb* find_verb(std::string_view word) {
  if (same(word, "SELECT")) word = "SHOW";
  for (const Verb& verb : kVerbs)
    if (same(verb.name, word)) return &verb;
  return nullptr;
}

const Parameter* find_parameter(std::string_view name) {
  for (const Parameter& parameter : kParameters)
    if (same(parameter.name, name)) return &parameter;
  return nullptr;
}

std::string help_text() {
  std::string text;
  auto line = [&](auto... parts) {
    text += "\n\t";
    (text.append(parts), ...);
  };
  for (const Verb& verb : kVerbs) {
    if (verb.argument != Argument::report) {
      line(verb.name, usage(verb.argument));
      continue;
    }
    line(verb.name, " HELP");
    for (const observe::View& view : observe::views()) line(verb.name, " ", view.name);
  }
  return text;
}

}  // namespace pgf::admin
