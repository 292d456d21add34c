#pragma once
// What both engines share: the life of a stream, its send queue, the order of things within a turn, waking. Internal to
// src/net/.
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "net/engine.h"
#include "net/segments.h"

namespace pgf::net {

class EngineCore : public Engine {
 public:
  EngineCore(const EngineCore&) = delete;
  EngineCore& operator=(const EngineCore&) = delete;

  void run(LoopOwner& owner) final;
  void stop() final;
  void wake() final;
  Stream* adopt(int fd, Kind kind, StreamOwner* owner) override;
  Stream* connect(const sockaddr* address, socklen_t length, StreamOwner* owner) final;
  void listen(int fd, int tag, AcceptOwner* owner) final;
  void unlisten(int fd) final;

 protected:
  friend class Stream;

  struct Listener {
    int fd, tag;
    AcceptOwner* owner;     // null after unlisten()
    Usec resume_at = -1;    // paused after an error until then
    bool watching = false;  // epoll: registered; io_uring: accept in the ring
  };

  EngineCore();
  ~EngineCore() override;

  // What a stream asks of the engine. None of these calls back into an owner.
  void arm(Stream& s);
  void send(Stream& s, Bytes bytes);
  void forward(Stream& s, const Received& from, Bytes part);
  void want_drained(Stream& s);
  void close(Stream& s);
  void close_after_flush(Stream& s, Usec linger);
  void detach(Stream& s);
  void start_tls(Stream& s, std::unique_ptr<Tls> tls, Bytes already);
  bool looks_idle(const Stream& s);

  // What each engine does in its own way.
  virtual void start_reading(Stream& s) = 0;  // s is armed and has nothing stashed
  virtual void stop_reading(Stream& s) = 0;   // for good, or before detach: nothing may stay in flight for reading
  virtual void abort(Stream& s) = 0;          // close(): cancel what is in flight
  virtual void start_connect(Stream& s) = 0;  // to s.op_->address
  virtual void flush(Stream& s) = 0;          // send what is queued
  virtual void before_detach(Stream& s) = 0;  // the fd is about to leave
  virtual void more_work(Stream& s) = 0;      // engine's part of work()
  virtual void watch(Listener& l) = 0;
  virtual void unwatch(Listener& l) = 0;
  virtual void recycle(Buffer& buffer) = 0;
  virtual bool may_lend(const Buffer& buffer) const = 0;
  virtual void close_fd(int fd) = 0;
  virtual void end_turn() {}            // after the flushes
  virtual void wait(Usec timeout) = 0;  // microseconds, -1 for ever; calls woke_up(), then delivers
  // What the simulator has others of (tests/sim). None of these is on a query's way.
  virtual Usec clock() const { return monotonic_now(); }
  virtual int make_socket(int family);
  virtual ssize_t receive_now(int fd, void* to, std::size_t size, int flags);

  // What follows a wait: the rest of the turn, its sends included. Returns the time of the next turn that is wanted.
  Usec turn(LoopOwner& owner);
  Usec timeout(Usec wanted) const;  // for wait()
  bool woken() const { return wake_pending_.load(std::memory_order_seq_cst); }
  int event_fd() const { return event_fd_; }
  void woke_up();

  // Helpers for the engines.
  void later(Stream& s) {  // have work() done from the loop
    if (s.todo_) return;
    s.todo_ = true;
    todo_.push_back(&s);
  }
  void mark_dirty(Stream& s) {
    if (s.dirty_) return;
    s.dirty_ = true;
    dirty_.push_back(&s);
  }
  void deliver(Stream& s, const Received& received);
  void stash(Stream& s, Bytes bytes) { append(s.stash_, bytes); }
  void ended(Stream& s, int error);  // reading came to its end: EOF (0) or errno
  void connect_result(Stream& s, int error);
  void sent(Stream& s, std::size_t n);  // the kernel took n bytes of the queue
  void send_failed(Stream& s, int error);
  void settle(Stream& s);                  // an operation is over: is a close or detach complete?
  void accepted(Listener& l, int result);  // fd or -errno
  void pause_listener(Listener& l);
  void release(Buffer& buffer) {
    if (--buffer.refs == 0) recycle(buffer);
  }
  unsigned gather(const Stream& s, iovec* parts) const;
  Stream* make(int fd, Kind kind, StreamOwner* owner);
  void release_everything();  // for the engines' destructors

  SegmentPool pool_;
  bool listeners_gone_ = false;  // some are unlistened and can be erased once nothing in flight refers to them
  std::vector<std::unique_ptr<Listener>> listeners_;

 private:
  static constexpr std::size_t kChunk = 64;

  void append(Stream::Queue& queue, Bytes bytes);
  void push(Stream::Queue& queue, Segment* segment);
  void pop(Stream::Queue& queue);
  void clear(Stream::Queue& queue);
  void work(Stream& s);
  void deliver_plain(Stream& s, const Received& received);
  void decrypt(Stream& s, Bytes cipher);
  void encrypt(Stream& s);
  void say_goodbye(Stream& s);
  // What is sent next goes here: to the kernel, or first through TLS.
  static Stream::Queue& outgoing(Stream& s) { return s.secure_.tls ? s.secure_.plain : s.out_; }
  void deliver_stash(Stream& s);
  void report_closed(Stream& s, int error);
  void finish_flush(Stream& s);
  void finish_detach(Stream& s);
  void run_todo();
  void run_timers();
  void flush_dirty();
  void reap();

  struct Lingering {
    Stream* stream;
    Usec deadline;
  };
  struct Slot;       // a Stream with a constructor
  struct CipherOut;  // where a filter's output goes

  std::vector<std::unique_ptr<Slot[]>> chunks_;
  std::vector<Stream*> free_;
  std::vector<Stream*> todo_, running_, dirty_, dead_, dying_;
  std::vector<Lingering> lingering_;
  std::vector<std::uint8_t> plain_;  // what the filter made of a delivery, for the owner to look at
  Usec next_timer_ = -1;             // the earliest of lingering_ and paused listeners

  int event_fd_ = -1;
  std::atomic<bool> stop_{false};
  // Written by wakers (true) and by the loop (false, when it is about to look into the mailbox).
  std::atomic<bool> wake_pending_{false};
  // Written by the loop only. A waker that sets wake_pending_ and then reads sleeping_ == false knows that the loop
  // will still look at wake_pending_ before it sleeps: both sides write one flag, then read the other (seq_cst).
  std::atomic<bool> sleeping_{false};
};

}  // namespace pgf::net
