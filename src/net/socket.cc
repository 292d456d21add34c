#include "net/socket.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <utility>

#include <fmt/format.h>

namespace pgf::net {
namespace {

sockaddr_in& v4(Address& a) { return reinterpret_cast<sockaddr_in&>(a.storage); }
const sockaddr_in& v4(const Address& a) { return reinterpret_cast<const sockaddr_in&>(a.storage); }
sockaddr_in6& v6(Address& a) { return reinterpret_cast<sockaddr_in6&>(a.storage); }
const sockaddr_in6& v6(const Address& a) { return reinterpret_cast<const sockaddr_in6&>(a.storage); }

bool set(int fd, int level, int option, int value) {
  return ::setsockopt(fd, level, option, &value, sizeof value) == 0;
}

// Closes the socket unless it is released.
class Guard {
 public:
  explicit Guard(int fd) : fd_(fd) {}
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
  ~Guard() {
    if (fd_ >= 0) ::close(fd_);
  }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

std::unexpected<std::string> failed(const char* step) {
  return std::unexpected(fmt::format("{}: {}", step, std::strerror(errno)));
}

}  // namespace

std::uint16_t Address::port() const {
  if (family() == AF_INET) return ntohs(v4(*this).sin_port);
  if (family() == AF_INET6) return ntohs(v6(*this).sin6_port);
  return 0;
}

void Address::set_port(std::uint16_t port) {
  if (family() == AF_INET) v4(*this).sin_port = htons(port);
  if (family() == AF_INET6) v6(*this).sin6_port = htons(port);
}

bool Address::operator==(const Address& other) const {
  if (family() != other.family()) return false;
  if (family() == AF_INET) {
    return v4(*this).sin_port == v4(other).sin_port && v4(*this).sin_addr.s_addr == v4(other).sin_addr.s_addr;
  }
  if (family() == AF_INET6) {
    const sockaddr_in6 &a = v6(*this), &b = v6(other);
    return a.sin6_port == b.sin6_port && a.sin6_scope_id == b.sin6_scope_id &&
           std::memcmp(&a.sin6_addr, &b.sin6_addr, sizeof a.sin6_addr) == 0;
  }
  return length == other.length && std::memcmp(&storage, &other.storage, length) == 0;
}

std::optional<Address> parse_ip(std::string_view host, std::uint16_t port) {
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  Address a;
  std::string text(host);
  if (::inet_pton(AF_INET, text.c_str(), &v4(a).sin_addr) == 1) {
    a.storage.ss_family = AF_INET;
    a.length = sizeof(sockaddr_in);
    a.set_port(port);
    return a;
  }
  std::string zone;
  if (auto percent = text.find('%'); percent != text.npos) {
    zone = text.substr(percent + 1);
    text.resize(percent);
    if (zone.empty()) return std::nullopt;
  }
  if (::inet_pton(AF_INET6, text.c_str(), &v6(a).sin6_addr) != 1) return std::nullopt;
  if (!zone.empty()) {
    unsigned id = 0;
    auto [end, error] = std::from_chars(zone.data(), zone.data() + zone.size(), id);
    if (error != std::errc{} || end != zone.data() + zone.size()) id = ::if_nametoindex(zone.c_str());
    if (id == 0) return std::nullopt;
    v6(a).sin6_scope_id = id;
  }
  a.storage.ss_family = AF_INET6;
  a.length = sizeof(sockaddr_in6);
  a.set_port(port);
  return a;
}

std::optional<Address> unix_address(std::string_view path) {
  Address a;
  auto& u = reinterpret_cast<sockaddr_un&>(a.storage);
  if (path.empty() || path.size() >= sizeof u.sun_path || path.find('\0') != path.npos) return std::nullopt;
  u.sun_family = AF_UNIX;
  std::memcpy(u.sun_path, path.data(), path.size());
  bool abstract = path.front() == '@';
  if (abstract) u.sun_path[0] = '\0';
  // An abstract name is as long as the address says, a path ends with its zero.
  a.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + (abstract ? 0 : 1));
  return a;
}

std::string format_host(const Address& a) {
  if (a.is_unix()) return "unix";
  char text[INET6_ADDRSTRLEN] = "";
  if (a.family() == AF_INET) {
    ::inet_ntop(AF_INET, &v4(a).sin_addr, text, sizeof text);
  } else if (a.family() == AF_INET6) {
    ::inet_ntop(AF_INET6, &v6(a).sin6_addr, text, sizeof text);
  } else {
    return "none";
  }
  return text;
}

std::string format_address(const Address& a) {
  if (a.is_unix()) return "unix";
  if (a.family() == AF_INET6) return fmt::format("[{}]:{}", format_host(a), a.port());
  return fmt::format("{}:{}", format_host(a), a.port());
}

std::string unix_path(const Address& a) {
  if (!a.is_unix() || a.length <= offsetof(sockaddr_un, sun_path)) return {};
  const auto& u = reinterpret_cast<const sockaddr_un&>(a.storage);
  std::size_t n = a.length - offsetof(sockaddr_un, sun_path);
  if (u.sun_path[0] != '\0') return std::string(u.sun_path, ::strnlen(u.sun_path, n));
  return "@" + std::string(u.sun_path + 1, n - 1);
}

std::optional<Address> local_address(int fd) {
  Address a;
  a.length = sizeof a.storage;
  if (::getsockname(fd, a.get(), &a.length) < 0) return std::nullopt;
  return a;
}

std::optional<Address> peer_address(int fd) {
  Address a;
  a.length = sizeof a.storage;
  if (::getpeername(fd, a.get(), &a.length) < 0) return std::nullopt;
  return a;
}

std::optional<std::string> user_name(uid_t uid) {
  passwd entry;
  passwd* found = nullptr;
  std::string buffer(1024, '\0');
  int error;
  while ((error = getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found)) == ERANGE && buffer.size() < 1 << 20)
    buffer.resize(buffer.size() * 2);
  return error || !found ? std::nullopt : std::optional<std::string>(found->pw_name);
}

Bytes address_bytes(const Address& address) {
  if (address.family() == AF_INET) return {reinterpret_cast<const std::uint8_t*>(&v4(address).sin_addr), 4};
  if (address.family() == AF_INET6) return {v6(address).sin6_addr.s6_addr, 16};
  return {};
}

std::optional<PeerCredentials> peer_credentials(int fd) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) < 0) return std::nullopt;
  // Other socket families answer too, with nobody.
  if (credentials.pid == 0 && credentials.uid == static_cast<uid_t>(-1)) return std::nullopt;
  return PeerCredentials{credentials.pid, credentials.uid, credentials.gid};
}

std::expected<std::vector<Address>, std::string> listen_addresses(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  std::string service = std::to_string(port);
  if (int error = ::getaddrinfo(host == "*" ? nullptr : host.c_str(), service.c_str(), &hints, &list); error != 0) {
    return std::unexpected(fmt::format("getaddrinfo: {}", ::gai_strerror(error)));
  }
  std::vector<Address> result;
  for (addrinfo* i = list; i; i = i->ai_next) {
    if (i->ai_addrlen > sizeof(sockaddr_storage)) continue;
    Address a;
    std::memcpy(&a.storage, i->ai_addr, i->ai_addrlen);
    a.length = i->ai_addrlen;
    result.push_back(a);
  }
  ::freeaddrinfo(list);
  return result;
}

std::expected<int, std::string> listen_tcp(const Address& address, const ListenOptions& options) {
  int fd = ::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return failed("socket");
  Guard guard(fd);
  if (!set(fd, SOL_SOCKET, SO_REUSEADDR, 1)) return failed("SO_REUSEADDR");
  if (options.reuse_port && !set(fd, SOL_SOCKET, SO_REUSEPORT, 1)) return failed("SO_REUSEPORT");
  if (address.family() == AF_INET6 && !set(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1)) return failed("IPV6_V6ONLY");
  if (options.defer_accept > 0 && !set(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, options.defer_accept)) {
    return failed("TCP_DEFER_ACCEPT");
  }
  if (::bind(fd, address.get(), address.length) < 0) return failed("bind");
  if (::listen(fd, options.backlog) < 0) return failed("listen");
  return guard.release();
}

std::expected<int, std::string> listen_unix(const Address& address, mode_t mode, const ListenOptions& options) {
  int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return failed("socket");
  Guard guard(fd);
  if (::bind(fd, address.get(), address.length) < 0) return failed("bind");
  std::string path = unix_path(address);
  if (!path.starts_with('@') && ::chmod(path.c_str(), mode) < 0) return failed("chmod");
  if (::listen(fd, options.backlog) < 0) return failed("listen");
  return guard.release();
}

bool set_tcp_options(int fd, const TcpOptions& o) {
  bool ok = true;
  if (o.socket_buffer > 0) {
    ok &= set(fd, SOL_SOCKET, SO_SNDBUF, o.socket_buffer);
    ok &= set(fd, SOL_SOCKET, SO_RCVBUF, o.socket_buffer);
  }
  int domain = 0;
  socklen_t length = sizeof domain;
  if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) < 0) return false;
  if (domain != AF_INET && domain != AF_INET6) return ok;
  ok &= set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  if (o.keepalive) {
    ok &= set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    if (o.keepcnt > 0) ok &= set(fd, IPPROTO_TCP, TCP_KEEPCNT, o.keepcnt);
    if (o.keepidle > 0) ok &= set(fd, IPPROTO_TCP, TCP_KEEPIDLE, o.keepidle);
    if (o.keepintvl > 0) ok &= set(fd, IPPROTO_TCP, TCP_KEEPINTVL, o.keepintvl);
  }
  if (o.user_timeout > 0) ok &= set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, o.user_timeout);
  return ok;
}

}  // namespace pgf::net
