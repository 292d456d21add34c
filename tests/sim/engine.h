#pragma once
// An engine whose sockets are the simulated network's. It stands for both real ones: `asynchronous` is io_uring's way
// (operations are begun, complete later, and have to be cancelled), the other is epoll's (readiness, and calls that are
// over when they return). What is ready in a turn, how much of it, and in which order is drawn.
#include <map>
#include <memory>
#include <vector>

#include "net/engine_core.h"
#include "network.h"

namespace pgf::net {

struct SimOptions {
  bool asynchronous = true;
  std::size_t client_buffer = 4096, server_buffer = 49152;
  int first_pooler = 0;  // whoever is called at this address or above is a peer, and needs no permit
};

class SimEngine final : public EngineCore {
 public:
  SimEngine(sim::Network& network, sim::Random& random, sim::Trace& trace, int number, const SimOptions& options);
  ~SimEngine() override;
  const char* name() const override { return "simulated"; }
  Stream* adopt(int fd, Kind kind, StreamOwner* owner) override;

  void call(int fd) { calls_.push_back(fd); }  // somebody has connected to this worker's port
  bool ready() const;                          // is there anything to do now?
  Usec due() const { return due_; }            // the next turn that is wanted anyway; -1: none
  void step(LoopOwner& owner);                 // one turn

  struct Counts {
    std::size_t streams = 0, lingering = 0, dialled = 0, most_queued = 0;
  };
  Counts count() const;
  std::size_t peers_called() const { return peers_called_; }  // so far
  std::string story() const;                                  // of each socket

 private:
  struct Socket {
    Stream* stream;
    std::size_t send_total = 0, send_done = 0;  // of the operation in flight
    unsigned cancel_recv = 0;                   // one may still be on its way when the next receive is cancelled
    bool dialled = false, cancel_send = false, cancel_connect = false, multishot = false;
  };
  enum class What : std::uint8_t { receive, cancel_receive, send, cancel_send, connect, cancel_connect, accept };
  struct Event {
    What what;
    int fd;
  };
  struct OwnedBuffer : Buffer {
    std::unique_ptr<std::uint8_t[]> memory;
    std::size_t used = 0;
    bool lent = false;
  };

  void start_reading(Stream& s) override;
  void stop_reading(Stream& s) override;
  void abort(Stream& s) override;
  void start_connect(Stream& s) override;
  void flush(Stream& s) override;
  void before_detach(Stream& s) override;
  void more_work(Stream&) override {}
  void watch(Listener& l) override { l.watching = true; }
  void unwatch(Listener& l) override { l.watching = false; }
  void recycle(Buffer& buffer) override;
  bool may_lend(const Buffer&) const override { return lent_ < 8; }
  void close_fd(int fd) override;
  void wait(Usec) override;
  Usec clock() const override { return network_.now(); }
  int make_socket(int) override;
  ssize_t receive_now(int fd, void* to, std::size_t size, int flags) override;

  Socket& socket(const Stream& s) { return sockets_.at(s.fd_); }
  void find_events(std::vector<Event>& into) const;
  bool reads(const Stream& s) const;  // would a receive that has been begun complete?
  void happen(const Event& event);
  void receive(int fd);
  void on_recv(Stream& s, int result, Buffer* buffer, bool more);
  void send(int fd);
  void finish_send(Stream& s, int result);
  std::size_t push(Stream& s, std::size_t from, std::size_t most);
  Buffer& buffer();
  Listener* listener() const;

  sim::Network& network_;
  sim::Random& random_;
  sim::Trace& trace_;
  const int number_;
  const SimOptions options_;
  std::map<int, Socket> sockets_;  // by descriptor: in the order in which they were made
  std::vector<int> calls_;
  std::vector<std::unique_ptr<OwnedBuffer>> buffers_;
  std::vector<Buffer*> free_buffers_;
  unsigned lent_ = 0;
  std::vector<Event> events_;
  Usec due_ = 0;
  std::size_t peers_called_ = 0;
};

// The address in the simulated network that a sockaddr stands for: its port.
int port_of(const sockaddr* address);

}  // namespace pgf::net
