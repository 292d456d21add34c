#include "net/engine_core.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace pgf::net {

struct EngineCore::Slot : Stream {
  Slot() = default;
};

struct EngineCore::CipherOut final : Tls::Out {
  CipherOut(EngineCore& core_, Stream& stream_) : core(core_), stream(stream_) {}
  void put(Bytes cipher) override {
    core.append(stream.out_, cipher);
    stream.queued_ += cipher.size();
    core.mark_dirty(stream);
  }
  EngineCore& core;
  Stream& stream;
};

static Usec read_clock(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return static_cast<Usec>(t.tv_sec) * kSecond + t.tv_nsec / 1000;
}

Usec monotonic_now() { return read_clock(CLOCK_MONOTONIC); }

Usec wall_now() { return read_clock(CLOCK_REALTIME); }

EngineCore::EngineCore() : event_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (event_fd_ < 0) throw std::runtime_error(std::string("eventfd: ") + std::strerror(errno));
  now_ = monotonic_now();
}

EngineCore::~EngineCore() { ::close(event_fd_); }

void EngineCore::release_everything() {
  for (auto& chunk : chunks_) {
    for (std::size_t i = 0; i < kChunk; ++i) {
      Stream& s = chunk[i];
      if (!s.used_) continue;
      clear(s.out_);
      clear(s.secure_.plain);
      clear(s.stash_);
      s.secure_.tls.reset();
      if (s.op_) pool_.give(s.op_);
      if (s.fd_ >= 0) ::close(s.fd_);
      s.used_ = false;
    }
  }
}

// --- the loop

void EngineCore::run(LoopOwner& owner) {
  Usec wanted = 0;  // the first turn comes at once
  next_beat();
  flush_dirty();  // what was begun before there was a loop
  end_turn();
  while (!stop_.load(std::memory_order_acquire)) {
    Usec wait_for = timeout(wanted);
    sleeping_.store(true, std::memory_order_seq_cst);
    if (woken()) wait_for = 0;
    next_beat();
    wait(wait_for);
    wanted = turn(owner);
  }
  stop_.store(false, std::memory_order_relaxed);
}

Usec EngineCore::turn(LoopOwner& owner) {
  ++turns;
  run_todo();
  run_timers();
  if (wake_pending_.exchange(false, std::memory_order_seq_cst)) owner.on_wake();
  Usec wanted = owner.on_turn(now_);
  flush_dirty();  // also in the last turn: "shutting down" gets its chance
  end_turn();
  reap();
  return wanted;
}

int EngineCore::make_socket(int family) { return ::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); }

ssize_t EngineCore::receive_now(int fd, void* to, std::size_t size, int flags) {
  return ::recv(fd, to, size, flags | MSG_DONTWAIT);
}

void EngineCore::woke_up() {
  next_beat();
  sleeping_.store(false, std::memory_order_relaxed);  // read too late by a waker, it costs one needless write
  now_ = clock();
}

void EngineCore::stop() {
  stop_.store(true, std::memory_order_release);
  wake();
}

void EngineCore::wake() {
  // Our message was pushed before this. If the flag was set already, its answer is still to come: the loop clears it
  // first and looks into the mailbox afterwards.
  if (wake_pending_.exchange(true, std::memory_order_seq_cst)) return;
  if (!sleeping_.load(std::memory_order_seq_cst)) return;
  std::uint64_t one = 1;
  [[maybe_unused]] ssize_t n = ::write(event_fd_, &one, sizeof one);  // nobody reads it: edges are what counts
}

Usec EngineCore::timeout(Usec wanted) const {
  if (!todo_.empty() || !dirty_.empty()) return 0;
  if (wanted < 0 || (next_timer_ >= 0 && next_timer_ < wanted)) wanted = next_timer_;
  if (wanted < 0) return -1;
  return std::max<Usec>(0, wanted - clock());
}

void EngineCore::run_todo() {
  running_.swap(todo_);
  for (Stream* s : running_) {
    s->todo_ = false;
    work(*s);
  }
  running_.clear();
}

void EngineCore::run_timers() {
  if (next_timer_ < 0 || now_ < next_timer_) return;
  next_timer_ = -1;
  auto note = [&](Usec t) { next_timer_ = next_timer_ < 0 ? t : std::min(next_timer_, t); };
  for (Lingering& l : lingering_) {
    if (l.stream->closing_) continue;
    if (l.deadline <= now_) {
      close(*l.stream);
    } else {
      note(l.deadline);
    }
  }
  for (auto& l : listeners_) {
    if (l->resume_at < 0 || !l->owner) continue;
    if (l->resume_at <= now_) {
      l->resume_at = -1;
      watch(*l);
    } else {
      note(l->resume_at);
    }
  }
}

void EngineCore::flush_dirty() {
  for (std::size_t i = 0; i < dirty_.size(); ++i) {
    Stream& s = *dirty_[i];
    s.dirty_ = false;
    if (s.closing_ || s.broken_ || s.connecting_) continue;
    if (s.secure_.plain.head) encrypt(s);
    if (s.out_.head) flush(s);
  }
  dirty_.clear();
}

void EngineCore::reap() {
  if (listeners_gone_) {
    listeners_gone_ = std::erase_if(listeners_, [](auto& l) { return !l->owner && !l->watching; }) == 0;
  }
  if (dead_.empty()) return;
  dying_.swap(dead_);
  for (Stream* s : dying_) {
    if (s->todo_) {  // still on a list: next time
      dead_.push_back(s);
      continue;
    }
    if (s->lingering_) {
      std::erase_if(lingering_, [&](const Lingering& l) { return l.stream == s; });
    }
    clear(s->out_);
    clear(s->secure_.plain);
    clear(s->stash_);
    if (s->op_) pool_.give(s->op_);
    if (s->fd_ >= 0) close_fd(s->fd_);
    static_cast<Slot&>(*s) = Slot{};
    free_.push_back(s);
  }
  dying_.clear();
}

// --- streams come and go

Stream* EngineCore::make(int fd, Kind kind, StreamOwner* owner) {
  if (free_.empty()) {
    chunks_.push_back(std::make_unique<Slot[]>(kChunk));
    for (std::size_t i = kChunk; i-- > 0;) free_.push_back(&chunks_.back()[i]);
  }
  Stream* s = free_.back();
  free_.pop_back();
  s->used_ = true;
  s->engine_ = this;
  s->owner_ = owner;
  s->fd_ = fd;
  s->kind_ = kind;
  return s;
}

Stream* EngineCore::adopt(int fd, Kind kind, StreamOwner* owner) { return make(fd, kind, owner); }

Stream* EngineCore::connect(const sockaddr* address, socklen_t length, StreamOwner* owner) {
  if (length > sizeof(sockaddr_storage)) {
    errno = EINVAL;
    return nullptr;
  }
  ++syscalls;
  int fd = make_socket(address->sa_family);
  if (fd < 0) return nullptr;
  Stream* s = make(fd, Kind::server, owner);
  s->connecting_ = true;
  s->op_ = pool_.op();
  std::memcpy(&s->op_->address, address, length);
  s->op_->address_length = length;
  start_connect(*s);  // begins after this turn's callbacks, so that the caller can configure the socket
  return s;
}

void EngineCore::connect_result(Stream& s, int error) {
  if (s.op_) pool_.give(std::exchange(s.op_, nullptr));
  s.connecting_ = false;
  s.connected_ = true;
  s.error_ = error;
  s.broken_ = error != 0;
  if (!s.closing_) later(s);
}

void EngineCore::close(Stream& s) {
  if (s.closing_) return;
  s.closing_ = true;
  s.owner_ = nullptr;
  abort(s);
  settle(s);
}

void EngineCore::close_after_flush(Stream& s, Usec linger) {
  if (s.closing_ || s.flushing_) return;
  s.owner_ = nullptr;
  s.flushing_ = true;
  s.armed_ = false;
  s.detaching_ = false;
  stop_reading(s);
  if (s.secure_.tls) say_goodbye(s);
  if (s.queued_ == 0 || s.broken_) return finish_flush(s);
  s.lingering_ = true;
  Usec deadline = now_ + linger;
  lingering_.push_back({&s, deadline});
  if (next_timer_ < 0 || deadline < next_timer_) next_timer_ = deadline;
}

void EngineCore::finish_flush(Stream& s) {
  // Closing a TCP socket with unread bytes sends a reset, which can overtake the last words at the other side's
  // receive queue. Throw away what has arrived.
  char unused[1024];
  for (int i = 0; i < 16 && !s.broken_; ++i) {
    ++syscalls;
    if (receive_now(s.fd_, unused, sizeof unused, 0) < static_cast<ssize_t>(sizeof unused)) break;
  }
  close(s);
}

void EngineCore::detach(Stream& s) {
  if (s.silent()) return;
  s.detaching_ = true;
  stop_reading(s);
  if (s.ops_ == 0) later(s);
}

void EngineCore::finish_detach(Stream& s) {
  before_detach(s);
  int fd = std::exchange(s.fd_, -1);
  StreamOwner* owner = std::exchange(s.owner_, nullptr);
  std::unique_ptr<Tls> tls = std::move(s.secure_.tls);
  s.closing_ = true;
  settle(s);
  owner->on_detached(fd, std::move(tls));
}

void EngineCore::settle(Stream& s) {
  if (s.ops_ != 0) return;
  if (s.closing_) {
    if (s.dead_) return;
    s.dead_ = true;
    dead_.push_back(&s);
  } else if (s.detaching_) {
    later(s);
  }
}

bool EngineCore::looks_idle(const Stream& s) {
  if (s.silent() || s.eof_ || s.broken_ || s.stash_.head) return false;
  char c;
  ++syscalls;
  ssize_t n = receive_now(s.fd_, &c, 1, MSG_PEEK);
  return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}

// --- receiving

void EngineCore::arm(Stream& s) {
  if (s.armed_ || s.silent()) return;
  s.armed_ = true;
  if (s.connecting_ || s.connected_) return;  // work() starts it after on_connected()
  if (s.stash_.head || s.eof_) {
    later(s);
  } else {
    start_reading(s);
  }
}

void EngineCore::deliver(Stream& s, const Received& received) {
  if (s.secure_.tls) return decrypt(s, received.bytes);
  deliver_plain(s, received);
}

void EngineCore::deliver_plain(Stream& s, const Received& received) {
  s.detaching_ = false;
  if (s.kind_ == Kind::server) s.armed_ = false;
  s.owner_->on_bytes(s, received);
}

void EngineCore::deliver_stash(Stream& s) {
  while (!s.silent() && s.stash_.head && (s.armed_ || s.detaching_)) {
    Segment* segment = s.stash_.head;
    s.stash_.head = segment->next;
    if (!s.stash_.head) s.stash_.tail = nullptr;
    deliver(s, {{segment->data + segment->begin, segment->size()}, nullptr});
    pool_.give(segment);
  }
  if (s.silent() || s.stash_.head) return;
  if (s.eof_) return report_closed(s, s.error_);
  if (s.armed_) start_reading(s);
}

void EngineCore::ended(Stream& s, int error) {
  if (s.silent() || s.eof_) return;
  s.eof_ = true;
  if (!s.broken_) s.error_ = error;
  if (!s.stash_.head) report_closed(s, error);
}

void EngineCore::report_closed(Stream& s, int error) {
  if (s.silent()) return;
  s.reported_ = true;
  s.detaching_ = false;
  s.armed_ = false;
  s.owner_->on_closed(s, error);
}

void EngineCore::work(Stream& s) {
  if (s.closing_) return;
  if (s.flushing_) {
    if (s.queued_ == 0 || s.broken_) finish_flush(s);
    return;
  }
  if (s.connected_) {
    s.connected_ = false;
    s.owner_->on_connected(s, s.error_);
    if (s.broken_) s.reported_ = true;  // the owner knows; only close() is left
    if (s.silent()) return;
    if (s.out_.head) mark_dirty(s);
    if (s.armed_) start_reading(s);
  }
  if (s.broken_) return report_closed(s, s.error_);
  if (s.want_drained_ && s.queued_ <= Stream::kLowMark && !s.silent()) {
    s.want_drained_ = false;
    s.owner_->on_drained(s);
  }
  if (!s.silent() && (s.stash_.head || s.eof_)) deliver_stash(s);
  if (s.silent()) return;
  if (s.detaching_ && s.ops_ == 0 && s.queued_ == 0) return finish_detach(s);
  more_work(s);
}

// --- sending

void EngineCore::append(Stream::Queue& queue, Bytes bytes) {
  while (!bytes.empty()) {
    // The tail may be in flight: the kernel reads only the part that was there when it was told, we write behind it.
    Segment* tail = queue.tail;
    if (!tail || tail->room() == 0) push(queue, tail = pool_.block(bytes.size()));
    std::size_t n = std::min(tail->room(), bytes.size());
    std::memcpy(tail->data + tail->end, bytes.data(), n);
    tail->end += static_cast<std::uint32_t>(n);
    bytes = bytes.subspan(n);
  }
}

void EngineCore::push(Stream::Queue& queue, Segment* segment) {
  (queue.tail ? queue.tail->next : queue.head) = segment;
  queue.tail = segment;
}

void EngineCore::pop(Stream::Queue& queue) {
  Segment* segment = queue.head;
  queue.head = segment->next;
  if (!queue.head) queue.tail = nullptr;
  if (segment->lent) release(*segment->lent);
  pool_.give(segment);
}

void EngineCore::clear(Stream::Queue& queue) {
  while (queue.head) pop(queue);
}

void EngineCore::send(Stream& s, Bytes bytes) {
  if (s.closing_ || s.flushing_ || s.broken_ || bytes.empty()) return;
  append(outgoing(s), bytes);
  s.queued_ += bytes.size();
  mark_dirty(s);
}

void EngineCore::forward(Stream& s, const Received& from, Bytes part) {
  auto* buffer = static_cast<Buffer*>(from.buffer);
  if (part.size() <= Stream::kCopyLimit || !buffer || (buffer->refs == 1 && !may_lend(*buffer))) return send(s, part);
  if (s.closing_ || s.flushing_ || s.broken_) return;
  auto offset = static_cast<std::uint32_t>(part.data() - buffer->data);
  Stream::Queue& queue = outgoing(s);
  Segment* tail = queue.tail;
  if (tail && tail->lent == buffer && tail->end == offset) {
    tail->end += static_cast<std::uint32_t>(part.size());
  } else {
    Segment* segment = pool_.reference();
    segment->data = buffer->data;
    segment->begin = offset;
    segment->end = offset + static_cast<std::uint32_t>(part.size());
    segment->lent = buffer;
    ++buffer->refs;
    push(queue, segment);
  }
  s.queued_ += part.size();
  mark_dirty(s);
}

void EngineCore::want_drained(Stream& s) {
  s.want_drained_ = true;
  if (s.queued_ <= Stream::kLowMark) later(s);
}

unsigned EngineCore::gather(const Stream& s, iovec* parts) const {
  unsigned n = 0;
  for (Segment* segment = s.out_.head; segment && n < kMaxIovecs; segment = segment->next) {
    parts[n++] = {segment->data + segment->begin, segment->size()};
  }
  return n;
}

void EngineCore::sent(Stream& s, std::size_t n) {
  s.bytes_out += n;
  s.queued_ -= n;
  while (n > 0) {
    Segment* segment = s.out_.head;
    std::size_t part = std::min(n, segment->size());
    segment->begin += static_cast<std::uint32_t>(part);
    n -= part;
    if (segment->size() == 0) pop(s.out_);
  }
  if (((s.flushing_ || s.detaching_) && s.queued_ == 0) || (s.want_drained_ && s.queued_ <= Stream::kLowMark)) later(s);
}

void EngineCore::send_failed(Stream& s, int error) {
  clear(s.out_);
  clear(s.secure_.plain);
  s.queued_ = 0;
  s.broken_ = true;
  s.error_ = error;
  later(s);
}

// --- TLS: between the queue of plaintext and the queue of what is sent, and between what was received and the owner

void EngineCore::start_tls(Stream& s, std::unique_ptr<Tls> tls, Bytes already) {
  if (s.silent()) return;
  s.secure_.tls = std::move(tls);
  CipherOut out(*this, s);
  s.secure_.tls->start(out);
  if (already.empty()) return;
  Stream::Queue later_bytes = std::exchange(s.stash_, {});
  append(s.stash_, already);
  s.stash_.tail->next = later_bytes.head;
  if (later_bytes.tail) s.stash_.tail = later_bytes.tail;
  later(s);
}

void EngineCore::decrypt(Stream& s, Bytes cipher) {
  // A peer that only makes us answer (key updates) and reads nothing must not fill our memory.
  constexpr std::size_t kMaxAnswers = 1 << 20;
  Tls& tls = *s.secure_.tls;
  if (tls.state() == Tls::State::failed) return;
  bool was_open = tls.open();
  if (plain_.size() < cipher.size() + Tls::kRoom) plain_.resize(cipher.size() + Tls::kRoom);
  CipherOut out(*this, s);
  std::size_t before = s.queued_;
  std::size_t n = tls.read(cipher, plain_, out);
  bool too_many = s.queued_ > before && s.queued_ > kMaxAnswers;
  if (!was_open && tls.open()) {
    if (s.secure_.plain.head) mark_dirty(s);
    s.owner_->on_secure(s);
  }
  if (n > 0 && !s.silent()) deliver_plain(s, {{plain_.data(), n}, nullptr});
  if (too_many || tls.state() == Tls::State::failed)
    ended(s, EPROTO);
  else if (tls.state() == Tls::State::closed)
    ended(s, 0);
}

void EngineCore::encrypt(Stream& s) {
  Tls& tls = *s.secure_.tls;
  if (!tls.open() && tls.state() != Tls::State::closed) return;
  CipherOut out(*this, s);
  while (Segment* segment = s.secure_.plain.head) {
    s.queued_ -= segment->size();
    tls.write({segment->data + segment->begin, segment->size()}, out);
    pop(s.secure_.plain);
  }
  if (tls.state() == Tls::State::failed) send_failed(s, EPROTO);
}

// Nothing more will be queued. What there is goes out, then our goodbye, unless nobody can hear it.
void EngineCore::say_goodbye(Stream& s) {
  if (!s.broken_) encrypt(s);
  while (Segment* segment = s.secure_.plain.head) {  // the handshake was never over
    s.queued_ -= segment->size();
    pop(s.secure_.plain);
  }
  CipherOut out(*this, s);
  if (!s.broken_ && !s.eof_) s.secure_.tls->close(out);
}

// --- listeners

void EngineCore::listen(int fd, int tag, AcceptOwner* owner) {
  listeners_.push_back(std::make_unique<Listener>(Listener{.fd = fd, .tag = tag, .owner = owner}));
  watch(*listeners_.back());
}

void EngineCore::unlisten(int fd) {
  for (auto& l : listeners_) {
    if (l->fd != fd || !l->owner) continue;
    l->owner = nullptr;
    l->resume_at = -1;
    listeners_gone_ = true;
    unwatch(*l);
  }
}

void EngineCore::pause_listener(Listener& l) {
  l.resume_at = now_ + kAcceptPause;
  if (next_timer_ < 0 || l.resume_at < next_timer_) next_timer_ = l.resume_at;
}

void EngineCore::accepted(Listener& l, int result) {
  if (result >= 0) {
    if (l.owner) {
      l.owner->on_accept(result, l.tag);
    } else {
      ::close(result);
    }
    return;
  }
  // The connection failed, not the listener.
  if (result == -ECONNABORTED || result == -EINTR || result == -EAGAIN || result == -EPROTO || result == -ECANCELED) {
    return;
  }
  pause_listener(l);
  if (l.owner) l.owner->on_accept_error(-result, l.tag);
}

// --- Stream's public face

void Stream::arm() { engine_->arm(*this); }
void Stream::resume() { engine_->arm(*this); }
void Stream::pause() { armed_ = false; }  // bytes that still come are stashed, or left in the kernel
void Stream::send(Bytes bytes) { engine_->send(*this, bytes); }
void Stream::forward(const Received& from, Bytes part) { engine_->forward(*this, from, part); }
void Stream::want_drained() { engine_->want_drained(*this); }
void Stream::close() { engine_->close(*this); }
void Stream::close_after_flush(Usec linger) { engine_->close_after_flush(*this, linger); }
void Stream::detach() { engine_->detach(*this); }
void Stream::start_tls(std::unique_ptr<Tls> tls, Bytes already) { engine_->start_tls(*this, std::move(tls), already); }
bool Stream::looks_idle() const { return engine_->looks_idle(*this); }

}  // namespace pgf::net
