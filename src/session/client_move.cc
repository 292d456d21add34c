// A client changes its worker while it says nothing: as for a server, the engine lets go of the socket, a message
// carries the object, the other engine adopts the socket. Whatever arrives meanwhile waits in the kernel and is read
// there.
#include "session/client.h"
#include "session/pool.h"

namespace pgf::session {

bool Client::may_move() const {
  return phase_ == Phase::idle && !server && !held_ && !body_left_ && !discarding_ && !batch_ && !query_start_ &&
         !xact_start_ && !paused_ && !frozen_ && !cut_ && counted_pool && !stream->detaching() &&
         replication == wire::Replication::none && stream->queued() == 0 && (!stream->tls() || stream->tls()->open());
}

// From here until on_detached() it is an idle client like any other: bytes that come first are dealt with here, and the
// engine keeps the stream.
void Client::move_to(int worker) {
  move_to_ = static_cast<std::int8_t>(worker);
  stream->detach();
}

void Client::on_detached(int fd, std::unique_ptr<net::Tls> tls) {
  const int to = std::exchange(move_to_, std::int8_t{-1});
  if (to >= 0 && !frozen_ && env_->shared.moves.begin()) {
    stream = nullptr;
    moving_tls_ = std::move(tls);
    pool->clients.remove(this);
    return env_->ship(this, fd, to);
  }
  stream = env_->engine->adopt(fd, net::Kind::client, this);
  if (tls) stream->start_tls(std::move(tls));
  if (frozen_)
    parked_ = true;
  else if (!paused_)
    stream->resume();
}

void Client::arrive(Pool& here, int fd) {
  pool = &here;
  env_ = &here.env;
  stream = env_->engine->adopt(fd, net::Kind::client, this);
  if (moving_tls_) stream->start_tls(std::move(moving_tls_));
  slot = env_->add_client(this);
  pool->clients.push_back(this);
  env_->shared.moves.end();
  if (env_->freezing)
    freeze();
  else
    stream->resume();
}

}  // namespace pgf::session
