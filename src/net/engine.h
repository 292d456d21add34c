#pragma once
// The seam between sockets and sessions. One Engine per worker thread; everything here belongs to that thread except
// Engine::wake(). Two implementations: engine_uring.cc and engine_epoll.cc; nobody above can tell which one runs.
//
// It speaks completions: the loop gives a stream's owner the bytes that arrived, the owner queues what to send, and all
// sends of a turn are performed together at its end, one at a time per stream.
#include <sys/socket.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/bytes.h"
#include "base/time.h"
#include "net/tls.h"

namespace pgf::net {

class Stream;
class Engine;
class EngineCore;
class UringEngine;
class EpollEngine;
class SimEngine;  // tests/sim
struct Segment;
struct SendOp;

// Bytes as they arrived. Valid during on_bytes() only, unless they are passed to Stream::forward(), which may keep a
// reference to the receive buffer behind them until they are sent.
struct Received {
  Bytes bytes;
  void* buffer = nullptr;  // engine's; null when the bytes are not in a lendable buffer
};

// Who owns a stream. Callbacks come from the engine's loop, never from inside a call into the engine.
class StreamOwner {
 public:
  virtual void on_bytes(Stream& stream, const Received& received) = 0;
  // The stream is of no more use: the other side closed (error 0) or an error (errno) hit either direction. Called at
  // most once, after all bytes that arrived before it (unless reading is paused: then EOF may be noticed only after
  // resume(); a send error is reported at once). The owner still has to call close().
  virtual void on_closed(Stream& stream, int error) = 0;
  // queued() fell to the low mark after want_drained().
  virtual void on_drained(Stream& stream) { (void)stream; }
  // Result of Engine::connect(): 0 or errno.
  virtual void on_connected(Stream& stream, int error) { (void)stream, (void)error; }
  // Answer to Stream::detach(): nothing of the stream is in the engine any more; fd is the caller's, and so is the TLS
  // state if it had one. The Stream is gone. If data or EOF arrive before, on_bytes/on_closed come instead and the
  // detach is off.
  virtual void on_detached(int fd, std::unique_ptr<Tls> tls) { (void)fd, (void)tls; }
  // The handshake that start_tls() began is over. Must not pause the stream.
  virtual void on_secure(Stream& stream) { (void)stream; }

 protected:
  ~StreamOwner() = default;
};

enum class Kind : std::uint8_t {
  client,  // small receive buffers; reading is armed once and stays armed (io_uring: multishot)
  server,  // large receive buffers; reading is armed by arm() for one delivery at a time (io_uring: one-shot)
};

// One connected (or connecting) socket. Made by the engine, lives until close() or on_detached().
class Stream {
 public:
  // Reading. A client stream delivers on_bytes whenever bytes come, from start() on, until pause(); a server stream
  // delivers at most one on_bytes per arm() (arm() inside on_bytes is allowed and usual). Both idempotent.
  void arm();    // server: allow one delivery.  client: same as resume().
  void pause();  // no on_bytes from the moment this returns, not even for bytes already received: they are kept
  void resume();
  bool armed() const { return armed_; }

  // Sending. All bytes queued within a turn go out together. Sizes are unbounded; keep below the high mark by looking
  // at queued(): callers pause the other side while queued() >= kHighMark and resume it in on_drained().
  void send(Bytes bytes);                          // copies
  void forward(const Received& from, Bytes part);  // part of from.bytes: copies if small, else keeps the buffer
  std::size_t queued() const { return queued_; }   // not yet accepted by the kernel
  void want_drained();                             // one on_drained() once queued() <= kLowMark
  static constexpr std::size_t kHighMark = 128 * 1024;
  static constexpr std::size_t kLowMark = 32 * 1024;
  static constexpr std::size_t kCopyLimit = 4096;  // forward(): up to here a copy is cheaper than a reference

  // Ends the stream: no callback comes any more, not even from operations in flight; queued bytes are discarded.
  void close();
  // The same, but what is queued is still sent first (for at most `linger`); reading stops at once.
  void close_after_flush(Usec linger = 5 * kSecond);
  // Leave this engine to move to another thread. Needs queued() == 0. Answer: on_detached(), from the loop, usually in
  // this turn or the next. Until then the only other call allowed is close().
  void detach();
  bool detaching() const { return detaching_; }

  // From here on everything goes through TLS: on_bytes gives, send() and forward() take plaintext, and what is sent
  // before the handshake is over waits for it. `already`: what the other side is known to have sent of it. A failure
  // comes as on_closed() with EPROTO; tls()->error() says what it was. Its state may come from another engine's
  // on_detached().
  void start_tls(std::unique_ptr<Tls> tls, Bytes already = {});
  const Tls* tls() const { return secure_.tls.get(); }  // null: plain

  // A receive with MSG_PEEK | MSG_DONTWAIT: is there nothing to read and no EOF or error? For idle, unarmed streams.
  bool looks_idle() const;

  int fd() const { return fd_; }

  std::uint64_t bytes_in = 0, bytes_out = 0;  // counted by the engine

 protected:
  Stream() = default;
  friend class EngineCore;
  friend class UringEngine;
  friend class EpollEngine;
  friend class SimEngine;

  // A FIFO of pooled segments (segments.h).
  struct Queue {
    Segment* head = nullptr;
    Segment* tail = nullptr;
  };
  // No callback for this stream any more: closed by its owner, or already reported closed.
  bool silent() const { return closing_ || flushing_ || reported_; }

  StreamOwner* owner_ = nullptr;
  EngineCore* engine_ = nullptr;
  std::size_t queued_ = 0;
  Queue out_;    // to be sent
  Queue stash_;  // received while paused (io_uring only: epoll leaves it in the kernel)
  struct {
    std::unique_ptr<Tls> tls;
    Queue plain;  // to be encrypted at the end of the turn
  } secure_;
  SendOp* op_ = nullptr;  // what the kernel reads during sendmsg or connect
  int fd_ = -1;
  int error_ = 0;          // for on_closed() or on_connected(), not yet delivered
  std::uint16_t ops_ = 0;  // operations in the ring; the stream outlives them
  Kind kind_ = Kind::client;
  bool used_ : 1 = false;  // not on the slab's freelist
  bool armed_ : 1 = false;
  bool want_drained_ : 1 = false;
  bool connecting_ : 1 = false;
  bool connected_ : 1 = false;  // connect() has a result that on_connected() has not told yet
  bool closing_ : 1 = false;    // closed by the owner (or detached); waits for ops_ == 0
  bool flushing_ : 1 = false;   // close_after_flush(): sends on, then closes
  bool detaching_ : 1 = false;
  bool eof_ : 1 = false;       // reading ended with error_; told after the stash
  bool broken_ : 1 = false;    // sending failed with error_; told at once
  bool reported_ : 1 = false;  // on_closed() was called
  bool dirty_ : 1 = false;     // in EngineCore::dirty_, and so on
  bool todo_ : 1 = false;
  bool dead_ : 1 = false;
  bool lingering_ : 1 = false;
  bool starved_ : 1 = false;     // wants to receive, waits for a buffer
  bool receiving_ : 1 = false;   // io_uring: a recv is in the ring
  bool cancelling_ : 1 = false;  //           and a cancel for it
  bool sending_ : 1 = false;     //           a send is in the ring
  bool more_ : 1 = false;        //           the last recv left bytes in the socket
  bool readable_ : 1 = false;    // epoll: edges seen and not used up
  bool writable_ : 1 = false;
  bool hangup_ : 1 = false;  //        EOF or an error is behind the readable bytes
};

class AcceptOwner {
 public:
  // fd is nonblocking and close-on-exec; tag is what listen() was given.
  virtual void on_accept(int fd, int tag) = 0;
  // accept() failed (EMFILE and the like): the engine pauses accepting on that listener for `kAcceptPause`.
  virtual void on_accept_error(int error, int tag) = 0;

 protected:
  ~AcceptOwner() = default;
};
inline constexpr Usec kAcceptPause = 5 * kSecond;

class LoopOwner {
 public:
  // After all completions of a turn were delivered, before its sends are performed. Returns the time of the next turn
  // that is wanted even if nothing happens (monotonic), or -1 for none.
  virtual Usec on_turn(Usec now) = 0;
  // Somebody called wake() since the last turn: look into the mailbox. Comes before on_turn().
  virtual void on_wake() = 0;

 protected:
  ~LoopOwner() = default;
};

struct EngineOptions {
  unsigned client_buffers = 64, client_buffer_size = 4096;   // powers of two; io_uring's provided buffers
  unsigned server_buffers = 16, server_buffer_size = 49152;  // together at most 1 MB per worker
};

class Engine {
 public:
  virtual ~Engine() = default;
  virtual const char* name() const = 0;  // "io_uring" or "epoll"

  // Takes over a connected nonblocking socket. Reading starts with resume()/arm().
  virtual Stream* adopt(int fd, Kind kind, StreamOwner* owner) = 0;
  // Starts connecting a new socket; on_connected() tells. The caller configures the socket (fd() is valid at once).
  // Returns nullptr with errno when not even a socket could be made.
  virtual Stream* connect(const sockaddr* address, socklen_t length, StreamOwner* owner) = 0;

  // Accepts on a listening socket until unlisten(); the fd stays the caller's.
  virtual void listen(int fd, int tag, AcceptOwner* owner) = 0;
  virtual void unlisten(int fd) = 0;

  // Runs until stop(). Must be called from the thread that made the engine.
  virtual void run(LoopOwner& owner) = 0;
  virtual void stop() = 0;
  // Any thread: makes on_wake() happen soon. Cheap when the loop is awake or a wake is already pending.
  virtual void wake() = 0;

  // Odd while the loop is at work, even while it sleeps; never the same twice. Any thread; written by the loop.
  std::uint64_t beat() const { return beat_.load(std::memory_order_relaxed); }
  Usec now() const { return now_; }       // monotonic, frozen during a turn
  std::uint64_t turns = 0, syscalls = 0;  // of this loop, for SHOW WORKERS and the golden tests
  // epoll: at most so many bytes per send, 0 = no limit. For sockets with tiny buffers (tcp_socket_buffer): pieces of
  // all sizes hide from the receiver's TCP what a full segment is, and each then waits for a delayed acknowledgement.
  std::size_t send_cap = 0;

 protected:
  void next_beat() { beat_.store(beat_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
  Usec now_ = 0;

 private:
  std::atomic<std::uint64_t> beat_{0};
};

Usec monotonic_now();
Usec wall_now();  // since 1970

// Make an engine in the thread that will run it. `auto_`-style choice: probe_uring() says whether this kernel and
// container allow what engine_uring needs (flags, buffer ring, one multishot recv on a socketpair); empty = yes, else
// why not.
std::string probe_uring();
std::unique_ptr<Engine> make_uring(const EngineOptions& options = {});
std::unique_ptr<Engine> make_epoll(const EngineOptions& options = {});

}  // namespace pgf::net
