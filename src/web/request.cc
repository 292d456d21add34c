#include "web/request.h"

#include <strings.h>

#include <algorithm>

namespace pgf::web {
namespace {

int hex(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') return (c | 0x20) - 'a' + 10;
  return -1;
}

// %XX, and '+' for a space where `plus`. Nothing if a % stands alone or means a NUL.
std::optional<std::string> decode(std::string_view text, bool plus) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%') {
      if (i + 2 >= text.size()) return std::nullopt;
      int high = hex(text[i + 1]), low = hex(text[i + 2]);
      if (high < 0 || low < 0 || (high | low) == 0) return std::nullopt;
      out += static_cast<char>(high * 16 + low);
      i += 2;
    } else {
      out += plus && text[i] == '+' ? ' ' : text[i];
    }
  }
  return out;
}

bool same(std::string_view a, std::string_view b) {
  return a.size() == b.size() && strncasecmp(a.data(), b.data(), a.size()) == 0;
}

std::string_view trimmed(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t')) s.remove_suffix(1);
  return s;
}

bool printable(std::string_view s) {
  return std::ranges::all_of(s, [](char c) { return c > ' ' && c != 0x7f; });  // what is beyond ASCII is encoded
}

}  // namespace

std::variant<Unfinished, Refused, Request> parse(std::string_view bytes) {
  // Not HTTP at all (TLS, PostgreSQL): said at once, not when a timeout has passed.
  if (!bytes.empty() && (bytes[0] < 'A' || bytes[0] > 'Z')) return Refused{400, "not HTTP"};
  const std::size_t end = bytes.find("\r\n\r\n");
  if (end == std::string_view::npos || end > kMaxHead) {
    if (bytes.size() <= kMaxHead) return Unfinished{};
    return Refused{431, "request too large"};
  }
  std::string_view head = bytes.substr(0, end);
  std::string_view line = head.substr(0, head.find("\r\n"));
  head.remove_prefix(std::min(head.size(), line.size() + 2));

  const std::size_t first = line.find(' '), last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) return Refused{400, "bad request line"};
  std::string_view method = line.substr(0, first), target = line.substr(first + 1, last - first - 1);
  std::string_view version = line.substr(last + 1);
  if (version != "HTTP/1.1" && version != "HTTP/1.0") return Refused{505, "HTTP/1.1 is spoken here"};
  if (method != "GET" && method != "HEAD") return Refused{405, "only GET and HEAD"};
  if (target.empty() || target[0] != '/' || !printable(target)) return Refused{400, "bad request target"};

  Request request;
  request.head_only = method == "HEAD";
  const std::size_t mark = target.find('?');
  auto path = decode(target.substr(0, mark), false);
  if (!path) return Refused{400, "bad request target"};
  request.path = std::move(*path);
  if (mark != std::string_view::npos) request.query = target.substr(mark + 1);

  while (!head.empty()) {
    std::string_view field = head.substr(0, head.find("\r\n"));
    head.remove_prefix(std::min(head.size(), field.size() + 2));
    const std::size_t colon = field.find(':');
    if (colon == std::string_view::npos || colon == 0 || !printable(field.substr(0, colon)))
      return Refused{400, "bad header"};
    std::string_view name = field.substr(0, colon), value = trimmed(field.substr(colon + 1));
    if (same(name, "authorization")) request.authorization = value;
    if (same(name, "accept")) request.accept = value;
    if (same(name, "host")) request.host = value;
    if (same(name, "transfer-encoding") || (same(name, "content-length") && value != "0"))
      return Refused{400, "no body is taken here"};
  }
  return request;
}

std::optional<std::string> query_value(std::string_view query, std::string_view key) {
  while (!query.empty()) {
    std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    if (pair.substr(0, pair.find('=')) != key) continue;
    return decode(pair.size() > key.size() ? pair.substr(key.size() + 1) : std::string_view(), true);
  }
  return std::nullopt;
}

}  // namespace pgf::web
