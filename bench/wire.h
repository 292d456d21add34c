#pragma once
// Just enough of the PostgreSQL v3 protocol for the two benchmark programs: cut a stream into messages, read a field,
// append a message.
#include <stdint.h>
#include <string.h>

#include <string>
#include <string_view>

namespace bench {

inline std::uint32_t load32(const char* p) {
  std::uint32_t v;
  memcpy(&v, p, 4);
  return __builtin_bswap32(v);
}
inline std::uint16_t load16(const char* p) {
  std::uint16_t v;
  memcpy(&v, p, 2);
  return __builtin_bswap16(v);
}
inline void put32(std::string& out, std::uint32_t v) {
  v = __builtin_bswap32(v);
  out.append(reinterpret_cast<const char*>(&v), 4);
}
inline void put16(std::string& out, std::uint16_t v) {
  v = __builtin_bswap16(v);
  out.append(reinterpret_cast<const char*>(&v), 2);
}
inline void put_cstr(std::string& out, std::string_view s) {
  out.append(s);
  out.push_back('\0');
}

// Opens a message; the length is filled in when the scope ends.
class Message {
 public:
  Message(std::string& out, char type) : out_(out) {
    if (type) out_.push_back(type);
    at_ = out_.size();
    out_.append(4, '\0');
  }
  ~Message() {
    const std::uint32_t n = __builtin_bswap32(static_cast<std::uint32_t>(out_.size() - at_));
    memcpy(out_.data() + at_, &n, 4);
  }
  Message(const Message&) = delete;

 private:
  std::string& out_;
  std::size_t at_;
};

inline void put_message(std::string& out, char type, std::string_view body) {
  out.push_back(type);
  put32(out, static_cast<std::uint32_t>(body.size() + 4));
  out.append(body);
}

// A body being read, front to back. Past the end everything is empty and ok turns false.
struct Reader {
  std::string_view rest;
  bool ok = true;

  std::string_view take(std::size_t n) {
    if (n > rest.size()) {
      ok = false;
      rest = {};
      return {};
    }
    std::string_view s = rest.substr(0, n);
    rest.remove_prefix(n);
    return s;
  }
  std::uint32_t u32() {
    auto s = take(4);
    return s.size() == 4 ? load32(s.data()) : 0;
  }
  std::uint16_t u16() {
    auto s = take(2);
    return s.size() == 2 ? load16(s.data()) : std::uint16_t{0};
  }
  char byte() {
    auto s = take(1);
    return s.empty() ? '\0' : s[0];
  }
  std::string_view cstr() {
    const std::size_t end = rest.find('\0');
    if (end == std::string_view::npos) {
      ok = false;
      rest = {};
      return {};
    }
    std::string_view s = rest.substr(0, end);
    rest.remove_prefix(end + 1);
    return s;
  }
};

// Calls on_message(type, body) for every complete message in what has arrived; keeps the rest in `partial`, which is
// empty (and owns nothing worth mentioning) whenever messages and receives line up. on_message returns false to stop.
// With `startup` true the next message has no type byte (type 0 is passed).
template <class OnMessage>
bool cut(std::string& partial, std::string_view bytes, bool& startup, OnMessage&& on_message) {
  std::string held;
  if (!partial.empty()) {
    partial.append(bytes);
    const std::size_t head = startup ? 0 : 1;
    // The usual case of a long message: not complete yet, and nothing to look at.
    if (partial.size() >= head + 4 && partial.size() < head + load32(partial.data() + head)) return true;
    held.swap(partial);
    bytes = held;
  }
  while (!bytes.empty()) {
    const std::size_t head = startup ? 0 : 1;
    if (bytes.size() < head + 4) break;
    const std::uint32_t length = load32(bytes.data() + head);
    if (length < 4 || length > (1u << 30)) return false;
    if (bytes.size() < head + length) break;
    const char type = startup ? '\0' : bytes[0];
    const std::string_view body = bytes.substr(head + 4, length - 4);
    bytes.remove_prefix(head + length);
    if (!on_message(type, body)) return false;
  }
  if (!bytes.empty()) partial.assign(bytes);
  return true;
}

}  // namespace bench
