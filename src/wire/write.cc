#include "wire/write.h"

#include <charconv>

namespace pgf::wire {
namespace {

void be32(std::string& out, std::uint32_t v) {
  std::uint8_t b[4];
  store_be32(b, v);
  out.append(reinterpret_cast<char*>(b), 4);
}
void be16(std::string& out, std::uint16_t v) {
  std::uint8_t b[2];
  store_be16(b, v);
  out.append(reinterpret_cast<char*>(b), 2);
}
void cstr(std::string& out, std::string_view s) { out.append(s).append(1, '\0'); }

// Type byte and a place for the length, which the destructor fills in.
class Message {
 public:
  Message(std::string& out, char type) : out_(out), start_(out.size()) {
    out += type;
    out.append(4, '\0');
  }
  ~Message() {
    store_be32(reinterpret_cast<std::uint8_t*>(out_.data()) + start_ + 1,
               static_cast<std::uint32_t>(out_.size() - start_ - 1));
  }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;

 private:
  std::string& out_;
  std::size_t start_;
};

void auth(std::string& out, std::uint32_t code, std::string_view rest = {}) {
  Message m(out, 'R');
  be32(out, code);
  out.append(rest);
}

}  // namespace

void message(std::string& out, char type, std::string_view body) {
  Message m(out, type);
  out.append(body);
}

void auth_ok(std::string& out) { auth(out, 0); }
void auth_cleartext(std::string& out) { auth(out, 3); }
void auth_md5(std::string& out, std::span<const std::uint8_t, 4> salt) { auth(out, 5, as_text(salt)); }
void auth_sasl(std::string& out, bool plus) {
  std::string_view list("SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0", 34);
  auth(out, 10, plus ? list : list.substr(19));
}
void auth_sasl_continue(std::string& out, std::string_view data) { auth(out, 11, data); }
void auth_sasl_final(std::string& out, std::string_view data) { auth(out, 12, data); }

void password_message(std::string& out, std::string_view password) {
  Message m(out, 'p');
  cstr(out, password);
}
void sasl_message(std::string& out, std::string_view body) { message(out, 'p', body); }

void parameter_status(std::string& out, std::string_view name, std::string_view value) {
  Message m(out, 'S');
  cstr(out, name);
  cstr(out, value);
}

void console_parameter_status(std::string& out, std::string_view version) {
  parameter_status(out, "server_version", std::string(version) + "/bouncer");
  parameter_status(out, "client_encoding", "UTF8");
  parameter_status(out, "server_encoding", "UTF8");
  parameter_status(out, "DateStyle", "ISO");
  parameter_status(out, "TimeZone", "GMT");
  parameter_status(out, "standard_conforming_strings", "on");
  parameter_status(out, "is_superuser", "on");
}

void backend_key_data(std::string& out, Bytes key) { message(out, 'K', as_text(key)); }

void negotiate_protocol_version(std::string& out, std::uint32_t version, std::span<const std::string> unknown) {
  Message m(out, 'v');
  be32(out, version);
  be32(out, static_cast<std::uint32_t>(unknown.size()));
  for (const std::string& name : unknown) cstr(out, name);
}

void ready_for_query(std::string& out, char status) { message(out, 'Z', {&status, 1}); }

void query(std::string& out, std::string_view sql) {
  Message m(out, 'Q');
  cstr(out, sql);
}

void terminate(std::string& out) { message(out, 'X', {}); }

void error(std::string& out, std::string_view severity, std::string_view sqlstate, std::string_view text,
           std::string_view detail) {
  Message m(out, 'E');
  out += 'S';
  cstr(out, severity);
  out += 'C';
  cstr(out, sqlstate);
  out += 'M';
  cstr(out, text);
  if (!detail.empty()) {
    out += 'D';
    cstr(out, detail);
  }
  out += '\0';
}

void notice(std::string& out, std::string_view text, std::string_view detail) {
  Message m(out, 'N');
  out += 'S';
  cstr(out, "NOTICE");
  out += 'C';
  cstr(out, "00000");
  out += 'M';
  cstr(out, text);
  if (!detail.empty()) {
    out += 'D';
    cstr(out, detail);
  }
  out += '\0';
}

void command_complete(std::string& out, std::string_view tag) {
  Message m(out, 'C');
  cstr(out, tag);
}
void empty_query(std::string& out) { message(out, 'I', {}); }

void parse(std::string& out, std::string_view name, std::string_view query_and_types) {
  Message m(out, 'P');
  cstr(out, name);
  out.append(query_and_types);
}

void close_statement(std::string& out, std::string_view name) {
  Message m(out, 'C');
  out += 'S';
  cstr(out, name);
}

void bind_text(std::string& out, std::span<const std::string_view> parameters) {
  Message m(out, 'B');
  out.append(2, '\0');  // unnamed portal, unnamed statement
  be16(out, 0);         // all parameters as text
  be16(out, static_cast<std::uint16_t>(parameters.size()));
  for (std::string_view p : parameters) {
    be32(out, static_cast<std::uint32_t>(p.size()));
    out.append(p);
  }
  be16(out, 0);  // all results as text
}

void describe_portal(std::string& out) { message(out, 'D', std::string_view("P\0", 2)); }

void execute(std::string& out) {
  Message m(out, 'E');
  out += '\0';
  be32(out, 0);  // all rows
}

void sync(std::string& out) { message(out, 'S', {}); }
void parse_complete(std::string& out) { message(out, '1', {}); }
void close_complete(std::string& out) { message(out, '3', {}); }

void row_description(std::string& out, std::span<const Column> columns) {
  Message m(out, 'T');
  be16(out, static_cast<std::uint16_t>(columns.size()));
  for (const Column& c : columns) {
    std::uint32_t oid = 25;
    std::int16_t size = -1;
    switch (c.type) {
      case 'i':
        oid = 23, size = 4;
        break;
      case 'q':
        oid = 20, size = 8;
        break;
      case 'N':
        oid = 1700;
        break;
      case 'b':
        oid = 17;
        break;
      default:
        break;
    }
    cstr(out, c.name);
    be32(out, 0);
    be16(out, 0);
    be32(out, oid);
    be16(out, static_cast<std::uint16_t>(size));
    be32(out, 0xffffffff);
    be16(out, 0);
  }
}

RowWriter::RowWriter(std::string& out) : out_(out), start_(out.size()) {
  out += 'D';
  out.append(6, '\0');
}

RowWriter& RowWriter::text(std::string_view value) {
  be32(out_, static_cast<std::uint32_t>(value.size()));
  out_.append(value);
  ++count_;
  return *this;
}

RowWriter& RowWriter::number(std::int64_t value) {
  char digits[24];
  auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  return text({digits, static_cast<std::size_t>(end - digits)});
}

RowWriter& RowWriter::null() {
  be32(out_, 0xffffffff);
  ++count_;
  return *this;
}

void RowWriter::end() {
  if (done_) return;
  done_ = true;
  auto* p = reinterpret_cast<std::uint8_t*>(out_.data()) + start_;
  store_be32(p + 1, static_cast<std::uint32_t>(out_.size() - start_ - 1));
  store_be16(p + 5, count_);
}

}  // namespace pgf::wire
