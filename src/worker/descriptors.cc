#include "worker/descriptors.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace pgf::worker {

static constexpr int kPatience = 10'000;  // milliseconds

Descriptor::~Descriptor() {
  if (fd >= 0) ::close(fd);
}

bool send_with_descriptor(int socket, std::string_view bytes, int passed) {
  for (int refused = 0; !bytes.empty();) {
    iovec part{const_cast<char*>(bytes.data()), bytes.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (passed >= 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      cmsghdr* c = CMSG_FIRSTHDR(&message);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(c), &passed, sizeof passed);
    }
    ssize_t n = ::sendmsg(socket, &message, MSG_NOSIGNAL);
    if (n > 0) {
      passed = -1;
      bytes.remove_prefix(static_cast<std::size_t>(n));
    } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      pollfd writable{socket, POLLOUT, 0};
      if (::poll(&writable, 1, kPatience) == 0) {
        errno = ETIMEDOUT;
        return false;
      }
    } else if (n < 0 && errno == ETOOMANYREFS && ++refused < kPatience / 10) {
      ::poll(nullptr, 0, 10);  // more descriptors in flight than RLIMIT_NOFILE: let them be read
    } else if (n < 0 && errno != EINTR) {
      return false;
    }
  }
  return true;
}

}  // namespace pgf::worker
