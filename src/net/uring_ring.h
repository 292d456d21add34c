#pragma once
// liburing 2.3 wrapped just far enough: a ring with our flags, and rings of provided buffers. Internal to src/net/.
#include <liburing.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "net/segments.h"

namespace pgf::net {

// Anonymous pages; the kernel wants the buffer ring page-aligned, and pages that are never touched cost nothing.
class Pages {
 public:
  Pages() = default;
  explicit Pages(std::size_t size);
  Pages(Pages&& other) noexcept;
  Pages& operator=(Pages&& other) noexcept;
  ~Pages();
  std::uint8_t* data() const { return data_; }

 private:
  std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
};

class Ring {
 public:
  Ring() = default;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring();
  // 0 or -errno. Must be called in the thread that will use the ring (SINGLE_ISSUER).
  int open(unsigned sq_entries, unsigned cq_entries);
  io_uring* get() { return &ring_; }

 private:
  io_uring ring_{};
  bool open_ = false;
};

// Buffers of one size that the kernel picks from. The io_uring must be gone, or idle, before this is destroyed.
class BufferRing {
 public:
  // 0 or -errno.
  int open(io_uring* ring, std::uint16_t group, unsigned count, unsigned size);
  Buffer& operator[](unsigned id) { return buffers_[id]; }
  unsigned size() const { return size_; }
  unsigned count() const { return count_; }
  // The kernel has handed out buffer `id`.
  Buffer& taken(unsigned id) {
    --available;
    buffers_[id].refs = 1;
    return buffers_[id];
  }
  void give(Buffer& buffer);

  unsigned available = 0;  // in the ring as far as we know

 private:
  Pages ring_pages_, data_;
  std::unique_ptr<Buffer[]> buffers_;
  io_uring_buf_ring* ring_ = nullptr;
  unsigned count_ = 0, size_ = 0;
};

}  // namespace pgf::net
