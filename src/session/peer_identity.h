#pragma once
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace pgf::session {

// What is known about the other end of a client's connection besides its address. The rules of auth_hba_file (hostssl,
// hostnossl, cert) and auth_type=cert go by it.
struct PeerIdentity {
  bool tls = false;
  bool certificate = false;                    // it showed one, and it was verified
  std::vector<std::string> certificate_names;  // common name and alternative names

  bool is_named(std::string_view name) const {
    return std::ranges::find(certificate_names, name) != certificate_names.end();
  }
};

}  // namespace pgf::session
