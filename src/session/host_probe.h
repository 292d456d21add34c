#pragma once
// Asks addresses that are out whether they are back: a connection, an SSLRequest, one byte; and if our servers speak
// TLS and the byte is S, TLS, whatever the certificate. PostgreSQL answers before it looks at anything else, takes none
// of its connections for it and logs nothing. So no client ever waits for a host that may be dead still. Each worker
// has one prober; pool::Hosts sees to it that one asks at a time.
#include <memory>
#include <vector>

#include "net/engine.h"
#include "pool/hosts.h"
#include "session/env.h"

namespace pgf::session {

class HostProbe final : public net::StreamOwner {
 public:
  HostProbe(Env& env, std::shared_ptr<pool::Address> address)
      : env_(env), address_(std::move(address)), since_(env.now()) {}
  void start();
  void end(std::string_view failure);  // none: it answered
  void abandon();
  bool done() const { return done_; }
  Usec since() const { return since_; }

  void on_connected(net::Stream& stream, int error) override;
  void on_bytes(net::Stream& stream, const net::Received& received) override;
  void on_secure(net::Stream& stream) override;
  void on_closed(net::Stream& stream, int error) override;

 private:
  Env& env_;
  const std::shared_ptr<pool::Address> address_;
  const Usec since_;
  net::Stream* stream_ = nullptr;
  bool done_ = false;
};

class Prober {
 public:
  explicit Prober(Env& env) : env_(env) {}
  void tick(Usec now);
  void abandon();  // the worker ends

 private:
  Env& env_;
  std::vector<std::unique_ptr<HostProbe>> probes_;
};

}  // namespace pgf::session
