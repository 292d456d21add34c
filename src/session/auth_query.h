#pragma once
// The password query of auth_query: what is sent for it, and what its answer may look like. The server that runs it is
// driven by Server::look_up, the client that waits for it by Client::start_lookup; both are in auth_query.cc too.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/bytes.h"

namespace pgf::session {

// Parse, Bind with the name as the only parameter, Describe, Execute, Sync. The name is all that a client adds: it has
// not proved anything yet (CVE-2025-12819).
void write_auth_query(std::string& out, std::string_view query, std::string_view user);

// Takes the answer message by message (type and body).
class AuthQueryReply {
 public:
  enum class Step {
    more,
    done,  // ReadyForQuery: found() tells
    bad,   // trouble() tells; the server must not be used any more
  };
  Step read(std::uint8_t type, Bytes body);

  bool found() const { return found_; }
  const std::string& user() const { return user_; }      // as the server writes it: this is who logs in
  const std::string& secret() const { return secret_; }  // empty = NULL: there is such a user, no password is right
  // Why the server has to go, as PgBouncer says it.
  const std::string& trouble() const { return trouble_; }
  // What the server complained about, "LEVEL: MESSAGE"; empty if it did not.
  const std::string& server_error() const { return server_error_; }

 private:
  Step bad(std::string reason) {
    trouble_ = std::move(reason);
    return Step::bad;
  }
  Step row(Bytes body);

  bool found_ = false;
  std::string user_, secret_, trouble_, server_error_;
};

}  // namespace pgf::session
