// The engine on epoll: readiness is turned into completions. Every fd is registered once, edge-triggered for both
// directions, and the edges are remembered; nothing is changed until the fd leaves.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "net/engine_core.h"

namespace pgf::net {
namespace {

constexpr int kMaxEvents = 256;
constexpr unsigned kBuffersPerTurn = 5;  // fairness: then the next stream has its turn
constexpr unsigned kAcceptsPerTurn = 64;
constexpr unsigned kMaxLent = 64;  // beyond that, forward() copies

// What epoll_event::data points at is told by its low bits.
enum Tag : std::uint64_t { kStream, kListener, kWake, kTagMask = 7 };

epoll_event event_for(std::uint32_t events, const void* pointer, Tag tag) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = reinterpret_cast<std::uint64_t>(pointer) | tag;
  return event;
}

}  // namespace

class EpollEngine final : public EngineCore {
 public:
  explicit EpollEngine(const EngineOptions& options)
      : epoll_(::epoll_create1(EPOLL_CLOEXEC)),
        buffer_size_(std::max(options.server_buffer_size, options.client_buffer_size)) {
    if (epoll_ < 0) throw std::runtime_error(std::string("epoll_create1: ") + std::strerror(errno));
    control(EPOLL_CTL_ADD, event_fd(), event_for(EPOLLIN | EPOLLET, nullptr, kWake));
  }
  ~EpollEngine() override {
    release_everything();
    ::close(epoll_);
  }
  const char* name() const override { return "epoll"; }

  Stream* adopt(int fd, Kind kind, StreamOwner* owner) override {
    Stream* s = EngineCore::adopt(fd, kind, owner);
    add(*s);
    return s;
  }

 private:
  int control(int what, int fd, epoll_event event) {
    ++syscalls;
    return ::epoll_ctl(epoll_, what, fd, &event);
  }

  void add(Stream& s) {
    // The first edges come for what is already true; until then a send is worth a try.
    s.writable_ = true;
    if (control(EPOLL_CTL_ADD, s.fd_, event_for(EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, &s, kStream)) < 0) {
      s.broken_ = true;
      s.error_ = errno;
      later(s);
    }
  }

  // --- receiving

  void start_reading(Stream& s) override {
    if (s.readable_) later(s);
  }
  void stop_reading(Stream&) override {}

  void more_work(Stream& s) override {
    if (s.connecting_) {
      if (s.op_) begin_connect(s);
      return;
    }
    read(s);
  }

  void read(Stream& s) {
    for (unsigned i = 0; i < kBuffersPerTurn && s.readable_ && s.armed_ && !s.silent() && !s.detaching_; ++i) {
      Buffer& buffer = current_buffer();
      ++syscalls;
      ssize_t n = ::recv(s.fd_, buffer.data, buffer_size_, 0);
      if (n == 0) {
        s.readable_ = false;
        return ended(s, 0);
      }
      if (n < 0) {
        if (errno == EINTR) continue;
        s.readable_ = false;
        if (errno != EAGAIN && errno != EWOULDBLOCK) ended(s, errno);
        return;
      }
      // A short read means drained; only an EOF or error that was announced is still worth a look.
      s.readable_ = static_cast<std::size_t>(n) == buffer_size_ || s.hangup_;
      s.bytes_in += static_cast<std::size_t>(n);
      buffer.refs = 1;
      deliver(s, {{buffer.data, static_cast<std::size_t>(n)}, &buffer});
      if (buffer.refs > 1) {
        ++lent_;
        current_ = nullptr;  // its segments give it back
      }
      --buffer.refs;
    }
    if (s.readable_ && s.armed_ && !s.silent() && !s.detaching_) later(s);
  }

  Buffer& current_buffer() {
    if (current_) return *current_;
    if (free_buffers_.empty()) {
      auto buffer = std::make_unique<OwnedBuffer>();
      buffer->memory = std::make_unique_for_overwrite<std::uint8_t[]>(buffer_size_);
      buffer->data = buffer->memory.get();
      free_buffers_.push_back(buffer.get());
      buffers_.push_back(std::move(buffer));
    }
    current_ = free_buffers_.back();
    free_buffers_.pop_back();
    return *current_;
  }
  void recycle(Buffer& buffer) override {
    --lent_;
    free_buffers_.push_back(&buffer);
  }
  bool may_lend(const Buffer&) const override { return lent_ < kMaxLent; }

  // --- sending

  void flush(Stream& s) override {
    while (s.writable_ && s.out_.head) {
      ssize_t n;
      ++syscalls;
      if (!s.out_.head->next || send_cap > 0) {
        std::size_t size = send_cap > 0 ? std::min(send_cap, s.out_.head->size()) : s.out_.head->size();
        n = ::send(s.fd_, s.out_.head->data + s.out_.head->begin, size, MSG_NOSIGNAL);
      } else {
        iovec parts[kMaxIovecs];
        msghdr message{};
        message.msg_iov = parts;
        message.msg_iovlen = gather(s, parts);
        n = ::sendmsg(s.fd_, &message, MSG_NOSIGNAL);
      }
      if (n >= 0) {
        sent(s, static_cast<std::size_t>(n));
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        s.writable_ = false;
      } else if (errno != EINTR) {
        return send_failed(s, errno);
      }
    }
  }

  // --- connecting, leaving

  void start_connect(Stream& s) override { later(s); }
  void begin_connect(Stream& s) {
    ++syscalls;
    int error = ::connect(s.fd_, reinterpret_cast<sockaddr*>(&s.op_->address), s.op_->address_length) < 0 ? errno : 0;
    pool_.give(std::exchange(s.op_, nullptr));
    if (error != 0 && error != EINPROGRESS) return connect_result(s, error);
    add(s);
    if (s.broken_) return connect_result(s, s.error_);
    if (error == 0) connect_result(s, 0);
  }
  void finish_connect(Stream& s) {
    int error = 0;
    socklen_t length = sizeof error;
    ++syscalls;
    if (::getsockopt(s.fd_, SOL_SOCKET, SO_ERROR, &error, &length) < 0) error = errno;
    connect_result(s, error);
  }

  void abort(Stream&) override {}
  void before_detach(Stream& s) override { control(EPOLL_CTL_DEL, s.fd_, {}); }
  void close_fd(int fd) override {  // closing takes it out of the epoll set
    ++syscalls;
    ::close(fd);
  }

  // --- accepting: level-triggered, so that what is left over comes again

  void watch(Listener& l) override {
    l.watching = control(EPOLL_CTL_ADD, l.fd, event_for(EPOLLIN | EPOLLEXCLUSIVE, &l, kListener)) == 0;
    if (!l.watching) pause_listener(l);
  }
  void unwatch(Listener& l) override {
    if (!l.watching) return;
    l.watching = false;
    control(EPOLL_CTL_DEL, l.fd, {});
  }
  void accept(Listener& l) {
    for (unsigned i = 0; i < kAcceptsPerTurn && l.owner && l.watching; ++i) {
      ++syscalls;
      int fd = ::accept4(l.fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      int error = errno;
      if (fd < 0 && (error == EAGAIN || error == EWOULDBLOCK)) return;
      accepted(l, fd >= 0 ? fd : -error);
      if (l.resume_at >= 0) unwatch(l);
    }
  }

  // --- the turn

  void wait(Usec timeout) override {
    // Rounded up: a turn that comes too early finds nothing to do and waits again.
    int milliseconds = timeout < 0 ? -1 : static_cast<int>(std::min<Usec>((timeout + 999) / 1000, 1'000'000'000));
    ++syscalls;
    int n = ::epoll_wait(epoll_, events_, kMaxEvents, milliseconds);
    woke_up();
    for (int i = 0; i < n; ++i) {
      std::uint64_t data = events_[i].data.u64;
      auto* pointer = reinterpret_cast<void*>(data & ~static_cast<std::uint64_t>(kTagMask));
      Tag tag = static_cast<Tag>(data & kTagMask);
      if (tag == kStream) {
        on_event(*static_cast<Stream*>(pointer), events_[i].events);
      } else if (tag == kListener) {
        accept(*static_cast<Listener*>(pointer));
      }
    }
  }

  void on_event(Stream& s, std::uint32_t events) {
    if (s.closing_) return;
    if (s.connecting_) {
      if (events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) finish_connect(s);
    }
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) s.readable_ = true;
    if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) s.hangup_ = true;
    if (events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) {
      s.writable_ = true;
      if (s.out_.head) mark_dirty(s);
    }
    if (!s.connecting_ && !s.connected_) read(s);
  }

  struct OwnedBuffer : Buffer {
    std::unique_ptr<std::uint8_t[]> memory;
  };

  int epoll_;
  std::size_t buffer_size_;
  std::vector<std::unique_ptr<OwnedBuffer>> buffers_;
  std::vector<Buffer*> free_buffers_;
  Buffer* current_ = nullptr;
  unsigned lent_ = 0;
  epoll_event events_[kMaxEvents];
};

std::unique_ptr<Engine> make_epoll(const EngineOptions& options) { return std::make_unique<EpollEngine>(options); }

}  // namespace pgf::net
