#include "wire/read.h"

#include <algorithm>

namespace pgf::wire {

ErrorFields read_error(Bytes body) {
  ErrorFields f;
  while (!body.empty() && body[0] != 0) {
    char key = static_cast<char>(body[0]);
    body = body.subspan(1);
    auto end = std::find(body.begin(), body.end(), 0);
    std::string_view value = as_text(body.first(static_cast<std::size_t>(end - body.begin())));
    body = end == body.end() ? Bytes{} : body.subspan(value.size() + 1);
    switch (key) {
      case 'S':
        f.severity = value;
        break;
      case 'C':
        f.sqlstate = value;
        break;
      case 'M':
        f.message = value;
        break;
      case 'D':
        f.detail = value;
        break;
      case 'H':
        f.hint = value;
        break;
      default:
        break;
    }
  }
  return f;
}

std::optional<ParameterStatus> read_parameter_status(Bytes body) {
  Cursor in(body);
  ParameterStatus s{in.cstr(), in.cstr()};
  if (!in.at_end()) return std::nullopt;
  return s;
}

std::optional<StatementRef> read_parse(Bytes body) {
  Cursor in(body);
  StatementRef r;
  r.name = in.cstr();
  if (!in.ok()) return std::nullopt;
  r.rest = in.rest();
  return r;
}

std::optional<StatementRef> read_bind(Bytes body) {
  Cursor in(body);
  StatementRef r;
  r.portal = in.cstr();
  r.name = in.cstr();
  if (!in.ok()) return std::nullopt;
  r.rest = in.rest();
  return r;
}

std::optional<StatementRef> read_describe_or_close(Bytes body) {
  Cursor in(body);
  StatementRef r;
  r.kind = static_cast<char>(in.u8());
  r.name = in.cstr();
  if (!in.at_end()) return std::nullopt;
  return r;
}

bool valid_parse_tail(Bytes tail) {
  Cursor in(tail);
  in.cstr();
  std::uint16_t count = in.u16();
  in.bytes(std::size_t{count} * 4);
  return in.at_end();
}

std::optional<AuthRequest> read_auth(Bytes body) {
  Cursor in(body);
  AuthRequest r{in.i32(), {}};
  if (!in.ok()) return std::nullopt;
  r.data = in.rest();
  return r;
}

std::optional<Negotiated> read_negotiated(Bytes body) {
  Cursor in(body);
  Negotiated n{in.u32(), in.u32()};
  for (std::uint32_t i = 0; in.ok() && i < n.unknown; ++i) in.cstr();
  if (!in.at_end()) return std::nullopt;
  return n;
}

std::optional<std::string_view> read_password(Bytes body) {
  Cursor in(body);
  std::string_view password = in.cstr();
  if (!in.at_end()) return std::nullopt;
  return password;
}

}  // namespace pgf::wire
