#pragma once
// How each message type is treated, by direction: one cell per type byte. The relay reads nothing else.
#include <array>
#include <cstdint>

namespace pgf::wire {

enum class Rule : std::uint8_t {
  reject,  // not a message of this direction: the connection ends
  stream,  // header only: the body goes through by count, whatever its size
  whole,   // small by nature and looked into: the relay waits until it is complete (up to kWholeLimit)
};
inline constexpr std::uint32_t kWholeLimit = 64 * 1024;

inline constexpr std::array<Rule, 256> kFromClient = [] {
  std::array<Rule, 256> t{};
  for (char c : {'Q', 'F', 'd', 'P', 'B'}) t[static_cast<unsigned char>(c)] = Rule::stream;
  for (char c : {'D', 'C', 'E', 'H', 'S', 'X', 'c', 'f'}) t[static_cast<unsigned char>(c)] = Rule::stream;
  return t;
}();

inline constexpr std::array<Rule, 256> kFromServer = [] {
  std::array<Rule, 256> t{};
  // D DataRow, d CopyData, T RowDescription, t ParameterDescription, V FunctionCallResponse, A NotificationResponse,
  // N NoticeResponse, n NoData, I EmptyQueryResponse, s PortalSuspended, 1 2 3 completions, G H W Copy…Response, c
  // CopyDone
  for (char c : {'D', 'd', 'T', 't', 'V', 'A', 'N', 'n', 'I', 's', '1', '2', '3', 'G', 'H', 'W', 'c', 'E'})
    t[static_cast<unsigned char>(c)] = Rule::stream;
  for (char c : {'C', 'Z', 'S', 'K'}) t[static_cast<unsigned char>(c)] = Rule::whole;
  return t;
}();

}  // namespace pgf::wire
