#pragma once
// Cancel requests for clients of other processes: [peers]. Each peer is served by one worker (Worker::cancel picks it
// by the peer's number), so its pool_size is exact and its queue is one queue, without a lock. A request is sent in the
// clear, as PgBouncer does it: its key is worth something only while the query runs.
#include <cstdint>
#include <deque>
#include <expected>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/list.h"
#include "session/env.h"

namespace pgf::session {

// Where a key goes that is nobody's here.
struct Forward {
  int peer;  // 0: to each address of the peer "*"
  wire::SentKey key;
};
// Or why it goes nowhere: a literal.
std::expected<Forward, std::string_view> route_cancel(const config::Config& config, const wire::SentKey& key);

std::string peer_name(int id);  // as in the ini

class Peers;
class PeerPool;

// What one requester waits for: all that was sent for him. With "*" that is one request for each address.
struct Errand {
  ClientHandle requester;
  std::size_t open;
};
struct PeerRequest {
  std::string packet;
  std::shared_ptr<Errand> errand;
  Usec since;
};

// One connection. It is opened for whoever waits when it is there, as in PgBouncer, so a failure costs no request.
class PeerLink final : public net::StreamOwner, public ListNode {
 public:
  explicit PeerLink(PeerPool& pool);
  void open();
  void resolved(const std::vector<net::Address>& addresses, const std::string& error);
  void on_connected(net::Stream& stream, int error) override;
  void on_bytes(net::Stream& stream, const net::Received& received) override;
  void on_closed(net::Stream& stream, int error) override;
  void tick(Usec now);
  void end(std::string_view reason);
  void abandon();

  bool sent() const { return request_.has_value(); }
  Usec started() const { return started_; }
  net::Stream* stream() const { return stream_; }
  std::string address() const;
  int port() const;

  const std::uint64_t id;

 private:
  void dial(const net::Address& address);
  void failed(std::string_view reason, bool silent);
  void log(LogLevel level, std::string_view text) const;
  Env& env() const;

  PeerPool& pool_;
  net::Stream* stream_ = nullptr;
  net::Address address_;
  std::optional<PeerRequest> request_;  // once it is sent
  Usec started_, sent_at_ = 0;
  bool dead_ = false;
};

// A peer with a number, or one address of "*".
class PeerPool {
 public:
  PeerPool(Peers& peers_, int id_, std::optional<net::Address> fixed_) : peers(peers_), id(id_), fixed(fixed_) {}
  void add(PeerRequest request);
  void tick(Usec now);
  void drop_all(std::string_view reason);
  void failed(std::string_view reason, bool silent);  // a link could not be opened; silent: it took its time
  std::optional<PeerRequest> next();
  void service();
  bool empty() { return queue_.empty() && links.empty(); }
  std::size_t waiting() const { return queue_.size(); }
  const config::Peer* entry() const;  // null: no longer configured

  Peers& peers;
  const int id;
  const std::optional<net::Address> fixed;  // of "*"
  List<PeerLink> links;
  Usec last_used = 0;

 private:
  void settle_queue(std::string_view reason);

  std::deque<PeerRequest> queue_;
  Usec retry_at_ = 0;
};

// The peers that one worker serves.
class Peers {
 public:
  explicit Peers(Env& env_) : env(env_) {}
  ~Peers();
  void forward(const Forward& what, ClientHandle requester);
  void resolved(std::uint64_t question, const std::vector<net::Address>& addresses, const std::string& error);
  void configure();  // after RELOAD
  void tick(Usec now);
  void sweep();    // at the end of a turn
  void abandon();  // the worker ends: nobody is told
  template <class F>
  void each_pool(F&& f) {
    for (auto& [id, p] : named_) f(*p);
    for (auto& p : everyone_) f(*p);
  }

  // For pools and links.
  void settle(const PeerRequest& request, std::string_view reason);
  void bury(PeerLink* link) { dead_.push_back(link); }

  Env& env;

 private:
  struct Question {  // the addresses of "*" for one request
    Forward what;
    ClientHandle requester;
    Usec since;
  };
  void send_to_all(const Question& question, const std::vector<net::Address>& addresses);
  PeerPool& pool_at(const net::Address& address);

  std::map<int, std::unique_ptr<PeerPool>> named_;
  std::vector<std::unique_ptr<PeerPool>> everyone_;
  std::map<std::uint64_t, Question> questions_;
  std::vector<PeerLink*> dead_;
};

}  // namespace pgf::session
