#pragma once
// A small completion loop for the benchmark programs: io_uring where the kernel grants it, epoll where it does not. The
// generator and the null backend share one core in most runs; with two system calls per message they, not the pooler,
// would be the limit.
//
// One Loop belongs to one thread. A connection is named by an Id that is never reused while its operations are in
// flight, so a late completion cannot reach a newcomer.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace bench {

using Id = std::uint32_t;

class Handler {
 public:
  virtual void on_accept(int fd) { (void)fd; }
  virtual void on_bytes(Id id, std::string_view bytes) = 0;  // bytes are valid during the call only
  // The other side ended or an error (errno) struck. Only for connections that were not close()d. The Id is dead.
  virtual void on_end(Id id, int error) = 0;

 protected:
  ~Handler() = default;
};

class Loop {
 public:
  // engine: "auto", "io_uring" or "epoll". Exits the program with a message when "io_uring" is refused.
  static std::unique_ptr<Loop> make(std::string_view engine, Handler& handler);
  virtual ~Loop() = default;

  virtual void listen(int fd) = 0;
  virtual Id add(int fd) = 0;                   // takes over a connected socket
  virtual std::string& out(Id id) = 0;          // append what to send here, then flush()
  virtual void flush(Id id) = 0;                // send it at the end of this turn
  virtual void close(Id id) = 0;                // after what was flushed has gone out; no callback comes any more
  virtual void turn(std::int64_t wait_ns) = 0;  // one round; waits at most wait_ns (-1: for ever) for something to do
  virtual const char* name() const = 0;
};

}  // namespace bench
