// Clients change their worker: who is chosen, and the two ends of the way (session/client_move.cc is the client's
// part).
#include <pthread.h>
#include <time.h>

#include "worker/fleet.h"
#include "worker/worker.h"

namespace pgf::worker {

using pool::MoveReason;
using session::Client;
using session::ClientHandle;

static constexpr Usec kOrderTime = 250 * kMillisecond;  // who has not found a moment of silence by then stays
static constexpr Usec kTalking = kSecond;               // who said something since then is whom gathering is about
static constexpr std::size_t kLooksPerTurn = 64;

static std::size_t index(MoveReason reason) { return static_cast<std::size_t>(reason); }

Usec Worker::cpu_time() {
  clockid_t clock;
  timespec t{};
  if (thread_.joinable() && pthread_getcpuclockid(thread_.native_handle(), &clock) == 0) clock_gettime(clock, &t);
  return static_cast<Usec>(t.tv_sec) * kSecond + t.tv_nsec / 1000;
}

void Worker::receive(MoveClients& m) {
  if (m.to == worker || m.count <= 0) return;
  for (MoveOrder& order : move_orders_)
    if (order.what.to == m.to) {
      order.what = m;
      order.until = now() + kOrderTime;
      return;
    }
  move_orders_.push_back({m, {}, 0, now() + kOrderTime});
}

// A few clients per turn: whoever is busy now may be silent in the next one.
bool Worker::move_clients(Usec now) {
  std::erase_if(move_orders_, [&](MoveOrder& order) {
    std::erase_if(order.chosen, [&](ClientHandle handle) {
      Client* c = find(handle);
      return !c || !c->stream->detaching();  // gone, or it had something to say
    });
    const bool over = now >= order.until || order.what.count <= 0;
    const bool all = order.what.reason == MoveReason::level || order.what.reason == MoveReason::shuffle;
    for (std::size_t looks = 0; !over && looks < std::min(kLooksPerTurn, clients_.size()); ++looks) {
      if (static_cast<int>(order.chosen.size()) >= order.what.count) break;
      if (++order.next >= clients_.size()) order.next = 0;
      Client* c = clients_[order.next];
      if (!c || !c->may_move() || !(all || c->talked_since(now - kTalking))) continue;
      order.chosen.push_back({worker, c->slot, c->id});
      c->move_to(order.what.to);
    }
    return over && order.chosen.empty();
  });
  return !move_orders_.empty();
}

void Worker::ship(Client* client, int fd, int to) {
  MoveReason reason = MoveReason::level;
  for (MoveOrder& order : move_orders_)
    if (order.what.to == to) {
      --order.what.count;
      reason = order.what.reason;
    }
  ++clients_out_[index(reason)];
  const ClientHandle here{worker, client->slot, client->id};
  const bool has_key = client->has_key;
  const wire::CancelKey key = client->cancel_key;
  leave(client);
  Worker& there = fleet_.worker(to);
  there.load.fetch_add(1, std::memory_order_relaxed);
  // The client first, then the news: so whoever reads the news comes behind the client.
  there.post(MovedClient{client, &client->pool->shared, fd, here, reason});
  if (has_key) shared.cancels.moved(key, here, {to, ClientHandle::kOnItsWay, here.id});
}

void Worker::receive(MovedClient& m) {
  ++clients_in_[index(m.reason)];
  m.client->arrive(pool(*m.pool), m.fd);
  if (!m.client->has_key) return;
  const ClientHandle here{worker, m.client->slot, m.client->id};
  shared.cancels.moved(m.client->cancel_key, m.from, here);
  shared.cancels.moved(m.client->cancel_key, {worker, ClientHandle::kOnItsWay, here.id}, here);
}

}  // namespace pgf::worker
