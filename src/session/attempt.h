#pragma once
// One connection attempt of a pool: which hosts and addresses are still to be tried, and what became of the others. It
// goes from server to server (each tries one address) until one has logged in or none is left.
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "net/socket.h"
#include "pool/hosts.h"
#include "session/env.h"

namespace pgf::session {

struct Attempt {
  struct Element {  // a copy: RELOAD may change the list meanwhile
    std::string host;
    int port;
    std::shared_ptr<pool::Place> place;
  };
  std::vector<Element> elements;
  std::vector<std::size_t> order;
  config::TargetSession target = config::TargetSession::any;  // `any` in the second round of prefer-standby
  std::size_t at = 0;                                         // in order: the next host
  std::vector<net::Address> addresses;                        // of the present one
  std::size_t next = 0;                                       // in addresses
  std::set<std::string> tried;
  bool choice = false;  // there is more than one address: each gets less patience
  bool second_walk = false;
  bool left_out = false, left_returning = false;  // addresses that the first walk passed over
  bool mismatched = false;                        // some server is not what target_session_attrs asks for
  std::string report;                             // of all failures, in libpq's manner
  std::string refused;                            // SQLSTATE of the first refusal that waiting will not mend

  // All hosts are through: is there another walk? First those that were passed over; then, for prefer-standby, all.
  bool again();
  void note(std::string_view text);
};

// The elements of an entry's host list; without one, its Unix socket.
std::vector<Attempt::Element> list_hosts(Env& env, const config::Database& entry);
bool is_socket(std::string_view host);
// What a host means without a question to DNS: a Unix socket (nothing, if its path is too long) or a literal.
std::optional<net::Address> known_address(std::string_view host, int port);
// As pool::Hosts knows it.
std::string address_key(const net::Address& address);
std::optional<net::Address> parse_address_key(const std::string& key);

}  // namespace pgf::session
