#pragma once
// Builders: each appends one whole message to `out`. For login, errors, console and the rewriting of prepared
// statements.
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "base/bytes.h"

namespace pgf::wire {

void message(std::string& out, char type, std::string_view body);
void auth_ok(std::string& out);
void auth_cleartext(std::string& out);
void auth_md5(std::string& out, std::span<const std::uint8_t, 4> salt);
void auth_sasl(std::string& out, bool plus = false);  // mechanism list: SCRAM-SHA-256, …-PLUS before it
void auth_sasl_continue(std::string& out, std::string_view data);
void auth_sasl_final(std::string& out, std::string_view data);
void password_message(std::string& out, std::string_view password);  // adds the terminator
void sasl_message(std::string& out, std::string_view body);          // 'p' with a raw body
void parameter_status(std::string& out, std::string_view name, std::string_view value);
// The fixed ones of a console login (admin.md section 1); `version` like 1.25.2.
void console_parameter_status(std::string& out, std::string_view version);
void backend_key_data(std::string& out, Bytes key);
void negotiate_protocol_version(std::string& out, std::uint32_t version, std::span<const std::string> unknown);
void ready_for_query(std::string& out, char status);
void query(std::string& out, std::string_view sql);
void terminate(std::string& out);
// Fields S, C, M only, as PgBouncer sends them. severity "FATAL"/"ERROR"; notice() has severity NOTICE, code 00000.
void error(std::string& out, std::string_view severity, std::string_view sqlstate, std::string_view text,
           std::string_view detail = {});
void notice(std::string& out, std::string_view text, std::string_view detail = {});
void command_complete(std::string& out, std::string_view tag);
void empty_query(std::string& out);

// Extended protocol, for hidden Parse/Close and auth_query.
void parse(std::string& out, std::string_view name, std::string_view query_and_types);  // tail = query NUL count oids
void close_statement(std::string& out, std::string_view name);
void bind_text(std::string& out, std::span<const std::string_view> parameters);  // unnamed portal and statement
void describe_portal(std::string& out);
void execute(std::string& out);
void sync(std::string& out);
void parse_complete(std::string& out);
void close_complete(std::string& out);

// Console result sets. Column types as admin.md: 's' text 25, 'i' int4, 'q' int8, 'N' numeric, 'b' bytea, 'T' text.
struct Column {
  std::string_view name;
  char type;
};
void row_description(std::string& out, std::span<const Column> columns);
class RowWriter {  // one DataRow, finished by the destructor or end()
 public:
  explicit RowWriter(std::string& out);
  ~RowWriter() { end(); }
  RowWriter& text(std::string_view value);
  RowWriter& number(std::int64_t value);
  RowWriter& null();
  void end();

 private:
  std::string& out_;
  std::size_t start_;
  std::uint16_t count_ = 0;
  bool done_ = false;
};

}  // namespace pgf::wire
