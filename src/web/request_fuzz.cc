#include "web/request.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  std::string_view bytes(reinterpret_cast<const char*>(data), size);
  auto got = pgf::web::parse(bytes);
  if (auto* r = std::get_if<pgf::web::Request>(&got)) {
    if (r->path.empty() || r->path[0] != '/') __builtin_trap();
    pgf::web::query_value(r->query, "token");
  }
  return 0;
}
