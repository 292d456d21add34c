// What a client wants against what a server has. The SQL that makes them equal is read back as PostgreSQL would read
// it: nothing but the SETs that were meant may be in it, whatever the values hold.
#include <strings.h>

#include <cstdlib>
#include <map>
#include <optional>

#include "base/bytes.h"
#include "base/fuzz_kit.h"
#include "wire/params.h"

using pgf::must;

namespace {

// A string literal at the front of `sql`, and what it stands for.
std::string take_literal(std::string_view& sql, bool conforming) {
  bool escapes = !conforming;
  if (sql.starts_with('E')) {
    escapes = true;
    sql.remove_prefix(1);
  }
  must(sql.starts_with('\''));
  std::string value;
  for (std::size_t i = 1; i < sql.size(); ++i) {
    if (sql[i] == '\\' && escapes) {
      must(++i < sql.size() && sql[i] == '\\');
    } else if (sql[i] == '\'') {
      if (i + 1 == sql.size() || sql[i + 1] != '\'') {
        sql.remove_prefix(i + 1);
        return value;
      }
      ++i;
    }
    value += sql[i];
  }
  std::abort();  // it has no end
}

void take(std::string_view& sql, std::string_view text) {
  must(sql.starts_with(text));
  sql.remove_prefix(text.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace pgf::wire;
  pgf::Cursor in({data, size});
  std::string extra(pgf::as_text(in.bytes(in.u8())));
  ParamNames names(extra + ",search_path");
  for (int i = 0; i < names.size(); ++i) must(names.find(names.name(i)) == i);  // each once
  ParamSet client(names.size()), server(names.size());
  while (in.ok()) {
    const std::uint8_t what = in.u8();
    std::string value(pgf::as_text(in.bytes(in.u8())));
    if (!in.ok() || value.contains('\0')) break;  // no protocol message brings such a one
    (what & 1 ? client : server).set(what / 2 % names.size(), value);
  }
  const std::string sql = params_diff_sql(names, client, server);
  must(sql.empty() == params_match(client, server));
  const bool conforming = server.get(3) && *server.get(3) == "on";

  std::string_view rest = sql;
  for (int i = 0; i < names.size(); ++i) {
    const auto &mine = client.get(i), &theirs = server.get(i);
    const std::string set = "SET " + names.name(i) + "=", search = "SELECT pg_catalog.set_config('search_path',";
    const bool path = strcasecmp(names.name(i).c_str(), "search_path") == 0;
    if (!rest.starts_with(path ? search : set) || !mine || !theirs || *mine == *theirs) {
      // Not set: then it does not differ, by case at most.
      must(!mine || !theirs || mine->size() == theirs->size());
      continue;
    }
    take(rest, path ? search : set);
    must(take_literal(rest, conforming) == (path && *mine == "\"\"" ? "" : *mine));
    take(rest, path ? ",false);" : ";");
    server.set(i, *mine);
  }
  must(rest.empty());
  must(params_match(client, server) && params_diff_sql(names, client, server).empty());
  ParamSet filled = client;
  filled.fill_from(server);
  for (int i = 0; i < names.size(); ++i) must(filled.get(i) == (client.get(i) ? client.get(i) : server.get(i)));
  return 0;
}
