#pragma once
// THE table of console verbs (commands.cc). Data only: parse.cc reads the argument by its form, the control thread runs
// it.
#include <span>
#include <string>
#include <string_view>

namespace pgf::admin {

enum class Action {
  show,
  set,
  reload,
  pause,
  resume,
  suspend,
  disable,
  enable,
  kill,
  kill_client,
  reconnect,
  wait_close,
  shutdown
};

enum class Argument { none, optional_database, database, database_and_host, report, setting, client_id, shutdown_mode };

enum class Who { all, admin };  // all: admin_users and stats_users

struct Verb {
  std::string_view name;  // typed in any case
  Action action;
  Argument argument;
  Who who;
  std::string_view tag;              // of CommandComplete; SET of a setting adds ` k=v`
  bool creates_database;             // may the argument name a database that only `*` covers? It is registered then
  std::string_view console_refused;  // error, up to the name, for the console's own database; empty: allowed
};

std::span<const Verb> verbs();
const Verb* find_verb(std::string_view word);  // null: no such command. SELECT finds SHOW

// What clients of ordinary databases ask or set on connecting. SHOW gives a fixed value, SET is accepted and ignored.
struct Parameter {
  std::string_view name, value;
};
const Parameter* find_parameter(std::string_view name);

// The DETAIL of SHOW HELP: one command a line, made from this table and from observe::views().
std::string help_text();

}  // namespace pgf::admin
