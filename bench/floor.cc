// The floor: the least that a transaction pooler over TCP can do with io_uring, to be measured beside the real ones
// (scripts/bench --against floor=build/bench/floor). It relays whole packets between clients and a fixed set of
// servers, first come, first served, and knows nothing else: no parsing, no parameters, no limits, no errors; an
// answer is over when a packet ends with ReadyForQuery 'I'. What it costs is what the kernel costs; the rest of a
// pooler's figure is the pooler's own. Takes the ini of run.py and reads three numbers from it.
#include <arpa/inet.h>
#include <liburing.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <deque>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "wire.h"

namespace bench {
namespace {

constexpr unsigned kBuffers = 256, kBufferSize = 16384;

struct Connection {
  int fd;
  bool server;
  bool ready = false;  // the login is over
  bool sending = false, dirty = false;
  Connection* peer = nullptr;
  std::string out, in_flight, held;  // to be sent; being sent; a client's question that waits for a server
};

class Floor {
 public:
  Floor(int listen_port, int backend_port, int servers) {
    io_uring_params params{};
    params.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_CQSIZE;
    params.cq_entries = 8192;
    check("io_uring", io_uring_queue_init_params(1024, &ring_, &params));
    io_uring_register_ring_fd(&ring_);
    memory_ = static_cast<char*>(map(kBuffers * kBufferSize));
    buffers_ = static_cast<io_uring_buf_ring*>(map(kBuffers * sizeof(io_uring_buf)));
    io_uring_buf_reg registration{};
    registration.ring_addr = reinterpret_cast<std::uint64_t>(buffers_);
    registration.ring_entries = kBuffers;
    check("buffer ring", io_uring_register_buf_ring(&ring_, &registration, 0));
    io_uring_buf_ring_init(buffers_);
    for (unsigned i = 0; i < kBuffers; ++i) give_back(i);

    std::string startup;
    {
      Message message(startup, 0);
      put32(startup, 196608);
      for (const char* word : {"user", "bench", "database", "bench"}) put_cstr(startup, word);
      startup.push_back('\0');
    }
    for (int i = 0; i < servers; ++i) {
      int fd = socket(AF_INET, SOCK_STREAM, 0);
      sockaddr_in address = loopback(backend_port);
      check("connect", connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address));
      queue(*add(fd, true), startup);
    }
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    int one = 1;
    setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    sockaddr_in address = loopback(listen_port);
    check("bind", bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address));
    check("listen", ::listen(listener_, 4096));
    accept();
  }

  [[noreturn]] void run() {
    for (;;) {
      for (Connection* c : dirty_) {
        c->dirty = false;
        if (!c->sending) send(*c);
      }
      dirty_.clear();
      io_uring_submit_and_wait(&ring_, 1);
      unsigned head, n = 0;
      io_uring_cqe* cqe;
      io_uring_for_each_cqe(&ring_, head, cqe) {
        ++n;
        completed(*cqe);
      }
      io_uring_cq_advance(&ring_, n);
    }
  }

 private:
  enum Tag : std::uint64_t { kAccept, kReceive, kSend, kMask = 7 };

  static void check(const char* what, int result) {
    if (result >= 0) return;
    fprintf(stderr, "floor: %s: %s\n", what, strerror(result == -1 ? errno : -result));
    exit(2);
  }
  static void* map(std::size_t size) {
    void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check("mmap", p == MAP_FAILED ? -1 : 0);
    return p;
  }
  static sockaddr_in loopback(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    return address;
  }

  io_uring_sqe* sqe() {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    if (entry) return entry;
    io_uring_submit(&ring_);
    return io_uring_get_sqe(&ring_);
  }
  char* data(unsigned buffer) { return memory_ + static_cast<std::size_t>(buffer) * kBufferSize; }
  void give_back(unsigned buffer) {
    io_uring_buf_ring_add(buffers_, data(buffer), kBufferSize, static_cast<unsigned short>(buffer), kBuffers - 1, 0);
    io_uring_buf_ring_advance(buffers_, 1);
  }

  Connection* add(int fd, bool server) {
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    auto* c = new Connection{.fd = fd, .server = server, .out = {}, .in_flight = {}, .held = {}};  // for ever
    receive(*c);
    return c;
  }
  void accept() {
    io_uring_sqe* e = sqe();
    io_uring_prep_multishot_accept(e, listener_, nullptr, nullptr, 0);
    io_uring_sqe_set_data64(e, kAccept);
  }
  void receive(Connection& c) {
    io_uring_sqe* e = sqe();
    io_uring_prep_recv_multishot(e, c.fd, nullptr, 0, 0);
    e->flags |= IOSQE_BUFFER_SELECT;
    io_uring_sqe_set_data64(e, reinterpret_cast<std::uint64_t>(&c) | kReceive);
  }
  void send(Connection& c) {
    c.in_flight.swap(c.out);
    c.out.clear();
    c.sending = true;
    io_uring_sqe* e = sqe();
    io_uring_prep_send(e, c.fd, c.in_flight.data(), c.in_flight.size(), MSG_NOSIGNAL | MSG_WAITALL);
    io_uring_sqe_set_data64(e, reinterpret_cast<std::uint64_t>(&c) | kSend);
  }
  void queue(Connection& c, std::string_view bytes) {
    c.out.append(bytes);
    mark(c);
  }
  void mark(Connection& c) {
    if (c.dirty) return;
    c.dirty = true;
    dirty_.push_back(&c);
  }

  void completed(const io_uring_cqe& cqe) {
    const bool more = cqe.flags & IORING_CQE_F_MORE;
    if (cqe.user_data == kAccept) {
      if (cqe.res >= 0) add(cqe.res, false);
      if (!more) accept();
      return;
    }
    auto& c = *reinterpret_cast<Connection*>(cqe.user_data & ~static_cast<std::uint64_t>(kMask));
    if ((cqe.user_data & kMask) == kSend) {
      c.sending = false;
      if (!c.out.empty()) mark(c);
      return;
    }
    if (cqe.res > 0) {
      const unsigned buffer = cqe.flags >> IORING_CQE_BUFFER_SHIFT;
      std::string_view bytes(data(buffer), static_cast<std::size_t>(cqe.res));
      c.server ? from_server(c, bytes) : from_client(c, bytes);
      give_back(buffer);
    }
    if (!more && (cqe.res > 0 || cqe.res == -ENOBUFS)) receive(c);
  }

  void from_client(Connection& c, std::string_view bytes) {
    if (!c.ready) return log_in(c);
    if (c.peer) return queue(*c.peer, bytes);
    if (idle_.empty()) {
      c.held.assign(bytes);
      waiting_.push_back(&c);
      return;
    }
    Connection* server = idle_.back();
    idle_.pop_back();
    link(c, *server, bytes);
  }

  void log_in(Connection& c) {
    std::string answer;
    put_message(answer, 'R', std::string_view("\0\0\0\0", 4));
    put_message(answer, 'S', std::string_view("server_version\00015.0\0", 20));
    put_message(answer, 'K', "floor___");
    put_message(answer, 'Z', "I");
    c.ready = true;
    queue(c, answer);
  }

  void from_server(Connection& s, std::string_view bytes) {
    const bool over = bytes.size() >= 6 && bytes.ends_with('I') && bytes[bytes.size() - 6] == 'Z';
    if (s.peer) queue(*s.peer, bytes);
    if (!over) return;
    s.ready = true;
    if (s.peer) s.peer->peer = nullptr;
    s.peer = nullptr;
    if (waiting_.empty()) {
      idle_.push_back(&s);
      return;
    }
    Connection* client = waiting_.front();
    waiting_.pop_front();
    link(*client, s, client->held);
  }

  void link(Connection& client, Connection& server, std::string_view question) {
    client.peer = &server;
    server.peer = &client;
    queue(server, question);
  }

  io_uring ring_;
  io_uring_buf_ring* buffers_;
  char* memory_;
  int listener_;
  std::vector<Connection*> dirty_, idle_;
  std::deque<Connection*> waiting_;
};

int number_after(const std::string& text, std::string_view key) {
  const std::size_t at = text.find(key);
  return at == std::string::npos ? 0 : atoi(text.c_str() + at + key.size());
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  if (argc != 2) return fprintf(stderr, "usage: floor bench.ini (what run.py writes)\n"), 2;
  std::ifstream file(argv[1]);
  const std::string ini((std::istreambuf_iterator<char>(file)), {});
  bench::Floor(bench::number_after(ini, "listen_port = "), bench::number_after(ini, " port="),
               bench::number_after(ini, "default_pool_size = "))
      .run();
}
