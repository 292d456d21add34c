// Books of prepared statements against plain models of them; and SQL that forgets statements.
#include <deque>
#include <map>

#include "base/bytes.h"
#include "base/fuzz_kit.h"
#include "wire/prepared.h"

namespace {

using pgf::must;
using namespace pgf::wire;

// What is forgotten stays so in capitals, with blanks and a semicolon around it, and by the name in quotes.
void check_forgets(std::string_view sql) {
  const Forgets f = forgotten_by(sql);
  must(!(f.all && !f.name.empty()));
  must(f.name.size() < 64);
  if (!f.all && f.name.empty()) return;
  must(may_forget(static_cast<std::uint8_t>(sql.front())));
  const Forgets padded = forgotten_by(" \t" + std::string(sql) + " ");
  must(padded.all == f.all && padded.name == f.name);
  if (f.all) return;
  std::string quoted = "DEALLOCATE \"";
  for (char c : f.name) quoted.append(c == '"' ? 2 : 1, c);
  must(forgotten_by(quoted + "\";").name == f.name);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  pgf::Cursor in({data, size});
  StatementTable table;
  ClientStatements client;
  ServerStatements server;
  std::map<std::string, std::string> names;                 // of the client: name -> text
  std::deque<std::string> used;                             // its names, the newest use first
  std::deque<std::pair<std::string, std::uint32_t>> known;  // to the server: texts and their epochs
  std::vector<StatementPtr> held;                           // so that numbers stay
  auto find = [&](const std::string& text) {
    return std::ranges::find_if(known, [&](const auto& k) { return k.first == text; });
  };
  while (in.ok()) {
    const std::uint8_t op = in.u8();
    std::string name(1, static_cast<char>('a' + (op >> 5))), text(pgf::as_text(in.bytes(in.u8() % 32)));
    if (!in.ok()) break;
    const std::uint32_t epoch = op >> 4 & 1;
    StatementPtr s = table.intern(text);
    held.push_back(s);
    must(s->tail == text && s == table.intern(text) && s->server_name == "PGBOUNCER_" + std::to_string(s->id));
    switch (op & 15) {
      case 0:
      case 1:
        must(client.add(name, s) == names.emplace(name, text).second);
        if (std::ranges::find(used, name) == used.end()) used.push_front(name);
        break;
      case 2:
        must(client.remove(name) == (names.erase(name) > 0));
        std::erase(used, name);
        break;
      case 3:
      case 4: {
        StatementPtr found = client.find(name);
        must((found != nullptr) == names.contains(name));
        if (!found) break;
        must(found->tail == names[name]);
        std::erase(used, name);
        used.push_front(name);
        break;
      }
      case 5:
        must(client.forget_oldest() == (names.size() > 1));
        if (names.size() > 1) {
          names.erase(used.back());
          used.pop_back();
        }
        break;
      case 6:
      case 7: {
        server.add(s, epoch);
        if (auto it = find(text); it != known.end()) known.erase(it);
        known.emplace_front(text, epoch);
        break;
      }
      case 8: {
        auto it = find(text);
        must(server.remove(*s) == (it != known.end()));
        if (it != known.end()) known.erase(it);
        break;
      }
      case 9: {
        auto it = find(text);
        const bool ready = it != known.end() && it->second == epoch;
        must(server.has(*s) == (it != known.end()) && server.ready(*s, epoch) == ready &&
             server.use(*s, epoch) == ready);
        if (!ready) break;
        auto moved = *it;
        known.erase(it);
        known.push_front(moved);
        break;
      }
      case 10: {
        StatementPtr victim = server.evict(text.size());
        must((victim != nullptr) == (known.size() > text.size()));
        if (!victim) break;
        must(victim->tail == known.back().first);
        known.pop_back();
        break;
      }
      case 11:
        client.clear();
        names.clear();
        used.clear();
        break;
      case 12:
        server.clear();
        known.clear();
        break;
      case 13:
        held.clear();  // whoever is not in use is nobody's from here on
        break;
      default:
        check_forgets(text);
        check_forgets("DEALLOCATE " + text);
        break;
    }
    must(client.size() == names.size() && server.size() == known.size());
    auto expected = used.rbegin();
    client.each([&](const std::string& n, const Statement& st) { must(n == *expected++ && st.tail == names[n]); });
  }
  check_forgets(pgf::as_text({data, size}));
  std::size_t live = table.size();
  client.clear();
  server.clear();
  held.clear();
  must(live >= table.size() && table.size() == 0 && table.bytes() == 0);
  return 0;
}
