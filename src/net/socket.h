#pragma once
// Sockets that are not streams yet: addresses, listeners, options. Plain system calls, for setup and the slow path.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"

namespace pgf::net {

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  bool is_unix() const { return family() == AF_UNIX; }
  std::uint16_t port() const;  // 0 for Unix sockets
  void set_port(std::uint16_t port);
  // In the kernel's eyes the same host, and the same port.
  bool operator==(const Address& other) const;
};

// An IPv4 or IPv6 literal (brackets and a %zone allowed), no name.
std::optional<Address> parse_ip(std::string_view host, std::uint16_t port);
// A path, or an abstract name if it starts with '@'. Nothing if it is too long.
std::optional<Address> unix_address(std::string_view path);
// As PgBouncer's log and SHOW name the parts: "127.0.0.1", "::1", "unix".
std::string format_host(const Address& address);
// "127.0.0.1:5432", "[::1]:5432", "unix".
std::string format_address(const Address& address);
// The 4 or 16 bytes of the host, in network order; none for Unix sockets.
Bytes address_bytes(const Address& address);
// The path of a Unix address; '@' stands for the leading zero of an abstract one.
std::string unix_path(const Address& address);

std::optional<Address> local_address(int fd);
std::optional<Address> peer_address(int fd);

struct PeerCredentials {
  pid_t pid;
  uid_t uid;
  gid_t gid;
};
std::optional<PeerCredentials> peer_credentials(int fd);  // of a connected Unix socket
std::optional<std::string> user_name(uid_t uid);          // of an operating-system user

// Where to listen for one entry of listen_addr: "*" means every address of both families, a name is resolved (this
// blocks: configuration time only).
std::expected<std::vector<Address>, std::string> listen_addresses(const std::string& host, std::uint16_t port);

struct ListenOptions {
  int backlog = 128;
  bool reuse_port = true;
  int defer_accept = 0;  // seconds, 0 = off (TCP)
};
// Nonblocking, close-on-exec, listening. The error names the step that failed.
std::expected<int, std::string> listen_tcp(const Address& address, const ListenOptions& options);
// mode is for the file of a path; a stale file is the caller's business.
std::expected<int, std::string> listen_unix(const Address& address, mode_t mode, const ListenOptions& options);

struct TcpOptions {
  bool keepalive = true;
  int keepcnt = 0, keepidle = 0, keepintvl = 0;  // 0 = the system's
  int user_timeout = 0;                          // milliseconds
  int socket_buffer = 0;                         // bytes, 0 = the system's
};
// For accepted and connecting sockets. Nodelay always; Unix sockets only get the buffer. False: errno tells.
bool set_tcp_options(int fd, const TcpOptions& options);

}  // namespace pgf::net
