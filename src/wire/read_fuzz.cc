#include <cstdlib>

#include "wire/read.h"
#include "wire/write.h"

namespace {

pgf::Bytes whole;

// Every view lies inside the body.
void inside(std::string_view view) {
  if (view.empty()) return;
  auto begin = reinterpret_cast<const std::uint8_t*>(view.data());
  if (begin < whole.data() || begin + view.size() > whole.data() + whole.size()) std::abort();
}

void inside(const std::optional<pgf::wire::StatementRef>& ref) {
  if (!ref) return;
  inside(ref->portal);
  inside(ref->name);
  inside(pgf::as_text(ref->rest));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace pgf::wire;
  whole = {data, size};

  ErrorFields e = read_error(whole);
  for (std::string_view field : {e.severity, e.sqlstate, e.message, e.detail, e.hint}) {
    inside(field);
    if (field.contains('\0')) std::abort();
  }
  if (auto status = read_parameter_status(whole)) {
    std::string out;
    parameter_status(out, status->name, status->value);
    if (out.substr(5) != pgf::as_text(whole)) std::abort();
  }
  auto p = read_parse(whole);
  inside(p);
  if (p) {
    std::string out;
    parse(out, p->name, pgf::as_text(p->rest));
    if (out.substr(5) != pgf::as_text(whole)) std::abort();
    if (valid_parse_tail(p->rest) && p->rest.size() < 3) std::abort();
  }
  inside(read_bind(whole));
  auto d = read_describe_or_close(whole);
  inside(d);
  if (d && d->name.size() + 2 != size) std::abort();
  if (auto auth = read_auth(whole); auth.has_value() != (size >= 4)) std::abort();
  if (auto n = read_negotiated(whole); n && (size < 8 || n->unknown > size - 8)) std::abort();
  if (auto password = read_password(whole); password && password->size() + 1 != size) std::abort();
  return 0;
}
