#pragma once
// The head of an HTTP/1.x request (RFC 9112), as far as a GET needs it. Pure.
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

namespace pgf::web {

inline constexpr std::size_t kMaxHead = 8192;  // bytes of request line and headers

struct Request {
  bool head_only = false;          // HEAD
  std::string path;                // decoded, without the query; starts with '/'
  std::string query;               // as sent, without the '?'
  std::string authorization = {};  // value of the header
  std::string accept = {};
  std::string host = {};
};

struct Refused {  // the answer's status and what is wrong
  int status;
  std::string_view reason;
};

struct Unfinished {};  // read on

// What `bytes`, all that was received so far, begin with. A body is not read: nothing that takes one is served.
std::variant<Unfinished, Refused, Request> parse(std::string_view bytes);

// The value of a key in a query (`a=1&b=2`), decoded; nothing if it is not there.
std::optional<std::string> query_value(std::string_view query, std::string_view key);

}  // namespace pgf::web
