#pragma once
// The first bytes of a connection, before type bytes exist. PostgreSQL protocol, "Message Formats": StartupMessage,
// CancelRequest, SSLRequest, GSSENCRequest.
#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"

namespace pgf::wire {

inline constexpr std::uint32_t kCancelCode = 80877102;
inline constexpr std::uint32_t kSslCode = 80877103;
inline constexpr std::uint32_t kGssCode = 80877104;
inline constexpr std::size_t kMaxStartup = 10'000;  // PostgreSQL's MAX_STARTUP_PACKET_LENGTH

enum class FirstKind { need_more, tls_hello, ssl_request, gss_request, cancel, startup, old_v2, bad };
struct First {
  FirstKind kind = FirstKind::need_more;
  std::size_t size = 0;  // bytes of the whole packet, arrived or not (valid unless need_more/bad/tls_hello)
  Bytes body;            // after length and code
  std::uint32_t code = 0;
};
// Looks at what has arrived so far. `bad` as soon as it can be known (length < 8, >= 65536 or > kMaxStartup for a
// startup packet once its code is known, unknown code, version >= 4.0).
First first_packet(Bytes arrived);
// "bad packet header: 'HEX16'" for the first bytes of what arrived (PgBouncer's wording; up to 16 hex digits).
std::string bad_header_text(Bytes arrived);

struct Startup {
  std::uint16_t minor = 0;
  std::vector<std::pair<std::string, std::string>> params;  // in order, duplicates kept, without _pq_.*
  std::vector<std::string> pq_options;                      // names that start with _pq_.
};
// Error: PgBouncer's text ("invalid startup packet layout: expected terminator as last byte").
std::expected<Startup, std::string> parse_startup(Bytes body, std::uint32_t code);

// The `options` startup parameter: -c k=v, -ck=v, --k=v with backslash escapes (behaviour.md section 2).
// Error: the fixed text for any other form.
std::expected<std::vector<std::pair<std::string, std::string>>, std::string> parse_options(std::string_view options);

// The newest minor version of protocol 3 that we speak. 3.1 exists in name only: who asks for it gets 3.0's keys and
// is not corrected, as in PostgreSQL 18.
inline constexpr std::uint16_t kNewestMinor = 2;
inline constexpr std::uint16_t kLongKeysMinor = 2;
constexpr std::uint32_t protocol(std::uint16_t minor) { return 3u << 16 | minor; }

// The `replication` startup parameter: "database", or a boolean as PostgreSQL reads them. nullopt: neither.
enum class Replication : std::uint8_t { none, physical, logical };
std::optional<Replication> parse_replication(std::string_view value);

std::string startup_message(std::uint32_t version, const std::vector<std::pair<std::string, std::string>>& params);
std::string cancel_request(Bytes key);  // key = pid and secret as in BackendKeyData
std::string ssl_request();

}  // namespace pgf::wire
