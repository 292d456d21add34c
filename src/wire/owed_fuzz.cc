// The ring of owed answers against a plain queue, and the rules that everything hangs on: whatever was asked for, a
// ReadyForQuery settles something, and nobody's entry is lost or undone twice.
#include <deque>

#include "base/bytes.h"
#include "base/fuzz_kit.h"
#include "wire/owed.h"

using pgf::must;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace pgf::wire;
  struct Entry {
    Ask ask;
    Give give;
    std::string name;
  };
  Owed owed;
  std::deque<Entry> model;
  StatementTable table;
  for (std::size_t i = 0; i < size; ++i) {
    const std::uint8_t op = data[i], more = op >> 3;
    switch (op & 7) {
      case 0:
      case 1:
      case 2: {
        Entry e{static_cast<Ask>(more % 9), static_cast<Give>(more / 9 % 3), {}};
        if (op & 1) e.name += static_cast<char>('a' + more);
        owed.push(e.ask, e.give, op & 2 ? table.intern(e.name) : nullptr, e.name);
        model.push_back(e);
        break;
      }
      case 3: {
        const std::string_view answers = "ZCIs123TnGE";
        const char type = answers[more % answers.size()];
        if (!owed.completes_front(static_cast<std::uint8_t>(type))) break;
        must(!model.empty() && owed.drop_front() == model.front().give);
        model.pop_front();
        break;
      }
      case 4:
        if (model.empty()) break;
        must(owed.pop().name == model.front().name);
        model.pop_front();
        break;
      case 5: {  // ReadyForQuery
        while (!model.empty() && model.front().ask == Ask::copy_end) model.pop_front();
        const bool settles = owed.completes_front('Z');
        std::size_t undone = 0, skipped = 0;
        if (!model.empty() && (model.front().ask == Ask::query || model.front().ask == Ask::sync ||
                               model.front().ask == Ask::function_call)) {
          model.pop_front();
        } else {
          while (!model.empty()) {
            const Ask ask = model.front().ask;
            model.pop_front();
            if (ask == Ask::sync) break;
            ++skipped;
          }
        }
        owed.drop_through_ready([&](Owed::Entry&) { ++undone; });
        must(!settles || undone == 0);
        must(undone == skipped);
        break;
      }
      case 6: {
        // All that leave_copy() takes away is the Execute, Syncs and one end of the copy, from the front.
        const std::size_t before = owed.size();
        const bool sync_inside = owed.sync_inside_copy();
        const bool query =
            !model.empty() && (model.front().ask == Ask::query || model.front().ask == Ask::function_call);
        std::size_t at = query ? 1 : !model.empty() && model.front().ask == Ask::execute ? 1 : 0, gone = query ? 0 : at;
        auto leave = [&] {
          model.erase(model.begin() + static_cast<std::ptrdiff_t>(at - gone));
          ++gone, ++at;
        };
        if (!query && at == 1) model.pop_front();
        while (at - gone < model.size() && model[at - gone].ask == Ask::sync) leave();
        const bool ended = at - gone < model.size() && model[at - gone].ask == Ask::copy_end;
        if (ended) leave();
        must(owed.leave_copy() == ended && owed.size() + gone == before);
        if (sync_inside && at == gone && before > 0) must(owed.size() <= before);
        break;
      }
      default:
        if (more == 30) {  // ErrorResponse
          while (!model.empty() && model.front().ask == Ask::copy_end) model.pop_front();
          owed.drop_copy_ends();
          std::size_t undone = 0;
          owed.skip_after_error([&](Owed::Entry&) {
            ++undone;
            model.pop_front();
          });
          must(undone == 0 || owed.front().ask == Ask::sync);
        } else if (more == 31) {
          owed.clear();
          model.clear();
        } else {
          owed.drop_copy_ends();
          while (!model.empty() && model.front().ask == Ask::copy_end) model.pop_front();
        }
    }
    must(owed.size() == model.size() && owed.empty() == model.empty());
    std::size_t at = 0;
    bool unnamed = false;
    owed.each([&](const Owed::Entry& e) {
      must(at < model.size() && e.ask == model[at].ask && e.give == model[at].give && e.name == model[at].name);
      unnamed |= e.ask == Ask::parse && !e.statement;
      ++at;
    });
    must(at == model.size() && owed.holds_unnamed_parse() == unnamed);
    at = 0;
    owed.each_behind_front([&](Owed::Entry&) { ++at; });
    must(at == (model.empty() ? 0 : model.size() - 1));
  }
  owed.clear();
  must(table.size() == 0);  // nothing is held by an entry that is gone
  return 0;
}
