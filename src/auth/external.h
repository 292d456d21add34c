#pragma once
#include <string>

namespace pgf::auth {

// A password that somebody else has to judge, which takes as long as it takes: not in a worker's thread.
struct ExternalRequest {
  enum class Method { pam, ldap } method = Method::pam;
  std::string user, password;
  std::string peer;     // address of the client, for PAM's rules and its log
  std::string options;  // ldap: server and search
};

}  // namespace pgf::auth
