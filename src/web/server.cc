#include "web/server.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <mutex>
#include <optional>

namespace pgf::web {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kRequestTime = std::chrono::seconds(10);  // from accept to the whole head
constexpr auto kAnswerTime = std::chrono::seconds(30);   // to make and to send the answer
constexpr auto kFeedTime = std::chrono::seconds(5);      // to take what a stream has sent
constexpr auto kRefreshTime = std::chrono::seconds(1);   // between what streams send
constexpr int kStreamBuffer = 32 * 1024;                 // of the kernel: who reads too slowly shall be found out

std::string_view reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 421:
      return "Misdirected Request";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Error";
  }
}

}  // namespace

// Shared with the answers that are still to be given; `fd` wakes the server's thread.
struct Server::Inbox {
  std::mutex mutex;
  std::vector<std::pair<std::uint64_t, Make>> answers;
  std::vector<Renew> renewed;
  bool ended = false;
  int fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);

  ~Inbox() { ::close(fd); }
  void wake() {
    std::uint64_t one = 1;
    [[maybe_unused]] ssize_t n = ::write(fd, &one, sizeof one);
  }
};

struct Server::Connection {
  int fd;
  std::uint64_t id;
  Clock::time_point deadline;
  std::string in = {};
  std::optional<std::string> out = {};  // the answer, once it is there
  std::size_t sent = 0;
  bool asked = false, head_only = false, done = false;
  std::function<std::string()> next = {};  // of a stream

  ~Connection() { ::close(fd); }
};

Server::Server(std::vector<int> listeners, Handler handler, Refresh refresh, Log& log)
    : listeners_(std::move(listeners)),
      handler_(std::move(handler)),
      refresh_(std::move(refresh)),
      log_(log),
      inbox_(std::make_shared<Inbox>()),
      thread_([this] { run(); }) {}

Server::~Server() {
  {
    std::lock_guard lock(inbox_->mutex);
    inbox_->ended = true;
  }
  inbox_->wake();
  thread_.join();
  for (int fd : listeners_) ::close(fd);
}

void Server::run() {
  std::vector<pollfd> fds;
  for (;;) {
    fds.clear();
    fds.push_back({inbox_->fd, POLLIN, 0});
    for (int fd : listeners_) fds.push_back({fd, POLLIN, 0});
    for (const auto& c : connections_) {
      const int wants_in = c->next || !c->asked ? POLLIN : 0;
      fds.push_back({c->fd, static_cast<short>((c->out ? POLLOUT : 0) | wants_in), 0});
    }
    ::poll(fds.data(), fds.size(), connections_.empty() ? -1 : wait_);

    if (fds[0].revents) {
      std::uint64_t count;
      [[maybe_unused]] ssize_t n = ::read(inbox_->fd, &count, sizeof count);
    }
    std::vector<std::pair<std::uint64_t, Make>> answers;
    std::vector<Renew> renewed;
    {
      std::lock_guard lock(inbox_->mutex);
      if (inbox_->ended) break;
      answers.swap(inbox_->answers);
      renewed.swap(inbox_->renewed);
    }
    for (const Renew& renew : renewed) {
      refreshing_ = false;
      renew();
      for (const auto& c : connections_)
        if (c->next && !c->done) feed(*c);
    }
    for (auto& [id, make] : answers) {
      auto it = std::ranges::find(connections_, id, [](const auto& c) { return c->id; });
      if (it != connections_.end()) send(**it, make());
    }

    const std::size_t first = 1 + listeners_.size(), polled = fds.size() - first;
    for (std::size_t i = 0; i < polled; ++i) {
      Connection& c = *connections_[i];
      const short events = fds[first + i].revents;
      if (events & (POLLERR | POLLHUP | POLLNVAL)) c.done = true;
      if (!c.done && (events & POLLIN)) on_readable(c);
      if (!c.done && c.out && (events & POLLOUT)) on_writable(c);
    }
    for (std::size_t i = 0; i < listeners_.size(); ++i)
      if (fds[1 + i].revents) accept_all(listeners_[i]);
    const auto now = Clock::now();
    std::erase_if(connections_, [&](const auto& c) { return c->done || now > c->deadline; });
    refresh_if_due();
  }
  connections_.clear();
}

void Server::accept_all(int listener) {
  for (;;) {
    int fd = ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      if (errno != EMFILE && errno != ENFILE) return;
      log_(LogLevel::warning, "metrics: cannot accept: out of file descriptors");
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the listener stays readable
      return;
    }
    if (connections_.size() >= kMaxConnections) {
      auto silent = std::ranges::find(connections_, false, [](const auto& c) { return c->asked; });
      if (silent == connections_.end()) {
        ::close(fd);
        continue;
      }
      connections_.erase(silent);
    }
    connections_.push_back(std::unique_ptr<Connection>(new Connection{fd, next_id_++, Clock::now() + kRequestTime}));
  }
}

void Server::on_readable(Connection& c) {
  char buffer[4096];
  ssize_t n = ::recv(c.fd, buffer, sizeof buffer, 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) {
    c.done = true;
    return;
  }
  if (c.next) return;  // it has nothing more to say; that it leaves is what we wait for
  c.in.append(buffer, static_cast<std::size_t>(n));
  auto parsed = parse(c.in);
  if (std::holds_alternative<Unfinished>(parsed)) return;
  c.asked = true;
  c.deadline = Clock::now() + kAnswerTime;
  if (auto* refused = std::get_if<Refused>(&parsed))
    return send(c, {refused->status, "text/plain; charset=utf-8", std::string(refused->reason) + "\n"});
  const Request& request = std::get<Request>(parsed);
  c.head_only = request.head_only;
  handler_(request, [inbox = inbox_, id = c.id](Make make) {
    {
      std::lock_guard lock(inbox->mutex);
      inbox->answers.emplace_back(id, std::move(make));
    }
    inbox->wake();
  });
}

void Server::send(Connection& c, Response response) {
  if (c.out || c.next) return;
  if (response.next && std::ranges::count_if(connections_, [](const auto& o) { return bool(o->next); }) >= kMaxStreams)
    response = {.status = 503, .body = "too many viewers\n"};
  c.out = fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: {}\r\n{}Connection: close\r\nCache-Control: no-store\r\n"
      "X-Content-Type-Options: nosniff\r\n{}{}{}\r\n",
      response.status, reason_phrase(response.status), response.type,
      response.next ? "" : fmt::format("Content-Length: {}\r\n", response.body.size()),
      response.status == 401 ? "WWW-Authenticate: Bearer\r\n" : "",
      response.status == 405 ? "Allow: GET, HEAD\r\n" : "", response.headers);
  if (!c.head_only) {
    *c.out += response.body;
    c.next = std::move(response.next);
  }
  if (!c.next) return on_writable(c);
  ::setsockopt(c.fd, SOL_SOCKET, SO_SNDBUF, &kStreamBuffer, sizeof kStreamBuffer);
  c.deadline = Clock::now() + kFeedTime;
  *c.out += c.next();
  on_writable(c);
}

// Who has not taken the last one misses this one, until his time is over.
void Server::feed(Connection& c) {
  if (c.out) return;
  std::string more = c.next();
  if (more.empty()) return;
  c.out = std::move(more);
  c.sent = 0;
  c.deadline = Clock::now() + kFeedTime;
  on_writable(c);
}

void Server::refresh_if_due() {
  const bool streams = std::ranges::any_of(connections_, [](const auto& c) { return bool(c->next); });
  const auto now = Clock::now();
  if (streams && !refreshing_ && now >= next_refresh_) {
    refreshing_ = true;
    next_refresh_ = std::max(next_refresh_ + kRefreshTime, now + kRefreshTime / 2);  // in step, if it can be
    refresh_([inbox = inbox_](Renew renew) {
      {
        std::lock_guard lock(inbox->mutex);
        inbox->renewed.push_back(std::move(renew));
      }
      inbox->wake();
    });
  }
  wait_ = 1000;
  if (streams && !refreshing_)
    wait_ = static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(next_refresh_ - now).count());
}

void Server::on_writable(Connection& c) {
  while (c.sent < c.out->size()) {
    ssize_t n = ::send(c.fd, c.out->data() + c.sent, c.out->size() - c.sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n < 0) break;
    c.sent += static_cast<std::size_t>(n);
  }
  if (c.next && c.sent == c.out->size()) {
    c.out.reset();
    c.deadline = Clock::time_point::max();
    return;
  }
  // Closing with unread bytes would reset the connection, and the answer with it.
  ::shutdown(c.fd, SHUT_WR);
  char rest[4096];
  for (int i = 0; i < 16 && ::recv(c.fd, rest, sizeof rest, 0) > 0; ++i) continue;  // who sends for ever gets the reset
  c.done = true;
}

}  // namespace pgf::web
