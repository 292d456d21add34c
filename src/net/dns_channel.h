#pragma once
// One thread's questions to DNS and the hosts file: c-ares, and the sockets it has open. Not thread-safe: everything is
// called, and answers, in the thread that owns it.
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/time.h"
#include "net/socket.h"

struct ares_channeldata;

namespace pgf::net {

// What c-ares 1.18 does not take from a resolv.conf itself, though resolv.conf(5) and later versions know it.
struct ResolvConf {
  std::string servers;  // for ares_set_servers_ports_csv; empty: no line names a port, c-ares reads them all
  // A silent server: 2 + 4 + 8 s, a little less than server_connect_timeout.
  int timeout_ms = 2000;
  int tries = 3;
};
ResolvConf read_resolv_conf(std::string_view text);

const char* dns_library();  // "c-ares 1.18.1", for --version

class DnsChannel {
 public:
  struct Found {  // either addresses or an error
    std::vector<Address> addresses;
    std::vector<Address> usable;  // those that there is a way to; if there is none, all
    std::string error;
    std::optional<Usec> ttl;  // the smallest of the records'; none: the hosts file has none
  };
  using OnFound = std::function<void(Found)>;
  using OnSerial = std::function<void(std::optional<std::uint32_t>)>;

  explicit DnsChannel(const std::string& resolv_conf);  // empty: the system's
  DnsChannel(const DnsChannel&) = delete;
  DnsChannel& operator=(const DnsChannel&) = delete;
  ~DnsChannel();  // what is not answered by then stays so

  // Each answers exactly once, maybe at once. The hosts file is read each time.
  void lookup(const std::string& host, OnFound done);  // A and AAAA
  void soa_serial(const std::string& zone, OnSerial done);
  int outstanding() const { return outstanding_; }

  // Until something came in on a socket of ours or on wake_fd, or `until` has come (-1: never). Answers from here.
  void wait(int wake_fd, Usec until);

 private:
  template <class F>
  struct Request;
  void open(const std::string& resolv_conf);
  int poll_time(Usec until) const;

  ares_channeldata* ares_ = nullptr;
  std::string error_;  // why there is none
  std::map<int, short> sockets_;
  int outstanding_ = 0;
  const void* asking_ = nullptr;  // within lookup(): an answer to it now comes without a question to a server
  bool closing_ = false;
};

}  // namespace pgf::net
