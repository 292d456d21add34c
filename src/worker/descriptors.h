#pragma once
// File descriptors on their way through a Unix socket (SCM_RIGHTS).
#include <string_view>
#include <utility>

namespace pgf::worker {

// Owns one.
struct Descriptor {
  explicit Descriptor(int fd_) : fd(fd_) {}
  Descriptor(Descriptor&& other) noexcept : fd(std::exchange(other.fd, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd, other.fd);
    return *this;
  }
  ~Descriptor();
  int fd;
};

// Sends all of `bytes`, with `passed` attached unless it is negative. Waits for a slow reader, but not for ever. False:
// errno tells.
bool send_with_descriptor(int socket, std::string_view bytes, int passed);

}  // namespace pgf::worker
