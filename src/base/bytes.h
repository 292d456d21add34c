#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace pgf {

using Bytes = std::span<const std::uint8_t>;

inline Bytes as_bytes(std::string_view s) { return {reinterpret_cast<const std::uint8_t*>(s.data()), s.size()}; }
inline std::string_view as_text(Bytes b) { return {reinterpret_cast<const char*>(b.data()), b.size()}; }

// Integers on PostgreSQL's wire are big-endian.
inline std::uint16_t load_be16(const std::uint8_t* p) { return static_cast<std::uint16_t>(p[0] << 8 | p[1]); }
inline std::uint32_t load_be32(const std::uint8_t* p) {
  std::uint32_t v;
  std::memcpy(&v, p, 4);
  return __builtin_bswap32(v);
}
inline void store_be16(std::uint8_t* p, std::uint16_t v) {
  p[0] = static_cast<std::uint8_t>(v >> 8);
  p[1] = static_cast<std::uint8_t>(v);
}
inline void store_be32(std::uint8_t* p, std::uint32_t v) {
  v = __builtin_bswap32(v);
  std::memcpy(p, &v, 4);
}

inline std::uint64_t load_be64(const std::uint8_t* p) {
  std::uint64_t v;
  std::memcpy(&v, p, 8);
  return __builtin_bswap64(v);
}
inline void store_be64(std::uint8_t* p, std::uint64_t v) {
  v = __builtin_bswap64(v);
  std::memcpy(p, &v, 8);
}

// A cursor over bytes that never reads past the end: after the first short read it stays failed and every read
// returns zero or empty. Check ok() once, at the end.
class Cursor {
 public:
  explicit Cursor(Bytes bytes) : rest_(bytes) {}

  std::uint8_t u8() { return take(1) ? taken_[0] : 0; }
  std::uint16_t u16() { return take(2) ? load_be16(taken_) : 0; }
  std::uint32_t u32() { return take(4) ? load_be32(taken_) : 0; }
  std::int32_t i32() { return static_cast<std::int32_t>(u32()); }
  Bytes bytes(std::size_t n) { return take(n) ? Bytes{taken_, n} : Bytes{}; }
  // A zero-terminated string without its terminator.
  std::string_view cstr() {
    const void* end = rest_.empty() ? nullptr : std::memchr(rest_.data(), 0, rest_.size());
    if (!ok_ || !end) {
      ok_ = false;
      return {};
    }
    auto n = static_cast<std::size_t>(static_cast<const std::uint8_t*>(end) - rest_.data());
    std::string_view s = as_text(rest_.first(n));
    rest_ = rest_.subspan(n + 1);
    return s;
  }
  Bytes rest() const { return rest_; }
  bool ok() const { return ok_; }
  bool at_end() const { return ok_ && rest_.empty(); }

 private:
  bool take(std::size_t n) {
    if (!ok_ || rest_.size() < n) {
      ok_ = false;
      return false;
    }
    taken_ = rest_.data();
    rest_ = rest_.subspan(n);
    return true;
  }
  Bytes rest_;
  const std::uint8_t* taken_ = nullptr;
  bool ok_ = true;
};

}  // namespace pgf
