#pragma once
// One line of [databases], [users] or [peers]. Errors are the reason in words, without file and line.
#include <expected>
#include <string>
#include <string_view>

#include "config/config.h"

namespace pgf::config {

std::expected<Database, std::string> parse_database(std::string_view name, std::string_view connstring);
std::expected<User, std::string> parse_user(std::string_view name, std::string_view connstring);
std::expected<Peer, std::string> parse_peer(std::string_view id, std::string_view connstring);

}  // namespace pgf::config
