#include "pooler.h"

#include <fmt/format.h>

#include <algorithm>

namespace pgf::worker {

// The only one who looks into a worker.
struct Inspector {
  template <class F>
  static void each_pool(Worker& w, F&& f) {
    w.each_pool(f);
  }
  static std::uint64_t servers_out(Worker& w) { return w.servers_out_; }
  static std::uint64_t clients_out(Worker& w) {
    std::uint64_t n = 0;
    for (std::uint64_t moves : w.clients_out_) n += moves;
    return n;
  }
  static int clients(Worker& w) { return w.client_count_; }
};

}  // namespace pgf::worker

namespace pgf::sim {

using worker::Inspector;

namespace {

struct Files final : config::FileReader {
  Files(const std::string& ini_, const std::string& users_) : ini(ini_), users(users_) {}
  std::optional<std::string> read(const std::string& path, std::string& error) override {
    if (path == "sim.ini") return ini;
    if (path == "users.txt") return users;
    error = "no such file";
    return std::nullopt;
  }
  const std::string &ini, &users;
};

}  // namespace

Pooler::Pooler(Network& network, Random& random, Trace& trace, Setup setup)
    : network_(network), random_(random), trace_(trace), setup_(std::move(setup)) {
  log_.open({.file = trace.shown() ? "/dev/stdout" : "", .to_stderr = false, .verbose = trace.shown() ? 1 : 0});
  config::LoadResult loaded = load();
  if (!loaded.config) throw Violation("the configuration: " + loaded.errors.at(0));
  auto tls = session::make_tls_setup(*loaded.config);
  worker::Plan plan;
  plan.workers = setup_.workers;
  plan.cores = static_cast<int>(random.between(1, static_cast<std::size_t>(setup_.workers)));
  fleet_ = std::make_unique<worker::Fleet>(log_, loaded.config, *tls, std::move(plan));
  control_ = std::make_unique<worker::Control>(
      *fleet_, [this] { return load(); }, [](const config::Settings&) {}, [](const std::string&) {}, 0);
  for (int i = 0; i < setup_.workers; ++i) {
    auto engine = std::make_unique<net::SimEngine>(network, random, trace, i, setup_.engine);
    engines_.push_back(engine.get());
    fleet_->worker(i).prepare({2'000'000'000 + i}, {});  // no descriptor that the kernel knows
    fleet_->worker(i).begin(std::move(engine));
  }
  // As the kernel does it: any of the sockets that listen gets the call.
  network.listen(setup_.address, [this](End end) {
    engine(static_cast<int>(random_.below(static_cast<std::size_t>(setup_.workers)))).call(network_.give_fd(end));
  });
}

Pooler::~Pooler() {
  for (int i = 0; i < setup_.workers; ++i) fleet_->worker(i).end();
}

config::LoadResult Pooler::load() const {
  Files files(setup_.ini, setup_.users);
  return config::load("sim.ini", files);
}

void Pooler::turn(int worker) {
  engine(worker).step(fleet_->worker(worker));
  check_limits();
}

bool Pooler::control_ready() const { return !fleet_->control.empty() || control_due_ <= network_.now(); }

void Pooler::control_turn() {
  trace_.note("control");
  control_->turn(network_.now());
  const bool hurry = fleet_->shared.moves.held.load() != 0 || fleet_->shared.paused.load() ||
                     fleet_->config->settings.placement == config::Placement::shuffle;
  control_due_ = network_.now() + (hurry ? 1 + static_cast<Usec>(random_.below(60'000)) : 333 * kMillisecond);
}

Usec Pooler::next_time() const {
  Usec next = control_due_;
  for (const net::SimEngine* e : engines_)
    if (e->due() >= 0) next = std::min(next, e->due());
  return next;
}

// ---- invariants

static const std::string& name(const pool::DatabaseShared& d) { return d.name; }
static const std::string& name(const pool::UserShared& u) { return u.name; }
static std::string name(const pool::PoolShared& p) { return fmt::format("{}/{}", p.user.name, p.database.name); }

void Pooler::check_limits() {
  const config::Settings& s = fleet_->config->settings;
  const int per_pool = static_cast<int>(s.default_pool_size + s.reserve_pool_size),
            per_database = static_cast<int>(s.max_db_connections), per_user = static_cast<int>(s.max_user_connections);
  int permits = 0;
  std::map<const pool::DatabaseShared*, int> cancels_of_database;
  std::map<const pool::UserShared*, int> cancels_of_user;
  auto most = [&](const char* what, const auto& whose, int used, int cancels, int& limit, int configured) {
    limit = std::max(limit, configured);
    if (configured > 0 && used - cancels > limit)
      throw Violation(fmt::format("{} of {}: {} connections and {} cancels, {} allowed", what, name(whose),
                                  used - cancels, cancels, limit));
    if (used < 0) throw Violation(fmt::format("{} of {}: {} connections", what, name(whose), used));
  };
  for (pool::PoolShared* p : fleet_->shared.directory.pools()) {
    if (p->database.name == "pgbouncer") continue;
    const int cancels = p->cancels.load();
    permits += p->servers.value();
    cancels_of_database[&p->database] += cancels;
    cancels_of_user[&p->user] += cancels;
    most("pool", *p, p->servers.value(), cancels, most_pool_, per_pool);
  }
  for (auto& [d, cancels] : cancels_of_database)
    most("database", *d, d->servers.value(), cancels, most_database_, per_database);
  for (auto& [u, cancels] : cancels_of_user) most("user", *u, u->servers.value(), cancels, most_user_, per_user);
  std::size_t dialled = 0;
  for (const net::SimEngine* e : engines_) dialled += e->count().dialled;
  if (dialled > static_cast<std::size_t>(permits))
    throw Violation(fmt::format("{} connections are open with {} permits", dialled, permits));
}

// Whatever a client does: its share of our memory is bounded (I6).
void Pooler::check_queues() {
  constexpr std::size_t kMost = 512 * 1024;
  for (const net::SimEngine* e : engines_)
    if (const std::size_t queued = e->count().most_queued; queued > kMost)
      throw Violation(fmt::format("{} bytes are queued for one peer", queued));
}

// Nothing can happen but time: nobody waits for what is there.
void Pooler::check_rest() {
  for (pool::PoolShared* p : fleet_->shared.directory.pools()) {
    const session::Shared& shared = fleet_->shared;
    if (p->database.name == "pgbouncer" || shared.paused.load() || shared.suspended.load() || p->database.paused.load())
      continue;
    std::size_t waiting = 0, idle = 0, tested = 0;
    for (int i = 0; i < setup_.workers; ++i)
      Inspector::each_pool(fleet_->worker(i), [&](session::Pool& part) {
        if (&part.shared != p) return;
        part.waiting.each([&](session::Client& c) { waiting += c.phase() == session::Client::Phase::waiting; });
        idle += part.idle.size();
        tested += part.tested.size();  // each for one of those that wait
      });
    if (waiting > tested && idle > 0)
      throw Violation(fmt::format("pool {}: {} clients wait and {} servers are idle", name(*p), waiting, idle));
  }
}

std::size_t Pooler::idle_servers() {
  std::size_t idle = 0;
  for (int i = 0; i < setup_.workers; ++i)
    Inspector::each_pool(fleet_->worker(i), [&](session::Pool& p) { idle += p.idle.size(); });
  return idle;
}

void Pooler::check_empty() {
  session::Shared& shared = fleet_->shared;
  auto zero = [](std::string_view what, std::int64_t value) {
    if (value != 0) throw Violation(fmt::format("all clients are gone, and there are {} {}", value, what));
  };
  zero("clients", shared.clients.value());
  zero("admitted clients", shared.admitted.value());
  for (pool::DatabaseShared* d : shared.directory.databases()) zero("clients of a database", d->clients.value());
  for (pool::UserShared* u : shared.directory.users()) zero("clients of a user", u->clients.value());
  zero("clients between two workers", shared.moves.under_way.load());
  zero("orders that hold moves", shared.moves.held.load());
  std::map<const pool::PoolShared*, int> servers;
  std::size_t streams = 0, all = 0;
  for (int i = 0; i < setup_.workers; ++i) {
    zero("clients counted by a worker", fleet_->worker(i).load.load());
    zero("clients listed by a worker", Inspector::clients(fleet_->worker(i)));
    Inspector::each_pool(fleet_->worker(i), [&](session::Pool& p) {
      servers[&p.shared] += static_cast<int>(p.idle.size() + p.login.size());
      all += p.idle.size() + p.login.size();
      zero("waiting clients", static_cast<std::int64_t>(p.waiting.size() + p.joining.size() + p.clients.size()));
      zero("busy servers", static_cast<std::int64_t>(p.active.size() + p.tested.size() + p.held_back.size() +
                                                     p.moving.size() + p.closing.size()));
      zero("cancels", static_cast<std::int64_t>(p.cancel_links.size() + p.queued_cancels()));
    });
    const auto counts = engine(i).count();
    streams += counts.streams + counts.lingering;
  }
  std::map<const pool::DatabaseShared*, int> of_database;
  std::map<const pool::UserShared*, int> of_user;
  auto same = [](std::string_view what, int counted, int there) {
    if (counted != there)
      throw Violation(fmt::format("{}: {} servers are counted, {} are there", what, counted, there));
  };
  for (pool::PoolShared* p : shared.directory.pools()) {
    zero("cancel connections", p->cancels.load());
    zero("waiting bits", static_cast<std::int64_t>(p->waiting.load() | p->joining.load()));
    same(name(*p), p->servers.value(), servers[p]);
    of_database[&p->database] += servers[p];
    of_user[&p->user] += servers[p];
  }
  for (auto& [d, n] : of_database) same(d->name, d->servers.value(), n);
  for (auto& [u, n] : of_user) same(u->name, u->servers.value(), n);
  if (streams != all) {
    std::string text = fmt::format("{} streams are left, of {} servers\n", streams, all);
    for (const net::SimEngine* e : engines_) text += e->story();
    throw Violation(text);
  }
  if (all == 0 && shared.statements.size() > 0)
    throw Violation(fmt::format("{} statements are left", shared.statements.size()));
}

std::string Pooler::state() {
  std::string text;
  for (int i = 0; i < setup_.workers; ++i)
    Inspector::each_pool(fleet_->worker(i), [&](session::Pool& p) {
      text += fmt::format(
          "worker {} {}: waiting {} clients {}, servers idle {} active {} tested {} login {} held back {} moving {} "
          "closing {}, cancels {} + {}; permits {} connecting {} retry in {}\n",
          i, name(p.shared), p.waiting.size(), p.clients.size(), p.idle.size(), p.active.size(), p.tested.size(),
          p.login.size(), p.held_back.size(), p.moving.size(), p.closing.size(), p.cancel_links.size(),
          p.queued_cancels(), p.shared.servers.value(), p.shared.connecting.load(),
          p.shared.retry_at.load() - network_.now());
    });
  return text;
}

Pooler::Moved Pooler::moved() {
  Moved m;
  for (int i = 0; i < setup_.workers; ++i) {
    m.servers += Inspector::servers_out(fleet_->worker(i));
    m.clients += Inspector::clients_out(fleet_->worker(i));
    m.cancels += engine(i).peers_called();
  }
  return m;
}

}  // namespace pgf::sim
