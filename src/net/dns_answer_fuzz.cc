// What a name server answers: c-ares takes it apart, we take what it found. The input is the answer behind its first
// two bytes, which have to fit the question. First byte: does it bring the question along (so that the fuzzer need not
// find it), and is it the answer to a zone's serial? Several answers, each with its length in front.
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <vector>

#include "base/fuzz_kit.h"
#include "net/dns_channel.h"
#include "net/engine.h"

namespace {

using namespace pgf;

// A name server whose answers are handed in.
struct Server {
  int fd;
  std::string conf;
  Server() : fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    must(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    socklen_t length = sizeof address;
    must(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0);
    std::string name = "/tmp/pgf-fuzz-XXXXXX";
    const int file = ::mkstemp(name.data());
    must(file >= 0);
    ::close(file);
    conf = name;
    std::ofstream(conf) << "nameserver 127.0.0.1:" << ntohs(address.sin_port) << "\noptions timeout:1 attempts:1\n";
  }
  ~Server() {
    ::close(fd);
    ::unlink(conf.c_str());
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Server server;
  Cursor in({data, size});
  const std::uint8_t flags = in.u8();
  int answers = 0;
  auto channel = std::make_unique<net::DnsChannel>(server.conf);
  auto on_found = [&](net::DnsChannel::Found found) {
    ++answers;
    must(found.addresses.empty() != found.error.empty());
    must(found.usable.empty() == found.addresses.empty() && found.usable.size() <= found.addresses.size());
    for (std::size_t i = 0; i < found.addresses.size(); ++i) {
      const net::Address& a = found.addresses[i];
      must(a.family() == AF_INET || a.family() == AF_INET6);
      must(a.port() == 0 && !net::format_host(a).empty());
      for (std::size_t k = 0; k < i; ++k) must(!(found.addresses[k] == a));  // each once
    }
    must(!found.ttl || *found.ttl >= 0);
  };
  if (flags & 1)
    channel->soa_serial("example", [&](std::optional<std::uint32_t>) { ++answers; });
  else
    channel->lookup("db.example", on_found);

  for (int rounds = 0; channel->outstanding() > 0 && rounds < 8; ++rounds) {
    std::uint8_t question[512];
    sockaddr_in from{};
    socklen_t length = sizeof from;
    ssize_t n = ::recvfrom(server.fd, question, sizeof question, 0, reinterpret_cast<sockaddr*>(&from), &length);
    if (n >= 12) {
      const Bytes said = in.bytes(in.u16());
      if (!in.ok() || said.empty()) break;
      std::vector<std::uint8_t> answer(question, question + 2);
      if (flags & 2) {  // header from the input, the question as it was asked, then the rest
        answer.insert(answer.end(), said.begin(), said.begin() + std::min<std::ptrdiff_t>(10, std::ssize(said)));
        answer.resize(12);
        answer[4] = 0, answer[5] = 1;
        answer.insert(answer.end(), question + 12, question + n);
        if (said.size() > 10) answer.insert(answer.end(), said.begin() + 10, said.end());
      } else {
        answer.insert(answer.end(), said.begin(), said.end());
      }
      ::sendto(server.fd, answer.data(), answer.size(), 0, reinterpret_cast<sockaddr*>(&from), length);
    } else if (rounds > 0) {
      break;
    }
    channel->wait(-1, net::monotonic_now());
  }
  const bool open = channel->outstanding() > 0;
  channel.reset();
  must(answers == (open ? 0 : 1));
  // What the input did not answer must not answer the next one.
  std::uint8_t unused[512];
  while (::recv(server.fd, unused, sizeof unused, 0) >= 0) continue;
  return 0;
}
