#include "net/dns_channel.h"

#include <ares.h>
#include <arpa/nameser.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <utility>

#include <fmt/format.h>

#include "net/engine.h"

namespace pgf::net {
namespace {

std::vector<std::string> words(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> result;
  for (std::string word; in >> word;) result.push_back(word);
  return result;
}

void read_option(std::string_view word, std::string_view name, int unit, int most, int& value) {
  if (!word.starts_with(name)) return;
  int n = 0;
  auto [end, error] = std::from_chars(word.data() + name.size(), word.data() + word.size(), n);
  if (error == std::errc{} && end == word.data() + word.size() && n > 0) value = std::min(n, most / unit) * unit;
}

// A datagram socket that is connected sends nothing, but the kernel says whether there is a way at all.
bool reachable(Address address) {
  address.set_port(1);
  int fd = ::socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno != EAFNOSUPPORT;
  bool yes = ::connect(fd, address.get(), address.length) == 0 ||
             (errno != ENETUNREACH && errno != EHOSTUNREACH && errno != EADDRNOTAVAIL);
  ::close(fd);
  return yes;
}

// Servers and caches shuffle records from answer to answer. In an order of our own, turns are fair.
bool before(const Address& a, const Address& b) {
  if (a.family() != b.family()) return a.family() == AF_INET;
  return std::memcmp(&a.storage, &b.storage, a.length) < 0;
}

DnsChannel::Found read_answer(int status, const ares_addrinfo* info, bool asked_server) {
  DnsChannel::Found found;
  // The unsigned 32 bits of a record; a set upper bit means zero (RFC 2181).
  auto limit = [&](int ttl) {
    Usec t = std::max(ttl, 0) * kSecond;
    if (asked_server && (!found.ttl || t < *found.ttl)) found.ttl = t;
  };
  if (status == ARES_SUCCESS && info) {
    for (const ares_addrinfo_cname* c = info->cnames; c; c = c->next) limit(c->ttl);
    for (const ares_addrinfo_node* n = info->nodes; n; n = n->ai_next) {
      if (n->ai_addrlen > sizeof(sockaddr_storage)) continue;
      limit(n->ai_ttl);
      Address a;
      std::memcpy(&a.storage, n->ai_addr, n->ai_addrlen);
      a.length = n->ai_addrlen;
      a.set_port(0);
      if (std::ranges::find(found.addresses, a) == found.addresses.end()) found.addresses.push_back(a);
    }
    std::ranges::sort(found.addresses, before);
    // Names often have IPv6 addresses where the machine has no IPv6: those would fail each second connection.
    std::ranges::copy_if(found.addresses, std::back_inserter(found.usable), reachable);
    if (found.usable.empty()) found.usable = found.addresses;
    if (found.addresses.empty()) status = ARES_ENODATA;
  }
  if (status != ARES_SUCCESS) found.error = fmt::format("result={} ({})", status, ares_strerror(status));
  return found;
}

}  // namespace

ResolvConf read_resolv_conf(std::string_view text) {
  ResolvConf result;
  std::istringstream in{std::string(text)};
  bool ports = false;
  for (std::string line; std::getline(in, line);) {
    std::vector<std::string> w = words(line);
    if (w.size() >= 2 && w[0] == "nameserver") {
      ports |= !parse_ip(w[1], 0);
      result.servers += (result.servers.empty() ? "" : ",") + w[1];
    }
    if (w.empty() || w[0] != "options") continue;
    for (const std::string& word : w) {
      read_option(word, "timeout:", 1000, 30'000, result.timeout_ms);
      read_option(word, "retrans:", 1, 30'000, result.timeout_ms);
      read_option(word, "attempts:", 1, 5, result.tries);
      read_option(word, "retry:", 1, 5, result.tries);
    }
  }
  if (!ports) result.servers.clear();
  return result;
}

const char* dns_library() {
  static const std::string text = fmt::format("c-ares {}", ares_version(nullptr));
  return text.c_str();
}

// The argument of a c-ares callback, which deletes it.
template <class F>
struct DnsChannel::Request {
  DnsChannel& channel;
  F done;
};

DnsChannel::DnsChannel(const std::string& resolv_conf) {
  ares_library_init(ARES_LIB_INIT_ALL);
  open(resolv_conf);
}

void DnsChannel::open(const std::string& resolv_conf) {
  std::ifstream file(resolv_conf.empty() ? "/etc/resolv.conf" : resolv_conf);
  std::ostringstream text;
  text << file.rdbuf();
  ResolvConf conf = read_resolv_conf(text.str());

  std::string path = resolv_conf;
  ares_options options{};
  int mask = ARES_OPT_SOCK_STATE_CB | ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES;
  options.timeout = conf.timeout_ms;
  options.tries = conf.tries;
  options.sock_state_cb_data = this;
  options.sock_state_cb = [](void* self, ares_socket_t fd, int read, int write) {
    auto& sockets = static_cast<DnsChannel*>(self)->sockets_;
    if (read || write)
      sockets[fd] = static_cast<short>((read ? POLLIN : 0) | (write ? POLLOUT : 0));
    else
      sockets.erase(fd);
  };
  if (!path.empty()) {
    options.resolvconf_path = path.data();
    mask |= ARES_OPT_RESOLVCONF;
  }
  int status = ares_init_options(&ares_, &options, mask);
  if (status != ARES_SUCCESS) {
    ares_ = nullptr;
  } else if (!conf.servers.empty()) {
    status = ares_set_servers_ports_csv(ares_, conf.servers.c_str());
  }
  if (status == ARES_SUCCESS) return;
  error_ = fmt::format("result={} ({})", status, ares_strerror(status));
  if (ares_) ares_destroy(std::exchange(ares_, nullptr));
}

DnsChannel::~DnsChannel() {
  closing_ = true;
  if (ares_) ares_destroy(ares_);
  ares_library_cleanup();
}

void DnsChannel::lookup(const std::string& host, OnFound done) {
  if (!ares_) return done({{}, {}, error_, {}});
  ares_addrinfo_hints hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = ARES_AI_NOSORT | ARES_AI_ENVHOSTS;
  ++outstanding_;
  auto* request = new Request<OnFound>{*this, std::move(done)};
  asking_ = request;
  ares_getaddrinfo(
      ares_, host.c_str(), nullptr, &hints,
      [](void* argument, int status, int, ares_addrinfo* info) {
        std::unique_ptr<Request<OnFound>> r(static_cast<Request<OnFound>*>(argument));
        --r->channel.outstanding_;
        if (!r->channel.closing_) {
          Found found = read_answer(status, info, r->channel.asking_ != argument);
          r->done(std::move(found));
        }
        if (info) ares_freeaddrinfo(info);
      },
      request);
  asking_ = nullptr;
}

void DnsChannel::soa_serial(const std::string& zone, OnSerial done) {
  if (!ares_) return done(std::nullopt);
  ++outstanding_;
  ares_search(
      ares_, zone.c_str(), ns_c_in, ns_t_soa,
      [](void* argument, int status, int, unsigned char* bytes, int length) {
        std::unique_ptr<Request<OnSerial>> r(static_cast<Request<OnSerial>*>(argument));
        --r->channel.outstanding_;
        if (r->channel.closing_) return;
        std::optional<std::uint32_t> serial;
        ares_soa_reply* soa = nullptr;
        if (status == ARES_SUCCESS && ares_parse_soa_reply(bytes, length, &soa) == ARES_SUCCESS) serial = soa->serial;
        if (soa) ares_free_data(soa);
        r->done(serial);
      },
      new Request<OnSerial>{*this, std::move(done)});
}

int DnsChannel::poll_time(Usec until) const {
  int ms = -1;
  if (until >= 0) ms = static_cast<int>(std::clamp<Usec>((until - monotonic_now()) / kMillisecond + 1, 0, 3'600'000));
  timeval tv;
  if (ares_ && ares_timeout(ares_, nullptr, &tv)) {
    int own = static_cast<int>(std::min<long>(tv.tv_sec, 3600) * 1000 + tv.tv_usec / 1000 + 1);
    ms = ms < 0 ? own : std::min(ms, own);
  }
  return ms;
}

void DnsChannel::wait(int wake_fd, Usec until) {
  std::vector<pollfd> fds{{wake_fd, POLLIN, 0}};
  for (auto [fd, events] : sockets_) fds.push_back({fd, events, 0});
  ::poll(fds.data(), fds.size(), poll_time(until));
  if (!ares_) return;
  for (std::size_t i = 1; i < fds.size(); ++i) {
    bool in = fds[i].revents & (POLLIN | POLLERR | POLLHUP), out = fds[i].revents & POLLOUT;
    if (in || out) ares_process_fd(ares_, in ? fds[i].fd : ARES_SOCKET_BAD, out ? fds[i].fd : ARES_SOCKET_BAD);
  }
  ares_process_fd(ares_, ARES_SOCKET_BAD, ARES_SOCKET_BAD);  // what has waited too long
}

}  // namespace pgf::net
