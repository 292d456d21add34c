#include <algorithm>
#include <cstdlib>

#include "auth/require.h"
#include "base/bytes.h"

// require_auth: what is listed is allowed and nothing else, or the other way round; and it says so of itself.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace pgf::auth;
  const std::string_view text = pgf::as_text({data, size});
  auto require = RequireAuth::parse(text);
  if (!require) return 0;
  if (require->text() != text || RequireAuth::parse(require->text()) != require) std::abort();
  int allowed = 0;
  for (AskedFor method :
       {AskedFor::nothing, AskedFor::password, AskedFor::md5, AskedFor::scram, AskedFor::gss, AskedFor::sspi}) {
    allowed += require->allows(method);
    if (require->refusal(method).empty()) std::abort();
  }
  const int named = text.empty() ? 0 : 1 + static_cast<int>(std::ranges::count(text, ','));
  const bool forbids = text.empty() || text.starts_with('!');
  if (allowed != (forbids ? 6 - named : named)) std::abort();
  return 0;
}
