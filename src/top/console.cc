#include "top/console.h"

#include <errno.h>
#include <fmt/format.h>
#include <netdb.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "auth/exchange.h"
#include "base/bytes.h"
#include "net/socket.h"
#include "wire/read.h"
#include "wire/startup.h"
#include "wire/write.h"

namespace pgf::top {
namespace {

using Failure = std::unexpected<std::string>;

constexpr std::uint32_t kMaxMessage = 16 << 20;

Failure failed(std::string_view step) { return Failure(fmt::format("{}: {}", step, strerror(errno))); }

// Collects what TLS wants to say.
class Collect final : public net::Tls::Out {
 public:
  void put(Bytes cipher) override { bytes.append(as_text(cipher)); }
  std::string bytes;
};

std::vector<net::Address> addresses(const Target& target, std::string& error) {
  if (target.is_unix()) {
    auto address = net::unix_address(target.socket_path());
    if (address) return {*address};
    error = "the path is too long";
    return {};
  }
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (int code = getaddrinfo(target.host.c_str(), std::to_string(target.port).c_str(), &hints, &list)) {
    error = gai_strerror(code);
    return {};
  }
  std::vector<net::Address> found;
  for (addrinfo* a = list; a; a = a->ai_next) {
    net::Address address;
    address.length = a->ai_addrlen;
    memcpy(&address.storage, a->ai_addr, a->ai_addrlen);
    found.push_back(address);
  }
  freeaddrinfo(list);
  return found;
}

}  // namespace

const std::string& Table::at(const std::vector<std::string>& row, std::string_view column) const {
  static const std::string kNothing;
  auto it = std::ranges::find(columns, column);
  const auto i = static_cast<std::size_t>(it - columns.begin());
  return i < row.size() ? row[i] : kNothing;
}

double Table::number(const std::vector<std::string>& row, std::string_view column) const {
  const std::string& text = at(row, column);
  double value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

void Console::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
  tls_.reset();
  buffer_.clear();
}

std::expected<void, std::string> Console::open(const Target& target) {
  close();
  auto done = connect(target);
  if (done && !target.is_unix() && target.tls != Tls::disable) done = secure(target);
  if (done) done = log_in(target);
  if (!done) close();
  return done;
}

std::expected<void, std::string> Console::connect(const Target& target) {
  const std::string where = target.is_unix() ? target.socket_path() : fmt::format("{}:{}", target.host, target.port);
  std::string error;
  for (const net::Address& address : addresses(target, error)) {
    fd_ = ::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd_ < 0) return failed("socket");
    int result = ::connect(fd_, address.get(), address.length) == 0 ? 0 : errno;
    if (result == EINPROGRESS) {
      if (!wait_(fd_, POLLOUT)) return Failure(fmt::format("{} does not answer", where));
      socklen_t size = sizeof result;
      getsockopt(fd_, SOL_SOCKET, SO_ERROR, &result, &size);
    }
    if (result == 0) return {};
    error = strerror(result);
    close();
  }
  return Failure(fmt::format("cannot connect to {}: {}", where, error));
}

std::expected<void, std::string> Console::secure(const Target& target) {
  if (auto sent = send_raw(wire::ssl_request()); !sent) return sent;
  while (buffer_.empty())
    if (auto more = receive(); !more) return more;
  const char answer = buffer_[0];
  buffer_.erase(0, 1);
  if (answer == 'N' && target.tls == Tls::prefer) return {};
  if (answer != 'S' || !buffer_.empty()) return Failure("the pooler does not offer TLS");
  using Verify = net::TlsOptions::Verify;
  net::TlsOptions options;
  options.side = net::TlsOptions::Side::connect;
  options.prefix = "server_tls";
  options.ca_file = target.root_cert;
  options.verify = target.tls == Tls::verify_full ? Verify::name
                   : target.tls == Tls::verify_ca ? Verify::chain
                                                  : Verify::none;
  auto context = net::TlsContext::make(options);
  if (!context) return Failure(context.error());
  context_ = *context;
  tls_ = net::Tls::connect(*context_, target.host, false);
  Collect out;
  tls_->start(out);
  if (auto sent = send_raw(out.bytes); !sent) return sent;
  while (tls_->state() == net::Tls::State::handshake)
    if (auto more = receive(); !more) return more;
  if (!tls_->open()) return Failure("TLS: " + tls_->error());
  return {};
}

std::expected<void, std::string> Console::log_in(const Target& target) {
  auto sent = send(wire::startup_message(
      wire::protocol(0), {{"user", target.user}, {"database", "pgbouncer"}, {"application_name", "pgflotilla top"}}));
  if (!sent) return sent;
  std::optional<auth::ScramClient> scram;
  for (;;) {
    auto m = message();
    if (!m) return Failure(m.error());
    if (m->type == 'E') return Failure(std::string(wire::read_error(as_bytes(m->body)).message));
    if (m->type == 'Z') return {};
    if (m->type != 'R') continue;
    auto request = wire::read_auth(as_bytes(m->body));
    if (!request) return Failure("the pooler sent nonsense");
    std::string out;
    std::expected<std::string, std::string> said;
    switch (request->code) {
      case 0:
        if (scram && !scram->verified()) return Failure("the pooler did not prove that it knows the password");
        continue;
      case 3:
        wire::password_message(out, target.password);
        break;
      case 5: {
        if (request->data.size() != 4) return Failure("the pooler sent nonsense");
        std::array<std::uint8_t, 4> salt;
        std::ranges::copy(request->data, salt.begin());
        wire::password_message(out, auth::md5_answer(auth::md5_stored(target.password, target.user), salt));
        break;
      }
      case 10:
        scram.emplace(target.password);
        if (tls_) scram->bind_channel(tls_->channel_binding());
        said = scram->start(request->data);
        if (said) wire::sasl_message(out, *said);
        break;
      case 11:
        if (!scram) return Failure("the pooler sent nonsense");
        said = scram->respond(request->data);
        if (said) wire::sasl_message(out, *said);
        break;
      case 12:
        if (!scram) return Failure("the pooler sent nonsense");
        if (auto good = scram->finish(request->data); !good) return good;
        continue;
      default:
        return Failure("the pooler wants another kind of login than a password");
    }
    if (!said) return Failure(said.error());
    if (sent = send(out); !sent) return sent;
  }
}

std::expected<Table, std::string> Console::show(std::string_view what) {
  std::string out;
  wire::query(out, fmt::format("SHOW {}", what));
  if (auto sent = send(out); !sent) return Failure(sent.error());
  Table table;
  std::string refused;
  for (;;) {
    auto m = message();
    if (!m) return Failure(m.error());
    Cursor in(as_bytes(m->body));
    if (m->type == 'T') {
      for (int n = in.u16(); n > 0 && in.ok(); --n) {
        table.columns.emplace_back(in.cstr());
        in.bytes(18);
      }
    } else if (m->type == 'D') {
      auto& row = table.rows.emplace_back();
      for (int n = in.u16(); n > 0 && in.ok(); --n) {
        const std::int32_t size = in.i32();
        row.emplace_back(size < 0 ? std::string_view() : as_text(in.bytes(static_cast<std::size_t>(size))));
      }
    } else if (m->type == 'E') {
      refused = wire::read_error(as_bytes(m->body)).message;
    } else if (m->type == 'Z') {
      break;
    }
    if (!in.ok()) return Failure("the pooler sent nonsense");
  }
  if (!refused.empty()) return Failure(refused);
  return table;
}

std::expected<void, std::string> Console::send(std::string_view bytes) {
  if (!tls_) return send_raw(bytes);
  Collect out;
  tls_->write(as_bytes(bytes), out);
  return send_raw(out.bytes);
}

std::expected<void, std::string> Console::send_raw(std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno != EAGAIN) return failed("the pooler is gone");
    if (n < 0) {
      if (!wait_(fd_, POLLOUT)) return Failure("the pooler does not answer");
      continue;
    }
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return {};
}

std::expected<void, std::string> Console::receive() {
  std::uint8_t bytes[16384];
  for (;;) {
    ssize_t n = ::recv(fd_, bytes, sizeof bytes, 0);
    if (n == 0) return Failure("the pooler has closed the connection");
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno != EAGAIN) return failed("the pooler is gone");
    if (n < 0) {
      if (!wait_(fd_, POLLIN)) return Failure("the pooler does not answer");
      continue;
    }
    const Bytes got(bytes, static_cast<std::size_t>(n));
    if (!tls_) {
      buffer_.append(as_text(got));
      return {};
    }
    std::vector<std::uint8_t> plain(net::Tls::kRoom + got.size());
    Collect out;
    const std::size_t size = tls_->read(got, plain, out);
    buffer_.append(as_text(Bytes(plain).first(size)));
    if (auto sent = send_raw(out.bytes); !sent) return sent;
    if (tls_->state() == net::Tls::State::failed) return Failure("TLS: " + tls_->error());
    return {};
  }
}

std::expected<Console::Message, std::string> Console::message() {
  for (;;) {
    if (buffer_.size() >= 5) {
      const std::uint32_t length = load_be32(as_bytes(buffer_).data() + 1);
      if (length < 4 || length > kMaxMessage) return Failure("the pooler sent nonsense");
      if (buffer_.size() >= 1 + std::size_t{length}) {
        Message m{buffer_[0], buffer_.substr(5, length - 4)};
        buffer_.erase(0, 1 + std::size_t{length});
        return m;
      }
    }
    if (auto more = receive(); !more) return Failure(more.error());
  }
}

}  // namespace pgf::top
