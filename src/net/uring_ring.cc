#include "net/uring_ring.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "net/engine.h"

namespace pgf::net {

Pages::Pages(std::size_t size) : size_(size) {
  void* p = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<std::uint8_t*>(p);
}
Pages::Pages(Pages&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}
Pages::~Pages() {
  if (data_) ::munmap(data_, size_);
}

Ring::~Ring() {
  if (open_) io_uring_queue_exit(&ring_);
}

int Ring::open(unsigned sq_entries, unsigned cq_entries) {
  io_uring_params params{};
  // DEFER_TASKRUN: completions are made inside our own io_uring_enter, never as an interruption of it.
  params.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP |
                 IORING_SETUP_SUBMIT_ALL;
  params.cq_entries = cq_entries;
  int error = io_uring_queue_init_params(sq_entries, &ring_, &params);
  if (error < 0) return error;
  open_ = true;
  if (!(params.features & IORING_FEAT_EXT_ARG) || !(params.features & IORING_FEAT_NODROP)) return -ENOSYS;
  io_uring_register_ring_fd(&ring_);  // saves the lookup of the ring's fd in every enter; not having it is no harm
  return 0;
}

int BufferRing::open(io_uring* ring, std::uint16_t group, unsigned count, unsigned size) {
  ring_pages_ = Pages(count * sizeof(io_uring_buf));
  data_ = Pages(static_cast<std::size_t>(count) * size);
  ring_ = reinterpret_cast<io_uring_buf_ring*>(ring_pages_.data());
  count_ = count;
  size_ = size;
  io_uring_buf_reg registration{};
  registration.ring_addr = reinterpret_cast<std::uintptr_t>(ring_);
  registration.ring_entries = count;
  registration.bgid = group;
  if (int error = io_uring_register_buf_ring(ring, &registration, 0); error < 0) return error;
  io_uring_buf_ring_init(ring_);
  buffers_ = std::make_unique<Buffer[]>(count);
  for (unsigned i = 0; i < count; ++i) {
    buffers_[i].data = data_.data() + static_cast<std::size_t>(i) * size;
    buffers_[i].id = static_cast<std::uint16_t>(i);
    buffers_[i].group = static_cast<std::uint8_t>(group);
    give(buffers_[i]);
  }
  return 0;
}

void BufferRing::give(Buffer& buffer) {
  io_uring_buf_ring_add(ring_, buffer.data, size_, buffer.id, io_uring_buf_ring_mask(count_), 0);
  io_uring_buf_ring_advance(ring_, 1);
  ++available;
}

std::string probe_uring() {
  auto reason = [](const char* what, int error) { return std::string(what) + ": " + std::strerror(-error); };
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
    return reason("socketpair", -errno);
  std::string result = [&]() -> std::string {
    BufferRing buffers;  // outlives the ring
    Ring ring;
    if (int error = ring.open(8, 32); error < 0) return reason("io_uring_setup", error);
    if (int error = buffers.open(ring.get(), 0, 2, 64); error < 0) return reason("buffer ring", error);
    io_uring_sqe* sqe = io_uring_get_sqe(ring.get());
    io_uring_prep_recv_multishot(sqe, pair[0], nullptr, 0, 0);
    sqe->flags |= IOSQE_BUFFER_SELECT;
    sqe->buf_group = 0;
    if (::send(pair[1], "x", 1, MSG_NOSIGNAL) != 1) return reason("send", -errno);
    io_uring_cqe* cqe = nullptr;
    __kernel_timespec wait{.tv_sec = 2, .tv_nsec = 0};
    int n = io_uring_submit_and_wait_timeout(ring.get(), &cqe, 1, &wait, nullptr);
    if (n < 0) return reason("io_uring_enter", n);
    if (!cqe) return "io_uring_enter: no completion";
    if (cqe->res < 0) return reason("multishot recv", cqe->res);
    if (cqe->res != 1 || !(cqe->flags & IORING_CQE_F_BUFFER)) return "multishot recv: no provided buffer";
    if (!(cqe->flags & IORING_CQE_F_MORE)) return "multishot recv: not multishot";
    return {};
  }();
  ::close(pair[0]);
  ::close(pair[1]);
  return result;
}

}  // namespace pgf::net
