#pragma once
// auth_hba_file and auth_ident_file: who may log in to what, from where, and how he has to prove it. Text in, rules
// out; included files are read through a function, so that parsing stays pure.
//
//   line    = type databases users [address] method [map=NAME]     (address: all types but local)
//   type    = local | host | hostssl | hostnossl
//   names   = name { "," name };  name = all | sameuser | replication | word | "quoted" | @file
//   address = all | ADDRESS/BITS | ADDRESS MASK
//   method  = trust | reject | password | md5 | scram-sha-256 | cert | peer | ldap OPTIONS
// The first line that fits decides. "#" begins a comment, quoted words have no special meaning.
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"

namespace pgf::auth {

enum class HbaMethod { trust, reject, password, md5, scram_sha_256, cert, peer, ldap };

// One line of a map: who this is to the system (or in his certificate), and who he may be here.
struct IdentMapping {
  std::string system_user;
  std::optional<std::string> user;  // nothing = anybody
  bool allows(std::string_view name) const { return !user || *user == name; }
};
using IdentMap = std::vector<IdentMapping>;
using IdentMaps = std::map<std::string, std::shared_ptr<IdentMap>, std::less<>>;

struct HbaNames {
  bool all = false, same_user = false, replication = false;
  std::set<std::string, std::less<>> names;
  // `other` is what sameuser compares with: the user for a database, and the other way round.
  bool match(std::string_view name, std::string_view other) const {
    return all || (same_user && name == other) || names.contains(name);
  }
};

struct HbaAddress {
  std::size_t size = 0;  // 4 or 16 bytes; 0 = every address
  std::array<std::uint8_t, 16> base{}, mask{};
  bool match(Bytes address) const;
};

// Who wants to log in.
struct HbaRequest {
  bool local = false;  // Unix socket
  bool tls = false;
  bool physical_replication = false;
  Bytes address;  // 4 or 16 bytes, in network order; not used for local
  std::string_view database, user;
};

struct HbaRule {
  enum class Type { local, host, hostssl, hostnossl } type = Type::local;
  HbaNames databases, users;
  HbaAddress address;
  HbaMethod method = HbaMethod::reject;
  std::string map_name;
  std::shared_ptr<const IdentMap> map;  // of cert and peer; none = names have to be equal
  std::string options;                  // ldap: the rest of the line
  int line = 0;

  bool match(const HbaRequest& request) const;
};

struct Hba {
  std::vector<HbaRule> rules;
  const HbaRule* match(const HbaRequest& request) const;  // null: nobody said that he may
};

// Parsing goes on behind a line that it does not understand. `broken`: there was one.
struct IdentParsed {
  IdentMaps maps;
  bool broken = false;
  std::vector<std::string> warnings;
};
IdentParsed parse_ident(std::string_view text);

struct HbaParsed {
  Hba hba;
  bool broken = false;
  std::vector<std::string> warnings;
};
using ReadFile = std::function<std::optional<std::string>(const std::string& path)>;
// `path` is where the text is from: relative names behind "@" are looked for beside it.
HbaParsed parse_hba(std::string_view text, const std::string& path, const IdentMaps& maps, const ReadFile& read);

}  // namespace pgf::auth
