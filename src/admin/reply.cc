#include "admin/reply.h"

#include "wire/write.h"

namespace pgf::admin {

void error(std::string& out, std::string_view text, std::string_view sqlstate) {
  wire::error(out, "ERROR", sqlstate, text);
  wire::ready_for_query(out, 'I');
}

void done(std::string& out, std::string_view tag) {
  wire::command_complete(out, tag);
  wire::ready_for_query(out, 'I');
}

void help(std::string& out) {
  wire::notice(out, "Console usage", help_text());
  done(out, "SHOW");
}

void show_parameter(std::string& out, const Parameter& parameter) {
  const wire::Column column{parameter.name, 's'};
  wire::row_description(out, {&column, 1});
  wire::RowWriter(out).text(parameter.value);
  done(out, "SHOW");
}

void set_ignored(std::string& out) {
  wire::notice(out, "SET ignored");
  done(out, "SET");
}

}  // namespace pgf::admin
