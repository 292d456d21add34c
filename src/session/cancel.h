#pragma once
// A CancelRequest on its way to a server, on the worker that owns the client. The server that it aims at is given to
// nobody until the server has closed this connection (design.md section 6).
#include "base/list.h"
#include "session/env.h"

namespace pgf::session {

class CancelLink final : public net::StreamOwner, public ListNode {
 public:
  // What a key found on this worker; `requester` is told when all is settled.
  static void begin(Client& client, ClientHandle requester);

  CancelLink(Pool& pool, Client& client, ClientHandle requester, pool::Permit permit);
  void on_bytes(net::Stream&, const net::Received& received) override;
  void on_closed(net::Stream& stream, int error) override;
  void on_connected(net::Stream& stream, int error) override;
  void on_secure(net::Stream&) override { send(); }
  void target_lost() { target_ = nullptr; }
  Server* target() const { return target_; }
  Usec started() const { return started_; }
  bool sent() const { return sent_; }
  void end(std::string_view reason);
  void abandon() {  // the worker ends
    if (stream_) stream_->close();
    delete this;
  }

 private:
  void start_tls(bool direct);
  void send();

  Pool* pool_;
  net::Stream* stream_ = nullptr;
  Server* target_;           // null once it is gone
  std::uint64_t client_id_;  // the query's owner: only while it is still linked may the request go out
  ClientHandle requester_;
  pool::Permit permit_;
  Usec started_;
  bool sent_ = false, dead_ = false;
};

}  // namespace pgf::session
