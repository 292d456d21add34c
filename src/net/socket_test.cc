#include "net/socket.h"

#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

namespace pgf::net {
namespace {

int option(int fd, int level, int name) {
  int value = -1;
  socklen_t length = sizeof value;
  ::getsockopt(fd, level, name, &value, &length);
  return value;
}

TEST(Address, ParseAndFormat) {
  EXPECT_EQ(format_address(*parse_ip("127.0.0.1", 5432)), "127.0.0.1:5432");
  EXPECT_EQ(format_address(*parse_ip("::1", 6432)), "[::1]:6432");
  EXPECT_EQ(format_address(*parse_ip("[2001:DB8::7]", 1)), "[2001:db8::7]:1");
  EXPECT_EQ(format_host(*parse_ip("::1", 6432)), "::1");
  EXPECT_EQ(parse_ip("127.0.0.1", 5432)->port(), 5432);
  for (const char* bad : {"", "localhost", "127.0.0", "127.0.0.1.", "1.2.3.4:5", "::g", "[::1", "fe80::1%", "[]"}) {
    EXPECT_FALSE(parse_ip(bad, 1)) << bad;
  }
  EXPECT_TRUE(parse_ip("fe80::1%lo", 1).has_value());
  EXPECT_TRUE(parse_ip("fe80::1%1", 1).has_value());
}

TEST(Address, Equality) {
  EXPECT_TRUE(*parse_ip("10.0.0.1", 1) == *parse_ip("10.0.0.1", 1));
  EXPECT_FALSE(*parse_ip("10.0.0.1", 1) == *parse_ip("10.0.0.1", 2));
  EXPECT_FALSE(*parse_ip("::1", 1) == *parse_ip("127.0.0.1", 1));
  EXPECT_TRUE(*unix_address("/a/b") == *unix_address("/a/b"));
  EXPECT_FALSE(*unix_address("/a/b") == *unix_address("/a/c"));
}

TEST(Address, Unix) {
  EXPECT_EQ(unix_path(*unix_address("/tmp/.s.PGSQL.6432")), "/tmp/.s.PGSQL.6432");
  EXPECT_EQ(unix_path(*unix_address("@name")), "@name");
  EXPECT_EQ(format_address(*unix_address("@name")), "unix");
  EXPECT_TRUE(unix_address(std::string(107, 'x')).has_value());
  EXPECT_FALSE(unix_address(std::string(108, 'x')).has_value());
  EXPECT_FALSE(unix_address("").has_value());
}

TEST(Listen, TcpWithReusePort) {
  auto a = listen_tcp(*parse_ip("127.0.0.1", 0), {.defer_accept = 45});
  ASSERT_TRUE(a.has_value()) << a.error();
  auto where = local_address(*a);
  auto b = listen_tcp(*where, {});
  ASSERT_TRUE(b.has_value()) << b.error();
  auto c = listen_tcp(*where, {.reuse_port = false});
  ASSERT_FALSE(c.has_value());
  EXPECT_EQ(c.error(), "bind: Address already in use");
  EXPECT_GT(option(*a, IPPROTO_TCP, TCP_DEFER_ACCEPT), 0);
  ::close(*a);
  ::close(*b);
}

TEST(Listen, Everywhere) {
  auto all = listen_addresses("*", 0);
  ASSERT_TRUE(all.has_value());
  EXPECT_GE(all->size(), 1u);
  for (const Address& a : *all) {
    auto fd = listen_tcp(a, {});
    if (!fd) continue;  // a machine without IPv6
    if (a.family() == AF_INET6) {
      EXPECT_EQ(option(*fd, IPPROTO_IPV6, IPV6_V6ONLY), 1);
    }
    ::close(*fd);
  }
  EXPECT_EQ(format_host(listen_addresses("127.0.0.1", 5)->at(0)), "127.0.0.1");
  EXPECT_FALSE(listen_addresses("no such host.", 5).has_value());
}

TEST(Listen, UnixPathAndCredentials) {
  char directory[] = "/tmp/pgf-socket-XXXXXX";
  ASSERT_NE(::mkdtemp(directory), nullptr);
  std::string path = std::string(directory) + "/s";
  auto address = unix_address(path);
  auto fd = listen_unix(*address, 0700, {});
  ASSERT_TRUE(fd.has_value()) << fd.error();
  struct stat st;
  ASSERT_EQ(0, ::stat(path.c_str(), &st));
  EXPECT_EQ(st.st_mode & 0777, 0700u);
  EXPECT_FALSE(listen_unix(*address, 0700, {}).has_value());
  int c = ::socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(0, ::connect(c, address->get(), address->length));
  int s = ::accept(*fd, nullptr, nullptr);
  auto who = peer_credentials(s);
  ASSERT_TRUE(who.has_value());
  EXPECT_EQ(who->uid, ::getuid());
  EXPECT_EQ(who->pid, ::getpid());
  EXPECT_TRUE(set_tcp_options(s, {}));
  ::close(c);
  ::close(s);
  ::close(*fd);
  std::filesystem::remove_all(directory);
}

TEST(Listen, Abstract) {
  auto address = unix_address("@pgf-socket-test-" + std::to_string(::getpid()));
  auto fd = listen_unix(*address, 0777, {});
  ASSERT_TRUE(fd.has_value()) << fd.error();
  EXPECT_EQ(unix_path(*local_address(*fd)), unix_path(*address));
  ::close(*fd);
}

TEST(Options, AreSet) {
  int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_TRUE(set_tcp_options(fd, {.keepalive = true,
                                   .keepcnt = 3,
                                   .keepidle = 60,
                                   .keepintvl = 10,
                                   .user_timeout = 5000,
                                   .socket_buffer = 65536}));
  EXPECT_EQ(option(fd, IPPROTO_TCP, TCP_NODELAY), 1);
  EXPECT_EQ(option(fd, SOL_SOCKET, SO_KEEPALIVE), 1);
  EXPECT_EQ(option(fd, IPPROTO_TCP, TCP_KEEPCNT), 3);
  EXPECT_EQ(option(fd, IPPROTO_TCP, TCP_KEEPIDLE), 60);
  EXPECT_EQ(option(fd, IPPROTO_TCP, TCP_KEEPINTVL), 10);
  EXPECT_EQ(option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), 5000);
  EXPECT_GE(option(fd, SOL_SOCKET, SO_RCVBUF), 65536);
  EXPECT_FALSE(peer_credentials(fd).has_value());
  ::close(fd);
  EXPECT_FALSE(set_tcp_options(-1, {}));
}

}  // namespace
}  // namespace pgf::net
