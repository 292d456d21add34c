#pragma once
#include "session/auth_query.h"
#include "session/client.h"

namespace pgf::session {

// State that only a login needs.
struct Client::Login {
  std::string user, database;
  bool started = false, database_known = false, console = false;
  std::optional<config::Database> entry;
  std::string stored;  // the user's secret as written; empty if none
  bool user_known = false;
  std::unique_ptr<AuthQueryReply> lookup;  // while auth_query runs
  auth::Secret secret;
  config::AuthType method = config::AuthType::md5;  // what was asked of the client
  std::shared_ptr<const auth::IdentMap> map;        // of the hba rule, with its name
  std::string map_name;
  std::string ldap_options;  // of the hba rule, or the setting
  std::string password;      // while PAM or LDAP judges it
  std::array<std::uint8_t, 4> salt{};
  std::optional<auth::ScramServer> scram;
  bool scram_first_done = false;
  bool genuine_scram_secret = false;  // stored as a SCRAM secret: its keys may be passed through
  std::vector<std::string> pq_options;
  std::uint16_t minor = 0;
  // How long its parts took, for log_slow_login; `asked` is when auth_query, PAM or LDAP was asked.
  Usec asked = 0, lookup_time = 0, judge_time = 0, authenticated = 0;
  std::string options;  // of a replication client: for its server, as they are
  // For mock logins the log does not show which database was asked for.
  std::string_view shown_database() const { return database_known ? std::string_view(database) : std::string_view(); }
};

}  // namespace pgf::session
