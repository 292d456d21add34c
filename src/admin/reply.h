#pragma once
// Whole answers of the console, each up to and including ReadyForQuery (but for the login part).
#include <string>
#include <string_view>

#include "admin/commands.h"

namespace pgf::admin {

inline constexpr std::string_view kProtocolViolation = "08P01";  // SQLSTATE of nearly every console error
inline constexpr std::string_view kReloadFailed = "F0000";

void error(std::string& out, std::string_view text, std::string_view sqlstate = kProtocolViolation);
void done(std::string& out, std::string_view tag);
void help(std::string& out);  // SHOW HELP
void show_parameter(std::string& out, const Parameter& parameter);
void set_ignored(std::string& out);  // SET of a compatibility name

}  // namespace pgf::admin
