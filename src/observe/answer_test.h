#pragma once
// For tests: takes the console's answers apart again.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"

namespace pgf::observe::test {

struct Message {
  char type;
  std::string body;
};

inline std::vector<Message> split(std::string_view bytes) {
  std::vector<Message> messages;
  Cursor in(as_bytes(bytes));
  while (in.ok() && !in.at_end()) {
    char type = static_cast<char>(in.u8());
    std::uint32_t length = in.u32();
    messages.push_back({type, std::string(as_text(in.bytes(length - 4)))});
  }
  EXPECT_TRUE(in.ok()) << "cut in the middle of a message";
  return messages;
}

inline std::string types(std::string_view bytes) {
  std::string found;
  for (const Message& message : split(bytes)) found += message.type;
  return found;
}

// "name type name type …" with the type letters of admin.md; T is sent as s.
inline std::string columns(const std::string& body) {
  Cursor in(as_bytes(body));
  std::string found;
  for (int n = in.u16(); n > 0; --n) {
    found += in.cstr();
    EXPECT_EQ(in.u32(), 0u);
    EXPECT_EQ(in.u16(), 0u);
    std::uint32_t oid = in.u32();
    int length = static_cast<std::int16_t>(in.u16());
    EXPECT_EQ(length, oid == 23 ? 4 : oid == 20 ? 8 : -1);
    EXPECT_EQ(in.i32(), -1);
    EXPECT_EQ(in.u16(), 0u);
    found += oid == 25 ? " s" : oid == 23 ? " i" : oid == 20 ? " q" : oid == 1700 ? " N" : oid == 17 ? " b" : " ?";
    if (n > 1) found += ' ';
  }
  EXPECT_TRUE(in.at_end());
  return found;
}

// Values separated by `|`; NULL is written as such.
inline std::string row(const std::string& body) {
  Cursor in(as_bytes(body));
  std::string found;
  for (int n = in.u16(); n > 0; --n) {
    std::int32_t length = in.i32();
    found += length < 0 ? "NULL" : as_text(in.bytes(static_cast<std::size_t>(length)));
    if (n > 1) found += '|';
  }
  EXPECT_TRUE(in.at_end());
  return found;
}

inline std::vector<std::string> rows(std::string_view bytes) {
  std::vector<std::string> found;
  for (const Message& message : split(bytes))
    if (message.type == 'D') found.push_back(row(message.body));
  return found;
}

// The fields of ErrorResponse and NoticeResponse, `Sxxx|Cxxx|Mxxx`.
inline std::string fields(const std::string& body) {
  std::string found;
  Cursor in(as_bytes(body));
  while (in.ok() && in.rest().size() > 1) {
    if (!found.empty()) found += '|';
    found += in.cstr();
  }
  return found;
}

}  // namespace pgf::observe::test
