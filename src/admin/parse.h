#pragma once
// From the text of a simple query to one console command. Pure: knows the tables, touches nothing.
#include <cstdint>
#include <expected>
#include <string>
#include <string_view>

#include "admin/commands.h"
#include "observe/views.h"

namespace pgf::admin {

enum class ShutdownMode { now, wait_for_servers, wait_for_clients };

struct Command {
  const Verb* verb = nullptr;            // never null in a parsed command
  std::string database = {};             // as typed; empty: none given, all are meant
  bool help = false;                     // SHOW HELP, else …
  const observe::View* view = nullptr;   // … SHOW of a report, or …
  const Parameter* parameter = nullptr;  // … SHOW or SET of a compatibility name
  std::string key = {}, value = {};      // SET, as typed
  std::uint64_t client_id = 0;
  std::string host = {};  // as typed; empty: all
  int port = 0;           // of that host; 0: any
  ShutdownMode shutdown = ShutdownMode::now;
  std::string_view problem = {};  // with the argument; rights are looked at before it is told

  bool needs_admin() const;  // otherwise stats_users may run it too
  std::string tag() const;   // for CommandComplete
};

// The error is the text for the client.
std::expected<Command, std::string> parse(std::string_view text);

}  // namespace pgf::admin
