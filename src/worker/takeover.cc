#include "worker/takeover.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "net/socket.h"
#include "wire/read.h"
#include "wire/startup.h"
#include "wire/write.h"

namespace pgf::worker {

using session::Handed;

static constexpr std::size_t kMaxMessage = 1u << 28;
static constexpr int kMaxDescriptors = 253;  // the kernel's SCM_MAX_FD

static std::unexpected<std::string> failed(std::string_view step) {
  return std::unexpected(fmt::format("takeover: {}: {}", step, std::strerror(errno)));
}

std::expected<bool, std::string> Takeover::begin(const std::string& path) {
  auto address = net::unix_address(path);
  if (!address) return std::unexpected(fmt::format("takeover: no such socket: {}", path));
  socket_ = Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket_.fd < 0) return failed("socket");
  if (::connect(socket_.fd, address->get(), address->length) < 0) return false;

  std::string start = wire::startup_message(0x00030000, {{"user", "pgbouncer"}, {"database", "pgbouncer"}});
  if (auto sent = send(start); !sent) return std::unexpected(sent.error());
  for (;;) {
    auto m = receive();
    if (!m) return std::unexpected(m.error());
    if (m->type == 'E')
      return std::unexpected(fmt::format("takeover: login refused: {}", wire::read_error(as_bytes(m->body)).message));
    if (m->type == 'R' && (m->body.size() != 4 || load_be32(as_bytes(m->body).data()) != 0))
      return std::unexpected("takeover: the old process asks for a password: it runs as another user");
    if (m->type == 'Z') break;
  }
  log_(LogLevel::log, "login OK, sending SUSPEND");
  if (auto done = command("SUSPEND;"); !done) return std::unexpected(done.error());
  log_(LogLevel::log, "SUSPEND finished, sending SHOW FDS");
  std::string refused;  // by a PgBouncer, which does not know the command
  if (auto done = command("SHOW TAKEOVER;", &refused); !done) return std::unexpected(done.error());
  if (!refused.empty())
    if (auto done = command("SHOW FDS;"); !done) return std::unexpected(done.error());
  log_(LogLevel::log, "SHOW FDS finished, {} sockets", kept_.size());
  return true;
}

std::vector<Handed> Takeover::take_rows() {
  for (Descriptor& d : kept_) d.fd = -1;
  kept_.clear();
  return std::move(rows_);
}

std::string Takeover::finish() {
  log_(LogLevel::log, "sending SHUTDOWN");
  std::string out;
  wire::query(out, "SHUTDOWN;");
  if (auto sent = send(out); !sent) return sent.error();
  for (;;) {  // nothing but the end is expected
    char unused[512];
    ssize_t n = ::recv(socket_.fd, unused, sizeof unused, 0);
    if (n == 0 || (n < 0 && errno == ECONNRESET)) break;
    if (n < 0 && errno != EINTR) return failed("waiting for SHUTDOWN").error();
  }
  return {};
}

pid_t Takeover::old_pid() const {
  auto peer = net::peer_credentials(socket_.fd);
  return peer ? peer->pid : 0;
}

std::expected<void, std::string> Takeover::send(std::string_view bytes) {
  if (!send_with_descriptor(socket_.fd, bytes, -1)) return failed("send");
  return {};
}

std::expected<Takeover::Message, std::string> Takeover::receive() {
  for (;;) {
    if (buffer_.size() >= 5) {
      std::uint32_t length = load_be32(as_bytes(buffer_).data() + 1);
      if (length < 4 || length > kMaxMessage) return std::unexpected("takeover: the old process sent nonsense");
      if (buffer_.size() >= 1 + std::size_t{length}) {
        Message m{buffer_[0], buffer_.substr(5, length - 4)};
        buffer_.erase(0, 1 + std::size_t{length});
        return m;
      }
    }
    char bytes[16384];
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxDescriptors)];
    iovec part{bytes, sizeof bytes};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    ssize_t n = ::recvmsg(socket_.fd, &message, MSG_CMSG_CLOEXEC);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed("recvmsg");
    if (n == 0) return std::unexpected("takeover: the old process closed the connection");
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
      if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
      for (std::size_t at = 0; at + sizeof(int) <= c->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
        int fd;
        std::memcpy(&fd, CMSG_DATA(c) + at, sizeof fd);
        arrived_.emplace_back(fd);
      }
    }
    if (message.msg_flags & MSG_CTRUNC)
      return std::unexpected("takeover: too few file descriptors are allowed to this process (ulimit -n)");
    buffer_.append(bytes, static_cast<std::size_t>(n));
  }
}

std::expected<void, std::string> Takeover::command(std::string_view sql, std::string* refused) {
  std::string out;
  wire::query(out, sql);
  if (auto sent = send(out); !sent) return sent;
  for (;;) {
    auto m = receive();
    if (!m) return std::unexpected(m.error());
    if (m->type == 'E') {
      std::string text(wire::read_error(as_bytes(m->body)).message);
      if (!refused) return std::unexpected(fmt::format("takeover: {} failed: {}", sql, text));
      *refused = text;
    } else if (m->type == 'D') {
      if (auto taken = row(m->body); !taken) return taken;
    } else if (m->type == 'Z') {
      return {};
    }
  }
}

static std::optional<std::string> bytes_of(const std::optional<std::string>& hex) {
  if (!hex || !hex->starts_with("\\x")) return std::nullopt;
  std::string out;
  for (std::size_t i = 2; i + 1 < hex->size(); i += 2) {
    unsigned value = 0;
    std::from_chars(hex->data() + i, hex->data() + i + 2, value, 16);
    out += static_cast<char>(value);
  }
  return out;
}

std::expected<void, std::string> Takeover::row(std::string_view body) {
  Cursor in(as_bytes(body));
  std::vector<std::optional<std::string>> columns(in.u16());
  for (auto& column : columns)
    if (std::int32_t size = in.i32(); size >= 0) column = as_text(in.bytes(static_cast<std::size_t>(size)));
  if (!in.at_end() || columns.size() < 15 || !columns[1] || !columns[4])
    return std::unexpected("takeover: a row that is not of SHOW FDS");
  auto number = [&](std::size_t i) {
    std::int64_t value = 0;
    if (columns[i]) std::from_chars(columns[i]->data(), columns[i]->data() + columns[i]->size(), value);
    return value;
  };
  Handed h;
  static constexpr std::string_view kTasks[] = {"pooler", "client", "server", "pool"};
  auto task = std::ranges::find(kTasks, *columns[1]);
  if (task == std::end(kTasks)) return std::unexpected(fmt::format("takeover: unknown task: {}", *columns[1]));
  h.task = static_cast<Handed::Task>(task - std::begin(kTasks));
  h.fd = static_cast<int>(number(0));
  h.user = columns[2];
  h.database = columns[3];
  h.addr = *columns[4];
  h.port = static_cast<int>(number(5));
  h.cancel = static_cast<std::uint64_t>(number(6));
  h.link = static_cast<int>(number(7));
  h.client_encoding = columns[8];
  h.std_strings = columns[9];
  h.datestyle = columns[10];
  h.timezone = columns[11];
  h.password = columns[12];
  h.scram_client_key = bytes_of(columns[13]);
  h.scram_server_key = bytes_of(columns[14]);
  if (columns.size() > 15) h.state = bytes_of(columns[15]).value_or("");
  if (h.task != Handed::Task::pool) {
    if (arrived_.empty()) return std::unexpected("takeover: a row without its file descriptor");
    kept_.push_back(std::move(arrived_.front()));
    arrived_.pop_front();
    h.received = kept_.back().fd;
    ::fcntl(h.received, F_SETFL, ::fcntl(h.received, F_GETFL) | O_NONBLOCK);
  }
  rows_.push_back(std::move(h));
  return {};
}

}  // namespace pgf::worker
