// An HTTP request, as it comes in pieces: what is decided early stays so, unless a head that is too long ends it.
#include "base/fuzz_kit.h"
#include "web/request.h"

#include <algorithm>

namespace {

using pgf::must;
using pgf::web::Refused;
using pgf::web::Request;

bool same(const std::variant<pgf::web::Unfinished, Refused, Request>& a,
          const std::variant<pgf::web::Unfinished, Refused, Request>& b) {
  if (a.index() != b.index()) return false;
  if (auto* x = std::get_if<Refused>(&a)) {
    auto& y = std::get<Refused>(b);
    return x->status == y.status && x->reason == y.reason;
  }
  if (auto* x = std::get_if<Request>(&a)) {
    auto& y = std::get<Request>(b);
    return x->head_only == y.head_only && x->path == y.path && x->query == y.query && x->host == y.host &&
           x->authorization == y.authorization && x->accept == y.accept;
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace pgf::web;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto whole = parse(bytes);
  for (std::size_t n = 0; n < size; n += 1 + n / 16) {
    const auto early = parse(bytes.substr(0, n));
    if (!std::holds_alternative<Unfinished>(early)) must(same(early, whole));
  }
  must(!std::holds_alternative<Unfinished>(whole) || size <= kMaxHead);
  if (auto* refused = std::get_if<Refused>(&whole)) must(refused->status >= 400 && !refused->reason.empty());
  if (auto* r = std::get_if<Request>(&whole)) {
    must(!r->path.empty() && r->path[0] == '/' && r->path.find('\0') == r->path.npos);
    for (const std::string* field : {&r->host, &r->authorization, &r->accept})
      must(field->size() <= kMaxHead && field->find("\r\n") == field->npos);
    const auto token = query_value(r->query, "token");
    if (token) must(token->size() <= r->query.size() && r->query.find("token") != r->query.npos);
  }
  // Escaped all through, a value says what it said.
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string query = "x=1&key=";
  for (unsigned char c : bytes.substr(0, 256))
    if (c != 0) query.append(1, '%').append(1, kDigits[c >> 4]).append(1, kDigits[c & 15]);
  std::string plain(bytes.substr(0, 256));
  std::erase(plain, '\0');
  must(query_value(query, "key") == plain && query_value(query, "x") == "1" && !query_value(query, "ke"));
  (void)query_value(bytes, "token");
  return 0;
}
