#pragma once
// THE table of what we say to clients on our own account. Texts are PgBouncer's where it has one (people match on
// them); the SQLSTATE is PostgreSQL's for the situation, so that drivers react rightly
// (docs/decisions/0003-sqlstates.md). A text that needs a name in it is completed by the caller.
#include <string_view>

namespace pgf {

struct Say {
  std::string_view sqlstate, text;
};

namespace say {
// protocol
inline constexpr Say old_protocol{"0A000", "old V2 protocol not supported"};
inline constexpr Say no_user{"28000", "no username supplied"};
inline constexpr Say user_too_long{"08P01", "username too long"};
inline constexpr Say database_too_long{"08P01", "database name too long"};
inline constexpr Say startup_twice{"08P01", "client re-sent startup pkt"};
inline constexpr Say unknown_message{"08P01", "unknown pkt"};
inline constexpr Say no_pqexec{"08P01", "PQexec disallowed"};
inline constexpr Say ssl_required{"28000", "SSL required"};
inline constexpr Say ssl_injection{"08P01", "received unencrypted data after SSL request"};
inline constexpr Say gss_injection{"08P01", "received unencrypted data after GSSAPI encryption request"};
inline constexpr Say password_first{"08P01", "client password pkt before startup packet"};
// authentication
inline constexpr Say bad_password{"28P01", "password authentication failed"};
inline constexpr Say bad_sasl{"28P01", "SASL authentication failed"};
inline constexpr Say bad_trust{"28P01", "\"trust\" authentication failed"};
inline constexpr Say empty_password{"28P01", "empty password returned by client"};
inline constexpr Say config_error{"08P01", "bouncer config error"};
inline constexpr Say no_such_user{"28P01", "no such user"};
inline constexpr Say auth_database_disabled{"57P03", "authentication database is disabled"};  // completed by a name
inline constexpr Say no_hba_line{"28000", "no authentication method is found"};
inline constexpr Say login_rejected{"28000", "login rejected"};
inline constexpr Say bad_pam{"28000", "PAM authentication failed"};
inline constexpr Say bad_ldap{"28000", "LDAP authentication failed"};
inline constexpr Say no_ldap_options{"08P01", "auth_ldap_options is null"};
inline constexpr Say bad_peer{"28000", "unix socket login rejected"};
inline constexpr Say bad_certificate{"28000", "certificate authentication failed"};
inline constexpr Say not_allowed{"42501", "not allowed"};
// limits
inline constexpr Say max_clients{"53300", "no more connections allowed (max_client_conn)"};
inline constexpr Say max_db_clients{"53300", "client connections exceeded (max_db_client_connections)"};
inline constexpr Say max_user_clients{"53300", "client connections exceeded (max_user_client_connections)"};
inline constexpr Say no_memory{"53200", "out of memory"};
// timeouts
inline constexpr Say query_wait_timeout{"08P01", "query_wait_timeout"};
inline constexpr Say query_timeout{"57014", "query timeout"};
inline constexpr Say query_timeout_queued{"57014", "query_timeout"};
inline constexpr Say idle_transaction_timeout{"25P03", "idle transaction timeout"};
inline constexpr Say transaction_timeout{"25P04", "transaction timeout"};
inline constexpr Say client_idle_timeout{"57P05", "client_idle_timeout"};
inline constexpr Say client_login_timeout{"08P01", "client_login_timeout"};
inline constexpr Say client_login_timeout_server{"08P01", "client_login_timeout (server down)"};
// servers
inline constexpr Say server_gone{"08P01", "server conn crashed?"};
inline constexpr Say login_failed{"08P01", "login failed"};  // of a replication connection; the server's code if any
inline constexpr Say statement_mode{"08P01", "transaction blocks not allowed in statement pooling mode"};
inline constexpr Say bad_parameter{"08P01", "invalid server parameter"};
inline constexpr Say database_changed{"08P01", "database configuration changed"};
inline constexpr Say database_removed{"57P01", "database removed"};
inline constexpr Say forced{"57P01", "admin forced disconnect"};
inline constexpr Say shutting_down{"57P03", "pooler is shutting down"};
inline constexpr Say server_shutting_down{"57P03", "server shutting down"};
inline constexpr Say cancelled{"57014", "canceling statement due to user request"};
// prepared statements
inline constexpr Say statement_in_use{"08P01", "prepared statement name is already in use"};
inline constexpr Say statement_unknown{"08P01", "prepared statement did not exist"};
inline constexpr Say statement_memory{
    "53200", "no memory left for prepared statements (max_prepared_statement_memory); close some"};
inline constexpr Say broken_parse{"08P01", "broken Parse packet"};
inline constexpr Say broken_bind{"08P01", "broken Bind packet"};
inline constexpr Say broken_describe{"08P01", "broken Describe packet"};
inline constexpr Say broken_close{"08P01", "broken Close packet"};
}  // namespace say

}  // namespace pgf
