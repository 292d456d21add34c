#pragma once
// Memory of the send path: what is queued on a stream is a list of segments, each either a pooled block of copied bytes
// or a reference to a lent receive buffer. All of it belongs to one engine's thread.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"

namespace pgf::net {

// A receive buffer. refs: one while on_bytes() runs, one per segment that refers to it; at zero it goes back.
struct Buffer {
  std::uint8_t* data = nullptr;
  std::uint32_t refs = 0;
  std::uint16_t id = 0;
  std::uint8_t group = 0;
};

struct Segment {
  Segment* next = nullptr;
  std::uint8_t* data = nullptr;
  std::uint32_t begin = 0, end = 0;
  std::uint32_t capacity = 0;  // 0: refers to `lent`
  Buffer* lent = nullptr;

  std::size_t size() const { return end - begin; }
  std::size_t room() const { return capacity > end ? capacity - end : 0; }
};

inline constexpr std::uint32_t kSmallBlock = 4096, kLargeBlock = 32768;
inline constexpr unsigned kMaxIovecs = 16;

// What the kernel reads while a sendmsg or connect is in flight.
struct SendOp {
  SendOp* next = nullptr;
  union {
    struct {
      msghdr message;
      iovec parts[kMaxIovecs];
    };
    struct {
      sockaddr_storage address;
      socklen_t address_length;
    };
  };
  SendOp() : message{} {}
};

// Freelists. What is given back is kept up to a bound, so that a burst does not stay in memory for ever.
class SegmentPool {
 public:
  SegmentPool() = default;
  SegmentPool(const SegmentPool&) = delete;
  SegmentPool& operator=(const SegmentPool&) = delete;
  ~SegmentPool();

  Segment* block(std::size_t bytes_to_come) {
    return bytes_to_come > kSmallBlock ? take(large_, kLargeBlock) : take(small_, kSmallBlock);
  }
  Segment* reference() { return take(refs_, 0); }
  void give(Segment* segment);

  SendOp* op();
  void give(SendOp* op);

 private:
  struct List {
    Segment* free = nullptr;
    unsigned count = 0;
    unsigned keep;
  };
  static Segment* take(List& list, std::uint32_t capacity);

  List small_{.keep = 256}, large_{.keep = 32}, refs_{.keep = 1024};
  SendOp* ops_ = nullptr;
};

}  // namespace pgf::net
