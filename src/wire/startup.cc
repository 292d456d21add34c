#include "wire/startup.h"

#include <algorithm>

namespace pgf::wire {

static constexpr std::uint32_t kCodeLimit = 4u << 16;  // protocol 4.0 and above

First first_packet(Bytes arrived) {
  First f;
  if (arrived.empty()) return f;
  if (arrived[0] == 0x16) {
    f.kind = FirstKind::tls_hello;
    return f;
  }
  auto bad = [&] {
    f.kind = FirstKind::bad;
    return f;
  };
  // The length is at most 65535, so its first two bytes are zero: whoever speaks another protocol is found out at once.
  if (arrived[0] != 0 || (arrived.size() > 1 && arrived[1] != 0)) return bad();
  if (arrived.size() < 4) return f;
  std::uint32_t length = load_be32(arrived.data());
  if (length < 8 || length >= 65536) return bad();
  if (arrived.size() < 8) return f;
  f.code = load_be32(arrived.data() + 4);
  f.size = length;
  switch (f.code) {
    case kSslCode:
    case kGssCode:
      if (length != 8) return bad();
      f.kind = f.code == kSslCode ? FirstKind::ssl_request : FirstKind::gss_request;
      return f;
    case kCancelCode:
      if (length > 4 + 4 + 4 + 256) {  // never answered, so not "bad": the empty body is no key
        f.kind = FirstKind::cancel;
        return f;
      }
      break;
    default:
      if (f.code >> 16 == 2) {
        f.kind = FirstKind::old_v2;
        return f;
      }
      if (f.code >> 16 != 3 || f.code >= kCodeLimit || length > kMaxStartup) return bad();
  }
  if (arrived.size() < length) return f;
  f.kind = f.code == kCancelCode ? FirstKind::cancel : FirstKind::startup;
  f.body = arrived.subspan(8, length - 8);
  return f;
}

std::string bad_header_text(Bytes arrived) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string text = "bad packet header: '";
  for (std::uint8_t b : arrived.first(std::min<std::size_t>(8, arrived.size()))) {
    text += digits[b >> 4];
    text += digits[b & 15];
  }
  return text + "'";
}

std::expected<Startup, std::string> parse_startup(Bytes body, std::uint32_t code) {
  static constexpr auto kLayout = "invalid startup packet layout: expected terminator as last byte";
  Startup s;
  s.minor = static_cast<std::uint16_t>(code & 0xffff);
  Cursor in(body);
  for (;;) {
    std::string_view key = in.cstr();
    if (!in.ok()) return std::unexpected(kLayout);
    if (key.empty()) break;
    std::string_view value = in.cstr();
    if (!in.ok()) return std::unexpected(kLayout);
    if (key.starts_with("_pq_."))
      s.pq_options.emplace_back(key);
    else
      s.params.emplace_back(key, value);
  }
  if (!in.at_end()) return std::unexpected(kLayout);
  return s;
}

std::expected<std::vector<std::pair<std::string, std::string>>, std::string> parse_options(std::string_view options) {
  static constexpr auto kForm =
      "unsupported options startup parameter: only '-c config=val' and '--config=val' are allowed";
  std::vector<std::pair<std::string, std::string>> result;
  std::size_t at = 0;
  auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\v' || c == '\f'; };
  auto skip = [&] {
    while (at < options.size() && blank(options[at])) ++at;
  };
  // One word; a backslash takes the next character as it is, and at the very end it is dropped (as PostgreSQL does).
  auto word = [&] {
    std::string w;
    while (at < options.size() && !blank(options[at])) {
      if (options[at] == '\\' && ++at == options.size()) break;
      w += options[at++];
    }
    return w;
  };
  for (skip(); at < options.size(); skip()) {
    if (options.substr(at).starts_with("-c")) {
      at += 2;
      skip();
    } else if (options.substr(at).starts_with("--")) {
      at += 2;
    } else {
      return std::unexpected(kForm);
    }
    std::string setting = word();
    std::size_t equals = setting.find('=');
    if (equals == std::string::npos || equals == 0) return std::unexpected(kForm);
    result.emplace_back(setting.substr(0, equals), setting.substr(equals + 1));
  }
  return result;
}

std::optional<Replication> parse_replication(std::string_view value) {
  if (value == "database") return Replication::logical;
  std::string word(value);
  for (char& c : word)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  // Any beginning that is not also one of another word: "o" may be "on" or "off".
  auto is = [&](std::string_view full, std::size_t least) { return word.size() >= least && full.starts_with(word); };
  if (is("true", 1) || is("yes", 1) || is("on", 2) || word == "1") return Replication::physical;
  if (is("false", 1) || is("no", 1) || is("off", 2) || word == "0") return Replication::none;
  return std::nullopt;
}

static void append_be32(std::string& out, std::uint32_t v) {
  std::uint8_t b[4];
  store_be32(b, v);
  out.append(reinterpret_cast<char*>(b), 4);
}

std::string startup_message(std::uint32_t version, const std::vector<std::pair<std::string, std::string>>& params) {
  std::string out(4, '\0');
  append_be32(out, version);
  for (const auto& [key, value] : params) out.append(key).append(1, '\0').append(value).append(1, '\0');
  out += '\0';
  store_be32(reinterpret_cast<std::uint8_t*>(out.data()), static_cast<std::uint32_t>(out.size()));
  return out;
}

std::string cancel_request(Bytes key) {
  std::string out;
  append_be32(out, static_cast<std::uint32_t>(8 + key.size()));
  append_be32(out, kCancelCode);
  out.append(as_text(key));
  return out;
}

std::string ssl_request() {
  std::string out;
  append_be32(out, 8);
  append_be32(out, kSslCode);
  return out;
}

}  // namespace pgf::wire
