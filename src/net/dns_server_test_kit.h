#pragma once
// A name server on 127.0.0.1 for tests: UDP and TCP on one port, in a thread of its own; what it answers is a function.
#include <arpa/inet.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "net/socket.h"

namespace pgf::net::test {

inline constexpr int kA = 1, kCname = 5, kSoa = 6, kAaaa = 28;
inline constexpr int kServfail = 2, kNxdomain = 3;

struct Record {
  std::string name;
  int type;
  std::uint32_t ttl;
  std::string data;
};

inline std::string be16(unsigned v) { return {static_cast<char>(v >> 8), static_cast<char>(v)}; }
inline std::string be32(std::uint32_t v) { return be16(v >> 16) + be16(v & 0xffff); }
inline std::string wire_name(const std::string& name) {
  std::string out;
  for (std::size_t at = 0; at < name.size();) {
    std::size_t dot = std::min(name.find('.', at), name.size());
    out += static_cast<char>(dot - at) + name.substr(at, dot - at);
    at = dot + 1;
  }
  return out + '\0';
}
inline Record address(const std::string& name, const std::string& ip, std::uint32_t ttl = 60) {
  char raw[16];
  bool six = ip.find(':') != ip.npos;
  inet_pton(six ? AF_INET6 : AF_INET, ip.c_str(), raw);
  return {name, six ? kAaaa : kA, ttl, std::string(raw, six ? 16 : 4)};
}
inline Record cname(const std::string& name, const std::string& target, std::uint32_t ttl = 60) {
  return {name, kCname, ttl, wire_name(target)};
}
inline Record soa(const std::string& zone, std::uint32_t serial) {
  return {zone, kSoa, 60, wire_name("ns") + wire_name("root") + be32(serial) + be32(1) + be32(1) + be32(1) + be32(1)};
}

struct Question {
  std::string name;
  int type;
  bool tcp;
  std::string bytes;  // as it came
};

// A whole answer to the question.
inline std::string reply(const Question& q, const std::vector<Record>& records, int rcode = 0, bool truncated = false) {
  std::string out = q.bytes.substr(0, 2) + be16(0x8180u | static_cast<unsigned>(rcode) | (truncated ? 0x200u : 0u)) +
                    be16(1) + be16(static_cast<unsigned>(records.size())) + be32(0) + wire_name(q.name) +
                    be16(static_cast<unsigned>(q.type)) + be16(1);
  for (const Record& r : records)
    out += wire_name(r.name) + be16(static_cast<unsigned>(r.type)) + be16(1) + be32(r.ttl) +
           be16(static_cast<unsigned>(r.data.size())) + r.data;
  return out;
}

class DnsServer {
 public:
  // Called in the server's thread; nothing = no answer.
  using Answer = std::function<std::optional<std::string>(const Question&)>;

  explicit DnsServer(Answer answer) : answer_(std::move(answer)) {
    Address at = *parse_ip("127.0.0.1", 0);
    for (;;) {  // until both have the same port
      udp_ = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
      bind(udp_, at.get(), at.length);
      Address bound = *local_address(udp_);
      tcp_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (bind(tcp_, bound.get(), bound.length) == 0) {
        port = bound.port();
        break;
      }
      close(udp_);
      close(tcp_);
    }
    listen(tcp_, 16);
    thread_ = std::thread([this] { serve(); });
  }
  ~DnsServer() {
    std::uint64_t one = 1;
    [[maybe_unused]] ssize_t n = write(stop_, &one, sizeof one);
    thread_.join();
    for (int fd : {udp_, tcp_, stop_}) close(fd);
  }
  DnsServer(const DnsServer&) = delete;
  DnsServer& operator=(const DnsServer&) = delete;

  void change(Answer answer) {
    std::lock_guard lock(mutex_);
    answer_ = std::move(answer);
  }

  std::uint16_t port = 0;
  std::atomic<int> a_questions{0}, soa_questions{0}, tcp_questions{0};

 private:
  std::optional<std::string> handle(std::string bytes, bool tcp) {
    if (bytes.size() < 17) return std::nullopt;
    Question q{{}, 0, tcp, bytes};
    std::size_t at = 12;
    while (at < bytes.size() && bytes[at]) {
      auto length = static_cast<unsigned char>(bytes[at]);
      q.name += (q.name.empty() ? "" : ".") + bytes.substr(at + 1, length);
      at += 1 + length;
    }
    q.type = static_cast<unsigned char>(bytes.at(at + 2));
    a_questions += q.type == kA;
    soa_questions += q.type == kSoa;
    tcp_questions += tcp;
    std::lock_guard lock(mutex_);
    return answer_(q);
  }
  void serve() {
    char buffer[4096];
    for (;;) {
      pollfd fds[] = {{stop_, POLLIN, 0}, {udp_, POLLIN, 0}, {tcp_, POLLIN, 0}};
      poll(fds, 3, -1);
      if (fds[0].revents) return;
      if (fds[1].revents) {
        Address from;
        from.length = sizeof from.storage;
        ssize_t n = recvfrom(udp_, buffer, sizeof buffer, 0, from.get(), &from.length);
        if (n <= 0) continue;
        if (auto out = handle(std::string(buffer, static_cast<std::size_t>(n)), false))
          sendto(udp_, out->data(), out->size(), 0, from.get(), from.length);
      }
      if (fds[2].revents) serve_tcp(accept(tcp_, nullptr, nullptr));
    }
  }
  void serve_tcp(int fd) {
    std::string in;
    char buffer[4096];
    for (ssize_t n; (n = recv(fd, buffer, sizeof buffer, 0)) > 0;) {
      in.append(buffer, static_cast<std::size_t>(n));
      while (in.size() >= 2) {
        std::size_t length = static_cast<unsigned char>(in[0]) * 256u + static_cast<unsigned char>(in[1]);
        if (in.size() < 2 + length) break;
        auto out = handle(in.substr(2, length), true);
        in.erase(0, 2 + length);
        if (!out) continue;
        std::string framed = be16(static_cast<unsigned>(out->size())) + *out;
        send(fd, framed.data(), framed.size(), MSG_NOSIGNAL);
      }
    }
    close(fd);
  }

  int udp_ = -1, tcp_ = -1;
  const int stop_ = eventfd(0, EFD_CLOEXEC);
  std::mutex mutex_;
  Answer answer_;
  std::thread thread_;
};

}  // namespace pgf::net::test
