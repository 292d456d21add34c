// Whole conversations through the real clients, pool and servers (conversation_kit.h): two clients, a pool of one
// server connection. The first byte picks a configuration (15), says whether clients log in by themselves (16), with
// which protocol if they do not (32), and what servers ask for (192); then come orders, a byte each:
//   0 1  bytes of client A, B       2  every server answers what it was asked       3  bytes of the server's
//   4 5  client A, B leaves         6  the server leaves, or a client is cancelled  7  time passes
// Everything is played twice: each piece at once, and cut. What clients are told must be the same. In the end nobody is
// left in any count.
#include <algorithm>
#include <cstdlib>
#include <random>

#include "session/conversation_kit.h"

namespace {

using namespace pgf;
using session::kit::must;
using session::kit::World;

constexpr std::uint8_t kByHand = 16;  // clients say their startup packets themselves

struct Result {
  std::vector<std::string> told;
  bool clean = true;  // no server said more than it was asked
};

// What differs from run to run: keys, salts, and how much of a bad packet had arrived when it was seen to be bad.
std::string without_chance(std::string text) {
  for (std::size_t at = 0; (at = text.find(std::string_view("K\0\0\0\x0c", 5), at)) != text.npos; at += 5)
    text.replace(at + 5, std::min<std::size_t>(8, text.size() - at - 5), "key");
  for (std::size_t at = 0; (at = text.find(std::string_view("K\0\0\0\x28", 5), at)) != text.npos; at += 5)
    text.replace(at + 5, std::min<std::size_t>(36, text.size() - at - 5), "key");
  for (std::size_t at = 0; (at = text.find(std::string_view("R\0\0\0\x0c\0\0\0\5", 9), at)) != text.npos; at += 9)
    text.replace(at + 9, std::min<std::size_t>(4, text.size() - at - 9), "salt");
  if (const std::size_t at = text.find("bad packet header: '"); at != text.npos && at >= 20)
    text.resize(at - 20);  // with the head of its message, whose length depends on it
  return text;
}

class Play {
 public:
  Play(Bytes script, bool cut) : in_(script), cut_(cut) {
    LogTarget nowhere;
    nowhere.to_stderr = false;
    log_.open(nowhere);
  }

  Result run() {
    const std::uint8_t flags = in_.u8();
    auto config = session::kit::configuration(flags & 15);
    session::Shared shared(1, config->settings.track_extra_parameters);
    World world(shared, log_, config);
    world_ = &world;
    world.strict = true;
    world.asks = static_cast<session::kit::Backend::Asks>(flags >> 6);
    world.pipes.next = [this] { return next(); };
    random_.seed(flags);
    for (int i = 0; i < 2; ++i) {
      world.connect_client();
      if (flags & kByHand) continue;
      said_.push_back(
          {i, wire::startup_message(wire::protocol(flags & 32 ? 2 : 0),
                                    {{"user", "u"}, {"database", "db"}, {"application_name", i ? "b" : "a"}})});
      if (config->settings.auth_type == config::AuthType::plain) said_.push_back({i, password()});
    }
    if (!(flags & kByHand)) said_.push_back({kAnswer, {}});
    world.pipes.run(world);

    Result result;
    for (World::Person& p : world.people) {
      result.told.push_back(without_chance(p.out));
      p.out.clear();
    }
    result.clean = clean_;
    check_end(shared);
    return result;
  }

 private:
  static constexpr int kAnswer = -1;
  struct Said {
    int who;  // a client, or kAnswer
    std::string bytes;
  };

  static std::string password() {
    std::string out;
    wire::password_message(out, "secret");
    return out;
  }

  // One delivery; false: the play is over.
  bool next() {
    while (true) {
      if (hear_server() || hear_client()) return true;
      if (!said_.empty()) continue;
      for (auto& [fd, peer] : world_->peers)
        if (peer.stream && (peer.eof || !peer.queue.empty())) clean_ = false;  // nobody listens now
      acted_ = false;
      if (!order()) return over();
      if (acted_) return true;
    }
  }

  // What is on its way is delivered as soon as somebody reads.
  bool hear_server() {
    for (auto& [fd, peer] : world_->peers) {
      if (!peer.stream || !peer.stream->armed()) continue;
      if (!peer.queue.empty()) {
        const std::string part = take(peer.queue, 48 * 1024);
        world_->pipes.give(*peer.stream, as_bytes(part));
        return true;
      }
      if (peer.eof || peer.backend.ended) {
        world_->pipes.end(*peer.stream);
        return true;
      }
    }
    return false;
  }

  // False: nothing was delivered; what cannot be is gone.
  bool hear_client() {
    if (said_.empty()) return false;
    Said& first = said_.front();
    if (first.who == kAnswer) {
      said_.pop_front();
      answer();
      return false;
    }
    World::Person& p = world_->people[static_cast<std::size_t>(first.who)];
    if (!p.stream || first.bytes.empty()) {
      said_.pop_front();
      return false;
    }
    if (!p.stream->armed()) {  // it waits for something: let it have that first, or never
      if (std::exchange(patient_, true)) said_.pop_front();
      answer();
      return false;
    }
    patient_ = false;
    const std::string part = take(first.bytes, 4096);
    world_->pipes.give(*p.stream, as_bytes(part));
    return true;
  }

  std::string take(std::string& from, std::size_t most) {
    std::size_t n = std::min(from.size(), most);
    if (cut_ && n > 1) {
      const std::size_t longest = random_() % 4 == 0 ? n : std::min<std::size_t>(n, 9);
      n = 1 + random_() % longest;
    }
    std::string part = from.substr(0, n);
    from.erase(0, n);
    return part;
  }

  void answer() {
    for (auto& [fd, peer] : world_->peers)
      if (peer.stream) peer.queue += peer.backend.answer();
  }

  // The next one of the script.
  bool order() {
    const std::uint8_t op = in_.u8();
    if (!in_.ok()) return false;
    switch (op & 7) {
      case 0:
      case 1: {
        const std::size_t n = op & 8 ? in_.u16() : in_.u8();
        if (!in_.ok()) return false;
        const Bytes bytes = in_.bytes(std::min(n, in_.rest().size()));
        said_.push_back({op & 7, std::string(as_text(bytes))});
        break;
      }
      case 2:
        answer();
        break;
      case 3: {
        const Bytes bytes = in_.bytes(std::min<std::size_t>(in_.u8(), in_.rest().size()));
        if (!in_.ok()) return false;
        for (auto& [fd, peer] : world_->peers) {
          if (!peer.stream) continue;
          peer.backend.strict = false;  // who lies may be told anything
          // Bytes behind the answer to SSLRequest are refused, if they are seen to be behind it.
          if (!peer.backend.started()) clean_ = false;
          peer.queue += as_text(bytes);
          break;
        }
        break;
      }
      case 4:
      case 5: {
        World::Person& p = world_->people[op & 1];
        if (!p.stream) break;
        acted_ = true;
        world_->pipes.end(*p.stream);
        break;
      }
      case 6:
        if (op & 8) {
          cancel(world_->people[op >> 4 & 1]);
          break;
        }
        for (auto& [fd, peer] : world_->peers) peer.eof = true;
        break;
      default: {
        time_ += (op >> 3) * 100 * kMillisecond;
        acted_ = true;
        world_->pipes.set_time(session::kit::kStart + time_);
        const Usec now = world_->now();
        world_->each_pool([&](session::Pool& p) { p.tick(now); });
      }
    }
    return true;
  }

  // By somebody who has its key.
  void cancel(const World::Person& whom) {
    if (!whom.client || world_->people.size() > 5) return;
    const std::string packet = wire::cancel_request(whom.client->cancel_key);
    world_->connect_client();
    said_.push_back({static_cast<int>(world_->people.size()) - 1, packet});
  }

  // Everybody goes, one after the other; servers answer and go when they are told to.
  bool over() {
    for (World::Person& p : world_->people) {
      if (!p.stream) continue;
      world_->pipes.end(*p.stream);
      return true;
    }
    return false;
  }

  void check_end(session::Shared& shared) {
    for (World::Person& p : world_->people) must(p.client == nullptr);
    must(shared.clients.value() == 0 && shared.admitted.value() == 0);
    for (pool::DatabaseShared* d : shared.directory.databases()) must(d->clients.value() == 0);
    for (pool::UserShared* u : shared.directory.users()) must(u->clients.value() == 0);
    world_->each_pool([&](session::Pool& p) {
      must(p.waiting.empty() && p.joining.empty() && p.clients.empty());
      must(p.active.empty());
      const std::size_t open = p.idle.size() + p.tested.size() + p.held_back.size() + p.login.size() +
                               p.closing.size() + p.cancel_links.size();
      must(static_cast<std::size_t>(p.shared.servers.value()) == open);
      must(p.shared.servers.value() <= 1 + p.shared.cancels.load());
      must(p.shared.cancels.load() == static_cast<int>(p.cancel_links.size()));
    });
  }

  Cursor in_;
  const bool cut_;
  Log log_;
  World* world_ = nullptr;
  std::deque<Said> said_;
  std::mt19937 random_;
  Usec time_ = 0;
  bool clean_ = true, acted_ = false, patient_ = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  Play whole({data, size}, false), cut({data, size}, true);
  const Result a = whole.run(), b = cut.run();
  if ((data[0] & 15) == 6 || (data[0] & 15) == 9) return 0;  // SCRAM has nonces
  if (!a.clean || !b.clean) return 0;
  if (a.told != b.told && std::getenv("PGF_SHOW"))
    for (std::size_t i = 0; i < std::min(a.told.size(), b.told.size()); ++i)
      fmt::print(stderr, "client {}, whole: {:?}\nclient {}, cut:   {:?}\n", i, a.told[i], i, b.told[i]);
  must(a.told == b.told);
  return 0;
}
