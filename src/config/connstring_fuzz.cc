// Right-hand sides of [databases], [users] and [peers].

#include "base/bytes.h"
#include "base/fuzz_kit.h"
#include "config/connstring.h"
#include "config/entries.h"
#include "config/limits.h"

using pgf::must;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace pgf::config;
  const std::string_view all = pgf::as_text({data, size});
  const std::size_t cut = std::min(all.find('\n'), all.size());
  const std::string_view name = all.substr(0, cut), text = all.substr(std::min(cut + 1, all.size()));

  auto pairs = parse_connstring(text);
  if (pairs) {  // written out again with every value in quotes, it says the same
    std::string again;
    for (const Pair& p : *pairs) {
      must(!p.key.empty() && !p.value.empty() && p.key.find_first_of(" =") == p.key.npos);
      again += "  " + p.key + " =  '";
      for (char c : p.value) again.append(c == '\'' ? 2 : 1, c);
      again += '\'';
    }
    auto twice = parse_connstring(again);
    must(twice && twice->size() == pairs->size());
    for (std::size_t i = 0; i < pairs->size(); ++i)
      must((*twice)[i].key == (*pairs)[i].key && (*twice)[i].value == (*pairs)[i].value);
    for (const Pair& p : *pairs)
      if (p.key == "password") must(without_secrets(text) != text);
  }

  if (auto db = parse_database(name, text)) {
    must(pairs && db->name == name && name.size() <= kMaxDatabaseName && db->dbname.size() <= kMaxDatabaseName);
    must(db->ports.size() == 1 || db->ports.size() == db->hosts.size());
    for (int port : db->ports) must(port >= 1 && port <= 65535);
    for (const std::string& host : db->hosts) must(!host.empty());
    if (db->user) must(db->user->size() <= kMaxUserName);
    must(!needs_new_servers(*db, *db));
    Config config{};
    must(!hosts_of(*db, config.settings).empty());
    PoolPolicy policy = resolve(config, *db, "somebody");
    if (db->pool_size) must(policy.pool_size == *db->pool_size);
  } else {
    must(!db.error().empty());
  }
  if (auto user = parse_user(name, text))
    must(pairs && user->name == name && name.size() <= kMaxUserName);
  else
    must(!user.error().empty());
  if (auto peer = parse_peer(name, text))
    must(pairs && peer->id >= 0 && peer->id <= 65535 && (peer->id > 0) == (name != "*") && !peer->host.empty());
  else
    must(!peer.error().empty());
  return 0;
}
