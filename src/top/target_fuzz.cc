// The argument of `pgflotilla top`, the second line: a connection string, a URI or the name of an ini, which is the
// rest. First line: the environment, as KEY=VALUE with \x01 between.

#include "base/bytes.h"
#include "base/fuzz_kit.h"
#include "top/target.h"

using pgf::must;

namespace {

struct Text : pgf::config::FileReader {
  std::string text;
  std::optional<std::string> read(const std::string&, std::string&) override { return text; }
};

std::string percent(std::string_view text) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  std::string out;
  for (unsigned char c : text) out.append(1, '%').append(1, kDigits[c >> 4]).append(1, kDigits[c & 15]);
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace pgf::top;
  const std::string text(pgf::as_text({data, size}));
  const std::size_t cut = std::min(text.find('\n'), text.size());
  const std::string environment = '\x01' + text.substr(0, cut) + '\x01';
  const std::string rest = text.substr(std::min(cut + 1, text.size()));
  const std::string argument = rest.substr(0, rest.find('\n'));
  const std::string ini = rest.substr(std::min(argument.size() + 1, rest.size()));
  Outside outside;
  outside.environment = [&](const char* name) {
    const std::string key = '\x01' + std::string(name) + '=';
    const std::size_t at = environment.find(key);
    if (at == environment.npos) return std::string();
    return environment.substr(at + key.size(), environment.find('\x01', at + 1) - at - key.size());
  };
  outside.load = [&](const std::string&) {
    Text files;
    files.text = ini;
    return pgf::config::load("f.ini", files);
  };
  outside.is_ours = [&](const std::string& path) { return path.size() % 2 == 0; };
  outside.system_user = "me";

  auto target = parse_target(argument, outside);
  if (!target) {
    must(!target.error().empty());
    return 0;
  }
  must(target->port >= 1 && target->port <= 65535 && (!target->user.empty() || argument.empty() == false));
  if (target->host.empty() || target->user.empty()) return 0;  // an ini may say that
  // Said again in full, as keywords and as a URI, it is the same target.
  auto quoted = [](std::string_view value) {
    std::string out = "'";
    for (char c : value) out.append(c == '\'' ? 2 : 1, c);
    return out + "'";
  };
  outside.environment = [](const char*) { return std::string(); };
  std::string words =
      "host=" + quoted(target->host) + " user=" + quoted(target->user) + " port=" + std::to_string(target->port);
  if (!target->password.empty()) words += " password=" + quoted(target->password);
  auto again = parse_target(words, outside);
  must(again && again->host == target->host && again->user == target->user && again->port == target->port &&
       again->password == target->password);
  if (target->host.contains('\0') || target->user.contains('\0') || target->password.contains('\0')) return 0;
  const std::string uri = "postgresql:///?host=" + percent(target->host) + "&user=" + percent(target->user) +
                          "&port=" + std::to_string(target->port) + "&password=" + percent(target->password);
  again = parse_target(uri, outside);
  must(again && again->host == target->host && again->user == target->user && again->port == target->port &&
       again->password == target->password);
  return 0;
}
