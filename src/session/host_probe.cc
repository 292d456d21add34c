#include "session/host_probe.h"

#include <string.h>

#include "session/attempt.h"
#include "wire/startup.h"

namespace pgf::session {

// If server_connect_timeout is off.
static constexpr Usec kLongestProbe = 15 * kSecond;

void HostProbe::start() {
  auto target = parse_address_key(address_->text);
  if (target) stream_ = env_.engine->connect(target->get(), target->length, this);
  if (!stream_) end("cannot make a socket");
}

void HostProbe::on_connected(net::Stream&, int error) {
  if (error) return end(strerror(error));
  stream_->send(as_bytes(wire::ssl_request()));
  stream_->arm();
}

void HostProbe::on_bytes(net::Stream&, const net::Received& received) {
  if (as_text(received.bytes) != "S" || !env_.tls->server) return end({});
  stream_->start_tls(net::Tls::anybody(*env_.tls->server));
  stream_->arm();
}

void HostProbe::on_secure(net::Stream&) { end({}); }

void HostProbe::on_closed(net::Stream&, int error) {
  if (stream_->tls()) return end({});  // it does not like our TLS, or we not its: it is there
  end(error ? strerror(error) : "server closed the connection unexpectedly");
}

void HostProbe::end(std::string_view failure) {
  if (done_) return;
  done_ = true;
  if (failure.empty()) {
    env_.shared.hosts.probed(*address_, env_.now(), env_.now() - since_);
    env_.log(LogLevel::log, "host {} is back", address_->text);
  } else {
    env_.shared.hosts.failed(*address_, env_.now(), failure);
    env_.log(LogLevel::debug, "host {} is still out: {}", address_->text, failure);
  }
  abandon();
}

void HostProbe::abandon() {
  if (stream_) stream_->close();
  stream_ = nullptr;
}

void Prober::tick(Usec now) {
  Usec limit = env_.settings().server_connect_timeout > 0 ? env_.settings().server_connect_timeout : kLongestProbe;
  for (auto& probe : probes_)
    if (!probe->done() && now - probe->since() > limit) probe->end("timeout expired");
  // Those that ended in a callback of theirs are deleted only here, when nobody up the stack knows them.
  std::erase_if(probes_, [](const auto& probe) { return probe->done(); });
  while (auto address = env_.shared.hosts.due(now)) {
    probes_.push_back(std::make_unique<HostProbe>(env_, std::move(address)));
    probes_.back()->start();
  }
}

void Prober::abandon() {
  for (auto& probe : probes_) probe->abandon();
  probes_.clear();
}

}  // namespace pgf::session
