// The engine on io_uring. Everything goes through the ring: multishot receives into provided buffers for clients,
// one-shot receives for servers, one send at a time per stream, and one io_uring_enter per turn.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "net/engine_core.h"
#include "net/uring_ring.h"

namespace pgf::net {
namespace {

// user_data is a pointer with one of these in its low bits. Pointers cannot be stale: a Stream is recycled only after
// all its operations, cancels included, have completed (Stream::ops_).
enum Tag : std::uint64_t {
  kNothing,  // pointer is null: nobody cares
  kWake,
  kRecv,
  kSend,
  kConnect,
  kCancel,
  kAccept,  // pointer is a Listener
  kTagMask = 7,
};
static_assert(alignof(Stream) >= 8);

constexpr unsigned kSqEntries = 1024, kCqEntries = 8192;
constexpr std::uint16_t kClientGroup = 0, kServerGroup = 1;

std::uint64_t tagged(const void* pointer, Tag tag) { return reinterpret_cast<std::uint64_t>(pointer) | tag; }

}  // namespace

class UringEngine final : public EngineCore {
 public:
  explicit UringEngine(const EngineOptions& options) {
    auto check = [](const char* what, int error) {
      if (error < 0) throw std::runtime_error(std::string(what) + ": " + std::strerror(-error));
    };
    check("io_uring_setup", ring_.open(kSqEntries, kCqEntries));
    check("buffer ring",
          groups_[kClientGroup].open(ring(), kClientGroup, options.client_buffers, options.client_buffer_size));
    check("buffer ring",
          groups_[kServerGroup].open(ring(), kServerGroup, options.server_buffers, options.server_buffer_size));
    watch_wakes();
  }

  // Cancels everything and waits for it, so that no socket or listener lives on in the kernel for a while.
  ~UringEngine() override {
    submit(kNothing, nullptr,
           [](io_uring_sqe* e) { io_uring_prep_cancel64(e, 0, IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL); });
    quitting_ = true;
    for (int i = 0; i < 100 && in_flight_ > 0; ++i) wait(10 * kMillisecond);
    release_everything();
  }

  const char* name() const override { return "io_uring"; }

 private:
  io_uring* ring() { return ring_.get(); }

  io_uring_sqe* sqe() {
    io_uring_sqe* entry = io_uring_get_sqe(ring());
    while (!entry) {  // full: hand over what is there, early
      ++syscalls;
      io_uring_submit(ring());
      entry = io_uring_get_sqe(ring());
    }
    ++in_flight_;
    return entry;
  }
  template <class Prepare>
  void submit(Tag tag, void* pointer, Prepare prepare) {
    io_uring_sqe* entry = sqe();
    prepare(entry);
    entry->user_data = tagged(pointer, tag);  // after prepare(), which clears it
  }
  template <class Prepare>
  void submit(Tag tag, Stream& s, Prepare prepare) {
    ++s.ops_;
    submit(tag, static_cast<void*>(&s), prepare);
  }

  void watch_wakes() {
    submit(kWake, nullptr, [&](io_uring_sqe* e) { io_uring_prep_poll_multishot(e, event_fd(), POLLIN); });
  }

  // --- receiving

  void start_reading(Stream& s) override {
    if (s.receiving_ || s.starved_ || s.eof_ || s.silent()) return;
    s.receiving_ = true;
    submit(kRecv, s, [&](io_uring_sqe* e) {
      if (s.kind_ == Kind::client) {
        io_uring_prep_recv_multishot(e, s.fd_, nullptr, 0, 0);
        e->buf_group = kClientGroup;
      } else {
        io_uring_prep_recv(e, s.fd_, nullptr, 0, 0);
        e->buf_group = kServerGroup;
        // The answer to a query that is not sent yet cannot be there: do not try first.
        if (!s.more_) e->ioprio |= IORING_RECVSEND_POLL_FIRST;
      }
      e->flags |= IOSQE_BUFFER_SELECT;
    });
  }

  void stop_reading(Stream& s) override {
    drop_starved(s);
    if (!s.receiving_ || s.cancelling_) return;
    s.cancelling_ = true;
    cancel(s, kRecv);
  }

  void cancel(Stream& s, Tag what) {
    submit(kCancel, s, [&](io_uring_sqe* e) { io_uring_prep_cancel64(e, tagged(&s, what), 0); });
  }

  void on_recv(Stream& s, int result, std::uint32_t flags) {
    Buffer* buffer = nullptr;
    if (flags & IORING_CQE_F_BUFFER) {
      unsigned group = s.kind_ == Kind::client ? kClientGroup : kServerGroup;
      buffer = &groups_[group].taken(flags >> IORING_CQE_BUFFER_SHIFT);
    }
    if (!(flags & IORING_CQE_F_MORE)) {
      s.receiving_ = false;
      s.cancelling_ = false;
      --s.ops_;
    }
    s.more_ = flags & IORING_CQE_F_SOCK_NONEMPTY;
    if (result > 0) {
      s.bytes_in += static_cast<unsigned>(result);
      take(s, *buffer, static_cast<std::size_t>(result));
    } else if (result == 0) {
      ended(s, 0);
    } else if (result == -ENOBUFS) {
      if (s.armed_ && !s.silent() && !s.detaching_) starve(s);
    } else if (result != -ECANCELED && result != -EINTR && result != -EAGAIN) {
      ended(s, -result);
    }
    if (buffer) release(*buffer);
    if (!s.receiving_ && s.armed_ && !s.silent() && !s.detaching_ && !s.stash_.head) start_reading(s);
    settle(s);
  }

  void take(Stream& s, Buffer& buffer, std::size_t n) {
    if (s.silent()) return;
    Bytes bytes{buffer.data, n};
    if ((s.armed_ || s.detaching_) && !s.stash_.head) return deliver(s, {bytes, &buffer});
    // Paused, or older bytes come first. pause() itself cancels nothing: most pauses end before anything arrives.
    stash(s, bytes);
    if (s.armed_) {
      later(s);
    } else {
      stop_reading(s);
    }
  }

  // --- buffers

  void recycle(Buffer& buffer) override { groups_[buffer.group].give(buffer); }
  // Slow readers may hold half of the buffers, the rest always comes back within the turn.
  bool may_lend(const Buffer& buffer) const override {
    const BufferRing& group = groups_[buffer.group];
    return group.available >= group.count() / 2;
  }

  void starve(Stream& s) {
    s.starved_ = true;
    starved_[s.kind_ == Kind::client ? kClientGroup : kServerGroup].push_back(&s);
  }
  void drop_starved(Stream& s) {
    if (!s.starved_) return;
    s.starved_ = false;
    std::erase(starved_[s.kind_ == Kind::client ? kClientGroup : kServerGroup], &s);
  }
  // As many as there are buffers try again, in the order in which they failed.
  void end_turn() override {
    for (unsigned g : {kClientGroup, kServerGroup}) {
      auto& list = starved_[g];
      std::size_t n = std::min<std::size_t>(list.size(), groups_[g].available);
      if (n == 0) continue;
      for (std::size_t i = 0; i < n; ++i) {
        list[i]->starved_ = false;
        if (list[i]->armed_) start_reading(*list[i]);
      }
      list.erase(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(n));
    }
  }

  // --- sending, connecting, closing

  void flush(Stream& s) override {
    if (s.sending_) return;
    s.sending_ = true;
    constexpr int kFlags = MSG_NOSIGNAL | MSG_WAITALL;  // WAITALL: a short send is continued by the kernel
    if (!s.out_.head->next) {
      submit(kSend, s, [&](io_uring_sqe* e) {
        io_uring_prep_send(e, s.fd_, s.out_.head->data + s.out_.head->begin, s.out_.head->size(), kFlags);
      });
      return;
    }
    if (!s.op_) s.op_ = pool_.op();
    s.op_->message = {};
    s.op_->message.msg_iov = s.op_->parts;
    s.op_->message.msg_iovlen = gather(s, s.op_->parts);
    submit(kSend, s, [&](io_uring_sqe* e) { io_uring_prep_sendmsg(e, s.fd_, &s.op_->message, kFlags); });
  }

  void on_send(Stream& s, int result) {
    --s.ops_;
    s.sending_ = false;
    if (s.op_) pool_.give(std::exchange(s.op_, nullptr));
    if (s.closing_) return settle(s);
    if (result >= 0) {
      sent(s, static_cast<std::size_t>(result));
    } else if (result != -EINTR && result != -EAGAIN) {
      return send_failed(s, -result);
    }
    if (s.out_.head) mark_dirty(s);
    settle(s);
  }

  void start_connect(Stream& s) override {
    submit(kConnect, s, [&](io_uring_sqe* e) {
      io_uring_prep_connect(e, s.fd_, reinterpret_cast<sockaddr*>(&s.op_->address), s.op_->address_length);
    });
  }

  void abort(Stream& s) override {
    stop_reading(s);
    if (s.sending_) cancel(s, kSend);
    if (s.connecting_) cancel(s, kConnect);
  }

  void before_detach(Stream&) override {}
  void more_work(Stream&) override {}

  void close_fd(int fd) override {
    submit(kNothing, nullptr, [&](io_uring_sqe* e) { io_uring_prep_close(e, fd); });
  }

  // --- accepting

  void watch(Listener& l) override {
    l.watching = true;
    submit(kAccept, &l, [&](io_uring_sqe* e) {
      io_uring_prep_multishot_accept(e, l.fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    });
  }
  void unwatch(Listener& l) override {
    if (!l.watching) return;
    submit(kNothing, nullptr, [&](io_uring_sqe* e) { io_uring_prep_cancel64(e, tagged(&l, kAccept), 0); });
  }
  void on_accept(Listener& l, int result, std::uint32_t flags) {
    if (!(flags & IORING_CQE_F_MORE)) l.watching = false;
    accepted(l, result);
    if (!l.watching && l.owner && l.resume_at < 0) watch(l);
  }

  // --- the turn

  void wait(Usec timeout) override {
    __kernel_timespec time{.tv_sec = timeout / kSecond, .tv_nsec = timeout % kSecond * 1000};
    io_uring_cqe* unused;
    ++syscalls;
    io_uring_submit_and_wait_timeout(ring(), &unused, 1, timeout < 0 ? nullptr : &time, nullptr);
    woke_up();
    // Whatever goes wrong in there (EINTR, ETIME, EBUSY, EAGAIN), the remedy is to consume completions and go on.
    unsigned head;
    unsigned done = 0;
    io_uring_cqe* cqe;
    io_uring_for_each_cqe(ring(), head, cqe) {
      std::uint64_t data = cqe->user_data;
      int result = cqe->res;
      std::uint32_t flags = cqe->flags;
      if (++done == 64) {  // make room early, so that a busy turn does not overflow
        io_uring_cq_advance(ring(), done);
        done = 0;
      }
      if (!(flags & IORING_CQE_F_MORE)) --in_flight_;
      if (!quitting_) {
        dispatch(data, result, flags);
      } else if ((data & kTagMask) == kAccept && result >= 0) {
        ::close(result);
      }
    }
    io_uring_cq_advance(ring(), done);
  }

  void dispatch(std::uint64_t data, int result, std::uint32_t flags) {
    auto* pointer = reinterpret_cast<void*>(data & ~static_cast<std::uint64_t>(kTagMask));
    auto* s = static_cast<Stream*>(pointer);
    switch (static_cast<Tag>(data & kTagMask)) {
      case kRecv:
        return on_recv(*s, result, flags);
      case kSend:
        return on_send(*s, result);
      case kConnect:
        --s->ops_;
        connect_result(*s, -result);
        return settle(*s);
      case kCancel:
        --s->ops_;
        // Not found, yet not over: it was on its way to complete. Ask again if it still must go.
        if (result < 0 && s->receiving_ && s->cancelling_) {
          s->cancelling_ = false;
          if (s->silent() || s->detaching_) stop_reading(*s);
        }
        return settle(*s);
      case kAccept:
        return on_accept(*static_cast<Listener*>(pointer), result, flags);
      case kWake:
        if (!(flags & IORING_CQE_F_MORE)) watch_wakes();
        return;
      default:
        return;
    }
  }

  // The buffers must outlive the ring.
  BufferRing groups_[2];
  Ring ring_;
  std::vector<Stream*> starved_[2];
  std::size_t in_flight_ = 0;
  bool quitting_ = false;
};

std::unique_ptr<Engine> make_uring(const EngineOptions& options) { return std::make_unique<UringEngine>(options); }

}  // namespace pgf::net
