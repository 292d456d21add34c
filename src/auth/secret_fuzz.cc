// Stored secrets come from auth_file and from auth_query, and passwords from anybody: SASLprep decodes them.
#include "auth/exchange.h"
#include "auth/saslprep.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace pgf;
  std::string_view text = as_text({data, size});
  auth::Secret secret = auth::parse_secret(text);
  bool scram = secret.kind == auth::Secret::Kind::scram;
  if (scram && (secret.scram.iterations < 1 || secret.scram.salt.empty())) __builtin_trap();
  if (!scram && secret.text != text) __builtin_trap();
  if (secret.kind == auth::Secret::Kind::plain && !text.contains('\0') && !auth::check_plain(secret, "user", text)) {
    __builtin_trap();
  }
  std::string prepared = auth::saslprep(text);
  if (prepared.empty() != text.empty()) __builtin_trap();
  return 0;
}
