#include "engine.h"

#include <netinet/in.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace pgf::net {

int port_of(const sockaddr* address) { return ntohs(reinterpret_cast<const sockaddr_in*>(address)->sin_port); }

SimEngine::SimEngine(sim::Network& network, sim::Random& random, sim::Trace& trace, int number,
                     const SimOptions& options)
    : network_(network), random_(random), trace_(trace), number_(number), options_(options) {
  now_ = network.now();
}

SimEngine::~SimEngine() {
  for (int fd : calls_) network_.close_fd(fd);
  // Those that still are there lose their descriptors here: release_everything() would ask the kernel to close them.
  for (auto& [fd, socket] : sockets_) {
    network_.close_fd(fd);
    socket.stream->fd_ = -1;
  }
  release_everything();
}

// ---- sockets come and go

Stream* SimEngine::adopt(int fd, Kind kind, StreamOwner* owner) {
  Stream* s = EngineCore::adopt(fd, kind, owner);
  sockets_[fd] = {.stream = s};
  return s;
}

int SimEngine::make_socket(int) { return network_.make_socket(); }

void SimEngine::start_connect(Stream& s) {
  const int address = port_of(reinterpret_cast<sockaddr*>(&s.op_->address));
  sockets_[s.fd_] = {.stream = &s, .dialled = address < options_.first_pooler};
  peers_called_ += address >= options_.first_pooler;
  if (options_.asynchronous) ++s.ops_;
  network_.connect(s.fd_, address);
}

void SimEngine::before_detach(Stream& s) { sockets_.erase(s.fd_); }

void SimEngine::close_fd(int fd) {
  sockets_.erase(fd);
  network_.close_fd(fd);
}

ssize_t SimEngine::receive_now(int fd, void* to, std::size_t size, int flags) {
  sim::End end = network_.end_of(fd);
  const Bytes there = end.arrived();
  const std::size_t n = std::min(size, there.size());
  if (n > 0) {
    std::memcpy(to, there.data(), n);
    if (!(flags & MSG_PEEK)) end.consume(n);
    return static_cast<ssize_t>(n);
  }
  if (end.eof()) return 0;
  errno = end.lost() ? ECONNRESET : EAGAIN;
  return -1;
}

// ---- receiving

void SimEngine::start_reading(Stream& s) {
  if (!options_.asynchronous || s.receiving_ || s.eof_ || s.silent()) return;
  s.receiving_ = true;
  socket(s).multishot = s.kind_ == Kind::client;
  ++s.ops_;
}

void SimEngine::stop_reading(Stream& s) {
  if (!s.receiving_ || s.cancelling_) return;
  s.cancelling_ = true;
  ++socket(s).cancel_recv;
  ++s.ops_;
}

bool SimEngine::reads(const Stream& s) const {
  const sim::End end = network_.end_of(s.fd_);
  if (end.arrived().empty() && !end.eof() && !end.lost()) return false;
  if (options_.asynchronous) return s.receiving_;
  return s.armed_ && !s.silent() && !s.detaching_ && !s.connecting_ && !s.connected_ && !s.eof_;
}

void SimEngine::receive(int fd) {
  Stream& s = *sockets_.at(fd).stream;
  const sim::End end = network_.end_of(fd);
  const Bytes there = end.arrived();
  const bool more = options_.asynchronous && sockets_.at(fd).multishot && !random_.one_in(10);
  if (there.empty()) {
    trace_.note("ends", static_cast<std::uint64_t>(number_), end.link->number);
    return on_recv(s, end.eof() ? 0 : -ECONNRESET, nullptr, false);
  }
  const std::size_t room = s.kind_ == Kind::client ? options_.client_buffer : options_.server_buffer;
  const std::size_t n = std::min(random_.part(there.size()), room);
  Buffer& b = buffer();
  std::memcpy(b.data, there.data(), n);
  static_cast<OwnedBuffer&>(b).used = n;
  end.consume(n);
  trace_.note("reads", static_cast<std::uint64_t>(number_), end.link->number, n);
  s.bytes_in += n;
  b.refs = 1;
  on_recv(s, static_cast<int>(n), &b, more);
  static_cast<OwnedBuffer&>(b).lent = b.refs > 1;
  if (b.refs > 1) ++lent_;
  release(b);
}

// As the real engines treat a completion (engine_uring.cc) or the outcome of recv() (engine_epoll.cc).
void SimEngine::on_recv(Stream& s, int result, Buffer* b, bool more) {
  if (!options_.asynchronous) {
    if (result > 0) return deliver(s, {{b->data, static_cast<std::size_t>(result)}, b});
    return ended(s, -result);
  }
  if (!more) {
    s.receiving_ = false;
    s.cancelling_ = false;
    --s.ops_;
  }
  if (result > 0) {
    if (!s.silent()) {
      const Bytes bytes{b->data, static_cast<std::size_t>(result)};
      if ((s.armed_ || s.detaching_) && !s.stash_.head) {
        deliver(s, {bytes, b});
      } else {
        stash(s, bytes);
        if (s.armed_)
          later(s);
        else
          stop_reading(s);
      }
    }
  } else if (result == 0) {
    ended(s, 0);
  } else if (result != -ECANCELED) {
    ended(s, -result);
  }
  if (!s.receiving_ && s.armed_ && !s.silent() && !s.detaching_ && !s.stash_.head) start_reading(s);
  settle(s);
}

Buffer& SimEngine::buffer() {
  if (free_buffers_.empty()) {
    auto fresh = std::make_unique<OwnedBuffer>();
    fresh->memory =
        std::make_unique_for_overwrite<std::uint8_t[]>(std::max(options_.client_buffer, options_.server_buffer));
    fresh->data = fresh->memory.get();
    free_buffers_.push_back(fresh.get());
    buffers_.push_back(std::move(fresh));
  }
  Buffer* b = free_buffers_.back();
  free_buffers_.pop_back();
  return *b;
}

// Whoever reads it from here on reads nonsense.
void SimEngine::recycle(Buffer& b) {
  auto& owned = static_cast<OwnedBuffer&>(b);
  std::memset(b.data, 0xdd, owned.used);
  if (std::exchange(owned.lent, false)) --lent_;
  free_buffers_.push_back(&b);
}

// ---- sending

void SimEngine::flush(Stream& s) {
  if (options_.asynchronous) {
    if (s.sending_) return;
    s.sending_ = true;
    ++s.ops_;
    Socket& socket_of = socket(s);
    socket_of.send_done = socket_of.send_total = 0;
    unsigned parts = 0;
    for (Segment* segment = s.out_.head; segment && parts < kMaxIovecs; segment = segment->next, ++parts)
      socket_of.send_total += segment->size();
    return;
  }
  if (network_.end_of(s.fd_).broken()) return send_failed(s, EPIPE);
  const std::size_t n = push(s, 0, random_.part(s.queued_));
  if (n > 0) sent(s, n);
}

// Sends what lies in the queue behind the first `from` bytes.
std::size_t SimEngine::push(Stream& s, std::size_t from, std::size_t most) {
  const sim::End end = network_.end_of(s.fd_);
  std::size_t done = 0;
  for (Segment* segment = s.out_.head; segment && most > 0; segment = segment->next) {
    if (from >= segment->size()) {
      from -= segment->size();
      continue;
    }
    const Bytes bytes{segment->data + segment->begin + from, std::min(segment->size() - from, most)};
    from = 0;
    const std::size_t n = end.send(bytes);
    done += n;
    most -= n;
    if (n < bytes.size()) break;
  }
  if (done > 0) trace_.note("sends", static_cast<std::uint64_t>(number_), end.link->number, done);
  return done;
}

void SimEngine::send(int fd) {
  Stream& s = *sockets_.at(fd).stream;
  const sim::End end = network_.end_of(fd);
  if (!options_.asynchronous) return mark_dirty(s);
  Socket& of = sockets_.at(fd);
  if (end.broken()) return finish_send(s, of.send_done > 0 ? static_cast<int>(of.send_done) : -EPIPE);
  of.send_done += push(s, of.send_done, random_.part(of.send_total - of.send_done));
  if (of.send_done == of.send_total) finish_send(s, static_cast<int>(of.send_done));
}

void SimEngine::finish_send(Stream& s, int result) {
  --s.ops_;
  s.sending_ = false;
  if (s.closing_) return settle(s);
  if (result >= 0)
    sent(s, static_cast<std::size_t>(result));
  else if (result != -ECANCELED)
    return send_failed(s, -result);
  if (s.out_.head) mark_dirty(s);
  settle(s);
}

void SimEngine::abort(Stream& s) {
  if (!options_.asynchronous) return;
  stop_reading(s);
  auto cancel = [&](bool& flag) {
    if (flag) return;
    flag = true;
    ++s.ops_;
  };
  if (s.sending_) cancel(socket(s).cancel_send);
  if (s.connecting_) cancel(socket(s).cancel_connect);
}

// ---- turns

SimEngine::Listener* SimEngine::listener() const {
  for (const auto& l : listeners_)
    if (l->owner && l->watching && l->resume_at < 0) return l.get();
  return nullptr;
}

void SimEngine::find_events(std::vector<Event>& into) const {
  for (const auto& [fd, of] : sockets_) {
    const Stream& s = *of.stream;
    const sim::End end = network_.end_of(fd);
    if (s.connecting_) {
      if (of.cancel_connect)
        into.push_back({What::cancel_connect, fd});
      else if (end.link->state >= sim::Link::State::refused)
        into.push_back({What::connect, fd});
      continue;
    }
    if (reads(s)) into.push_back({What::receive, fd});
    if (of.cancel_recv > 0) into.push_back({What::cancel_receive, fd});
    if (of.cancel_send) {
      into.push_back({What::cancel_send, fd});
    } else if (options_.asynchronous ? s.sending_ : s.out_.head && !s.broken_ && !s.closing_) {
      if (end.room() > 0 || end.broken()) into.push_back({What::send, fd});
    }
  }
  if (!calls_.empty() && listener()) into.push_back({What::accept, 0});
}

bool SimEngine::ready() const {
  if (woken() || (due_ >= 0 && due_ <= network_.now())) return true;
  std::vector<Event> events;
  find_events(events);
  return !events.empty();
}

void SimEngine::step(LoopOwner& owner) {
  trace_.note("turn", static_cast<std::uint64_t>(number_));
  wait(0);
  const Usec wanted = turn(owner);
  next_beat();  // it sleeps, as far as the watchdog can see
  const Usec left = timeout(wanted);
  due_ = left < 0 ? -1 : network_.now() + left;
}

void SimEngine::wait(Usec) {
  woke_up();
  events_.clear();
  find_events(events_);
  for (std::size_t i = events_.size(); i > 1; --i) std::swap(events_[i - 1], events_[random_.below(i)]);
  events_.resize(random_.part(events_.size()));
  for (const Event& event : events_) {
    if (event.what == What::accept) {
      happen(event);
      continue;
    }
    // An event before may have changed what this one is about.
    auto it = sockets_.find(event.fd);
    if (it != sockets_.end() && !it->second.stream->dead_) happen(event);
  }
}

void SimEngine::happen(const Event& event) {
  if (event.what == What::accept) {
    Listener* l = listener();
    if (!l || calls_.empty()) return;
    const int fd = calls_.front();
    calls_.erase(calls_.begin());
    return accepted(*l, fd);
  }
  Socket& of = sockets_.at(event.fd);
  Stream& s = *of.stream;
  const sim::End end = network_.end_of(event.fd);
  switch (event.what) {
    case What::connect: {
      if (of.cancel_connect || !s.connecting_) return;
      const bool good = end.link->state == sim::Link::State::established;
      if (options_.asynchronous) --s.ops_;
      if (!options_.asynchronous && s.closing_) return;
      connect_result(s, good ? 0 : ECONNREFUSED);
      return settle(s);
    }
    case What::cancel_connect:
      of.cancel_connect = false;
      s.ops_ = static_cast<std::uint16_t>(s.ops_ - 2);
      connect_result(s, ECANCELED);
      return settle(s);
    case What::receive:
      if (reads(s)) receive(event.fd);
      return;
    case What::cancel_receive:
      // Found, or too late: the receive has just been over, and one that began since then may be hit instead.
      if (of.cancel_recv == 0) return;
      --of.cancel_recv;
      --s.ops_;
      if (s.receiving_ && (s.cancelling_ || random_.one_in(2))) return on_recv(s, -ECANCELED, nullptr, false);
      return settle(s);
    case What::send:
      if (of.cancel_send) return;
      if (options_.asynchronous ? s.sending_ : s.out_.head && !s.closing_) send(event.fd);
      return;
    case What::cancel_send:
      if (!of.cancel_send) return;
      of.cancel_send = false;
      --s.ops_;
      if (s.sending_) return finish_send(s, of.send_done > 0 ? static_cast<int>(of.send_done) : -ECANCELED);
      return settle(s);
    case What::accept:
      return;
  }
}

std::string SimEngine::story() const {
  std::string text;
  for (const auto& [fd, of] : sockets_) {
    const Stream& s = *of.stream;
    text += fmt::format("worker {} link {}:{}{}{}{}{}{}{} queued {} ops {}\n", number_,
                        network_.end_of(fd).link->number, s.closing_ ? " closing" : "", s.flushing_ ? " flushing" : "",
                        s.connecting_ ? " connecting" : "", s.armed_ ? " armed" : "", s.receiving_ ? " receiving" : "",
                        s.sending_ ? " sending" : "", s.reported_ ? " reported" : "", s.queued_, s.ops_);
  }
  return text;
}

SimEngine::Counts SimEngine::count() const {
  Counts c;
  for (const auto& [fd, of] : sockets_) {
    const Stream& s = *of.stream;
    c.most_queued = std::max(c.most_queued, s.queued_);
    if (s.closing_ || s.flushing_) {
      ++c.lingering;
      continue;
    }
    ++c.streams;
    c.dialled += of.dialled;
  }
  return c;
}

}  // namespace pgf::net
