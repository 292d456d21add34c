// A line of an ident file means the same wherever it stands, whatever is in the others.

#include "auth/hba.h"
#include "base/fuzz_kit.h"

using pgf::must;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace pgf;
  const std::string_view text = as_text({data, size});
  const auth::IdentParsed whole = auth::parse_ident(text);
  auth::IdentMaps maps;
  bool broken = false;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    auth::IdentParsed line = auth::parse_ident(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    broken |= line.broken;
    for (const auto& [name, map] : line.maps) {
      auto& mine = maps[name];
      if (!mine) mine = std::make_shared<auth::IdentMap>();
      mine->insert(mine->end(), map->begin(), map->end());
    }
  }
  must(whole.broken == broken && whole.broken == !whole.warnings.empty() && whole.maps.size() == maps.size());
  for (const auto& [name, map] : whole.maps) {
    must(maps.contains(name) && map->size() == maps[name]->size());
    for (std::size_t i = 0; i < map->size(); ++i) {
      const auth::IdentMapping &a = (*map)[i], &b = (*maps[name])[i];
      must(a.system_user == b.system_user && a.user == b.user);
      must(!a.user || (a.allows(*a.user) && !a.allows(*a.user + "x")));
    }
  }
  return 0;
}
