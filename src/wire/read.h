#pragma once
// Views into one whole message body (after type and length). Nothing is trusted: a malformed body gives nullopt.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.h"

namespace pgf::wire {

struct ErrorFields {  // ErrorResponse and NoticeResponse; missing fields are empty
  std::string_view severity, sqlstate, message, detail, hint;
};
// Tolerates missing fields and missing terminators (CVE-2026-6666): what can be read is read, never past the body.
ErrorFields read_error(Bytes body);

struct ParameterStatus {
  std::string_view name, value;
};
std::optional<ParameterStatus> read_parameter_status(Bytes body);

struct StatementRef {       // what the head of Parse, Bind, Describe, Close says
  std::string_view portal;  // Bind only
  std::string_view name;    // statement (Parse, Bind, Describe/Close 'S') or portal name (Describe/Close 'P')
  char kind = 0;            // Describe/Close: 'S' or 'P'
  Bytes rest;               // everything behind the names (Parse: query NUL count oids)
};
std::optional<StatementRef> read_parse(Bytes body);
std::optional<StatementRef> read_bind(Bytes body);
std::optional<StatementRef> read_describe_or_close(Bytes body);
// For a Parse tail: is it query NUL, count, count oids, nothing else?
bool valid_parse_tail(Bytes tail);

struct AuthRequest {
  std::int32_t code;
  Bytes data;
};
std::optional<AuthRequest> read_auth(Bytes body);

struct Negotiated {  // NegotiateProtocolVersion: what the server speaks, how many of our options it does not know
  std::uint32_t version, unknown;
};
std::optional<Negotiated> read_negotiated(Bytes body);
std::optional<std::string_view> read_password(Bytes body);  // exactly one terminated string

}  // namespace pgf::wire
