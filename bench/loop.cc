#include "loop.h"

#include <errno.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <deque>
#include <vector>

namespace bench {
namespace {

constexpr int kSendFlags = MSG_NOSIGNAL;

// ---------------------------------------------------------------------------------------------------------- io_uring

class UringLoop final : public Loop {
 public:
  explicit UringLoop(Handler& handler) : handler_(handler) {}

  bool start() {
    io_uring_params params{};
    params.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_SUBMIT_ALL |
                   IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP;
    params.cq_entries = 16384;
    if (io_uring_queue_init_params(1024, &ring_, &params) != 0) return false;
    pool_.resize(std::size_t{kBuffers} * kBufferSize);
    const std::size_t bytes = kBuffers * sizeof(io_uring_buf);
    void* memory = nullptr;
    if (posix_memalign(&memory, 4096, bytes) != 0) return false;
    memset(memory, 0, bytes);
    buffers_ = static_cast<io_uring_buf_ring*>(memory);
    io_uring_buf_reg reg{};
    reg.ring_addr = reinterpret_cast<std::uintptr_t>(memory);
    reg.ring_entries = kBuffers;
    reg.bgid = 0;
    if (io_uring_register_buf_ring(&ring_, &reg, 0) != 0) return false;
    io_uring_buf_ring_init(buffers_);
    for (unsigned i = 0; i < kBuffers; ++i) give_back(i, i);
    io_uring_buf_ring_advance(buffers_, kBuffers);
    return true;
  }

  ~UringLoop() override {
    for (Conn& c : conns_)
      if (c.fd >= 0) ::close(c.fd);
    io_uring_queue_exit(&ring_);
    free(buffers_);
  }

  void listen(int fd) override {
    io_uring_sqe* sqe = get_sqe();
    io_uring_prep_multishot_accept(sqe, fd, nullptr, nullptr, SOCK_CLOEXEC);
    io_uring_sqe_set_data64(sqe, static_cast<std::uint64_t>(fd) << 2 | kAccept);
  }

  Id add(int fd) override {
    Id id;
    if (free_.empty()) {
      id = static_cast<Id>(conns_.size());
      conns_.emplace_back();
    } else {
      id = free_.front();
      free_.pop_front();
    }
    Conn& c = conns_[id];
    c.fd = fd;
    c.closed = c.dirty = c.want_shut = false;
    arm(id);
    return id;
  }

  std::string& out(Id id) override { return conns_[id].pending; }

  void flush(Id id) override {
    Conn& c = conns_[id];
    if (c.dirty || c.sending) return;
    c.dirty = true;
    dirty_.push_back(id);
  }

  void close(Id id) override {
    Conn& c = conns_[id];
    c.closed = true;
    c.want_shut = true;
    if (!c.pending.empty()) flush(id);
    settle(id);
  }

  void turn(std::int64_t wait_ns) override {
    send_dirty();
    io_uring_cqe* cqe = nullptr;
    if (wait_ns < 0) {
      io_uring_submit_and_wait(&ring_, 1);
    } else {
      __kernel_timespec ts{.tv_sec = wait_ns / 1'000'000'000, .tv_nsec = wait_ns % 1'000'000'000};
      io_uring_submit_and_wait_timeout(&ring_, &cqe, 1, &ts, nullptr);
    }
    unsigned head, seen = 0;
    io_uring_for_each_cqe(&ring_, head, cqe) {
      ++seen;
      on_completion(*cqe);
    }
    io_uring_cq_advance(&ring_, seen);
    if (returned_) io_uring_buf_ring_advance(buffers_, static_cast<int>(returned_)), returned_ = 0;
  }

  const char* name() const override { return "io_uring"; }

 private:
  // The low two bits of user_data; above them is the Id, or the listening fd.
  enum Op : std::uint64_t { kRecv = 0, kSend = 1, kAccept = 2 };
  static constexpr unsigned kBuffers = 512, kBufferSize = 32 * 1024;

  struct Conn {
    int fd = -1;
    std::string pending, in_flight;
    std::size_t sent = 0;
    unsigned operations = 0;
    bool sending = false, dirty = false, closed = false, want_shut = false;
  };

  char* buffer(unsigned i) { return pool_.data() + std::size_t{i} * kBufferSize; }
  void give_back(unsigned i, unsigned offset) {
    io_uring_buf_ring_add(buffers_, buffer(i), kBufferSize, static_cast<unsigned short>(i),
                          io_uring_buf_ring_mask(kBuffers), static_cast<int>(offset));
  }

  io_uring_sqe* get_sqe() {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    while (!sqe) {
      io_uring_submit(&ring_);
      sqe = io_uring_get_sqe(&ring_);
    }
    return sqe;
  }

  void arm(Id id) {
    Conn& c = conns_[id];
    io_uring_sqe* sqe = get_sqe();
    io_uring_prep_recv_multishot(sqe, c.fd, nullptr, 0, 0);
    sqe->flags |= IOSQE_BUFFER_SELECT;
    sqe->buf_group = 0;
    sqe->ioprio |= IORING_RECVSEND_POLL_FIRST;
    io_uring_sqe_set_data64(sqe, std::uint64_t{id} << 2 | kRecv);
    ++c.operations;
  }

  void send(Id id) {
    Conn& c = conns_[id];
    io_uring_sqe* sqe = get_sqe();
    io_uring_prep_send(sqe, c.fd, c.in_flight.data() + c.sent, c.in_flight.size() - c.sent, kSendFlags | MSG_WAITALL);
    io_uring_sqe_set_data64(sqe, std::uint64_t{id} << 2 | kSend);
    c.sending = true;
    ++c.operations;
  }

  void send_dirty() {
    for (std::size_t i = 0; i < dirty_.size(); ++i) {
      Conn& c = conns_[dirty_[i]];
      c.dirty = false;
      if (c.fd < 0 || c.sending || c.pending.empty()) continue;
      c.in_flight.clear();
      c.in_flight.swap(c.pending);
      c.sent = 0;
      send(dirty_[i]);
    }
    dirty_.clear();
  }

  // A closed connection goes once its last bytes are out and the kernel holds nothing of it.
  void settle(Id id) {
    Conn& c = conns_[id];
    if (!c.closed || c.sending || c.dirty) return;
    if (c.want_shut) {
      c.want_shut = false;
      shutdown(c.fd, SHUT_RDWR);  // ends the multishot receive; close() alone would not
    }
    if (c.operations) return;
    ::close(c.fd);
    c.fd = -1;
    c.pending.clear();
    free_.push_back(id);
  }

  void on_completion(const io_uring_cqe& cqe) {
    const std::uint64_t data = cqe.user_data;
    const Id id = static_cast<Id>(data >> 2);
    switch (data & 3) {
      case kAccept:
        if (cqe.res >= 0) handler_.on_accept(cqe.res);
        if (!(cqe.flags & IORING_CQE_F_MORE)) listen(static_cast<int>(id));
        return;
      case kSend:
        on_sent(id, cqe.res);
        return;
      default:
        on_received(id, cqe);
    }
  }

  void on_sent(Id id, int result) {
    Conn& c = conns_[id];
    --c.operations;
    c.sending = false;
    if (result < 0) {
      c.pending.clear();  // the receive side reports the end
      shutdown(c.fd, SHUT_RDWR);
    } else if ((c.sent += static_cast<std::size_t>(result)) < c.in_flight.size()) {
      send(id);
      return;
    } else if (c.in_flight.capacity() > 4096) {
      std::string().swap(c.in_flight);  // an idle connection owns no large buffer
    }
    if (!c.pending.empty()) flush(id);
    settle(id);
  }

  void on_received(Id id, const io_uring_cqe& cqe) {
    const bool more = cqe.flags & IORING_CQE_F_MORE;
    if (!more) --conns_[id].operations;
    if (cqe.flags & IORING_CQE_F_BUFFER) {
      const unsigned i = cqe.flags >> IORING_CQE_BUFFER_SHIFT;
      if (cqe.res > 0 && !conns_[id].closed)
        handler_.on_bytes(id, std::string_view(buffer(i), static_cast<std::size_t>(cqe.res)));
      give_back(i, returned_++);
    }
    Conn& c = conns_[id];  // the handler may have added connections
    if (more) return;
    if (c.closed) {
      settle(id);
    } else if (cqe.res > 0 || cqe.res == -ENOBUFS || cqe.res == -EINTR) {
      // The buffers given back in this turn have to be visible before the kernel looks again.
      if (returned_) io_uring_buf_ring_advance(buffers_, static_cast<int>(returned_)), returned_ = 0;
      arm(id);
    } else {
      c.closed = c.want_shut = true;
      c.pending.clear();
      handler_.on_end(id, -cqe.res);
      settle(id);
    }
  }

  Handler& handler_;
  io_uring ring_{};
  io_uring_buf_ring* buffers_ = nullptr;
  std::vector<char> pool_;
  unsigned returned_ = 0;
  std::deque<Conn> conns_;
  std::deque<Id> free_;
  std::vector<Id> dirty_;
};

// ------------------------------------------------------------------------------------------------------------- epoll

class EpollLoop final : public Loop {
 public:
  explicit EpollLoop(Handler& handler)
      : handler_(handler), epoll_(epoll_create1(EPOLL_CLOEXEC)), scratch_(256 * 1024) {}

  ~EpollLoop() override {
    for (Conn& c : conns_)
      if (c.fd >= 0) ::close(c.fd);
    ::close(epoll_);
  }

  void listen(int fd) override {
    epoll_event event{.events = EPOLLIN | EPOLLEXCLUSIVE, .data = {.u64 = kListener | static_cast<unsigned>(fd)}};
    epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
  }

  Id add(int fd) override {
    Id id;
    if (free_.empty()) {
      id = static_cast<Id>(conns_.size());
      conns_.emplace_back();
    } else {
      id = free_.front();
      free_.pop_front();
    }
    Conn& c = conns_[id];
    c.fd = fd;
    c.closed = c.blocked = c.dirty = false;
    epoll_event event{.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data = {.u64 = id}};
    epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
    return id;
  }

  std::string& out(Id id) override { return conns_[id].pending; }

  void flush(Id id) override {
    Conn& c = conns_[id];
    if (c.dirty) return;
    c.dirty = true;
    dirty_.push_back(id);
  }

  void close(Id id) override {
    conns_[id].closed = true;
    flush(id);
  }

  void turn(std::int64_t wait_ns) override {
    send_dirty();
    epoll_event events[512];
    if (!more_.empty()) wait_ns = 0;
    timespec ts{.tv_sec = wait_ns / 1'000'000'000, .tv_nsec = wait_ns % 1'000'000'000};
    const int n = epoll_pwait2(epoll_, events, 512, wait_ns < 0 ? nullptr : &ts, nullptr);
    std::vector<Id> more;
    more.swap(more_);
    for (Id id : more) receive(id);
    for (int i = 0; i < n; ++i) {
      if (events[i].data.u64 & kListener) {
        accept_some(static_cast<int>(events[i].data.u64 & 0xffffffff));
        continue;
      }
      const Id id = static_cast<Id>(events[i].data.u64);
      if (conns_[id].fd < 0) continue;
      if (events[i].events & EPOLLOUT && conns_[id].blocked) {
        conns_[id].blocked = false;
        flush(id);
      }
      if (events[i].events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) receive(id);
      // Data and end may share one edge: look once more.
      if (events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR) && conns_[id].fd >= 0) more_.push_back(id);
    }
    // Closed in this turn: their Ids must not be reused before all events of the turn are done.
    for (Id id : gone_) free_.push_back(id);
    gone_.clear();
  }

  const char* name() const override { return "epoll"; }

 private:
  static constexpr std::uint64_t kListener = std::uint64_t{1} << 32;  // in data.u64, above the fd

  struct Conn {
    int fd = -1;
    std::string pending;
    std::size_t sent = 0;
    bool dirty = false, blocked = false, closed = false;
  };

  void accept_some(int listener) {
    for (int i = 0; i < 16; ++i) {
      const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) return;
      handler_.on_accept(fd);
    }
  }

  void receive(Id id) {
    Conn& c = conns_[id];
    if (c.fd < 0 || c.closed) return;
    const ssize_t n = recv(c.fd, scratch_.data(), scratch_.size(), MSG_DONTWAIT);
    if (n > 0) {
      // A full buffer may have left something behind, and an edge is reported once.
      if (static_cast<std::size_t>(n) == scratch_.size()) more_.push_back(id);
      handler_.on_bytes(id, std::string_view(scratch_.data(), static_cast<std::size_t>(n)));
      return;
    }
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    const int error = n < 0 ? errno : 0;
    drop(id);
    handler_.on_end(id, error);
  }

  void drop(Id id) {
    Conn& c = conns_[id];
    ::close(c.fd);
    c.fd = -1;
    c.pending.clear();
    c.sent = 0;
    c.closed = true;
    gone_.push_back(id);
  }

  void send_dirty() {
    for (std::size_t i = 0; i < dirty_.size(); ++i) {
      const Id id = dirty_[i];
      Conn& c = conns_[id];
      c.dirty = false;
      if (c.fd < 0 || c.blocked) continue;
      if (!c.pending.empty()) {
        const ssize_t n = ::send(c.fd, c.pending.data() + c.sent, c.pending.size() - c.sent, kSendFlags | MSG_DONTWAIT);
        if (n > 0) c.sent += static_cast<std::size_t>(n);
        if (n < 0 && errno != EAGAIN) {
          c.sent = c.pending.size();  // the receive side reports the end
          shutdown(c.fd, SHUT_RDWR);
        }
        if (c.sent < c.pending.size()) {
          c.blocked = true;
          continue;
        }
        c.sent = 0;
        if (c.pending.capacity() > 4096) std::string().swap(c.pending);
        c.pending.clear();
      }
      if (c.closed) drop(id);
    }
    dirty_.clear();
    for (Id id : gone_) free_.push_back(id);
    gone_.clear();
  }

  Handler& handler_;
  int epoll_;
  std::vector<char> scratch_;
  std::deque<Conn> conns_;
  std::deque<Id> free_;
  std::vector<Id> dirty_, more_, gone_;
};

}  // namespace

std::unique_ptr<Loop> Loop::make(std::string_view engine, Handler& handler) {
  if (engine != "epoll") {
    auto loop = std::make_unique<UringLoop>(handler);
    if (loop->start()) return loop;
    if (engine == "io_uring") {
      fprintf(stderr, "the kernel refuses io_uring (or these features of it)\n");
      exit(2);
    }
  }
  return std::make_unique<EpollLoop>(handler);
}

}  // namespace bench
