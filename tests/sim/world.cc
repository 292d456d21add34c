#include "world.h"

#include <fmt/format.h>

#include <algorithm>

namespace pgf::sim {

static constexpr int kFirstPooler = 6432, kFirstServer = 5001;
static constexpr Usec kPatience = 600 * kSecond;  // once nothing is broken any more, everybody is done by then

World::World(std::uint64_t seed, Trace& trace, Special special)
    : seed_(seed), special_(std::move(special)), trace_(trace), random_(seed) {
  trace_.at(network_.now());
  trace_.note("seed", seed_);
}

// ---- what kind of run this is

void World::draw_rules() {
  Random& r = random_;
  faults_ = (!r.one_in(3) && !special_.calm) || special_.faults;
  const bool heavy_faults = faults_ && r.one_in(3);
  fault_every_ = heavy_faults ? 60 : 500;
  static constexpr std::string_view kModes[] = {"transaction", "transaction", "transaction", "session", "statement"};
  const std::string_view drawn = r.pick(kModes), mode = special_.mode.empty() ? drawn : special_.mode;
  const bool session = mode == "session";
  const std::size_t statements = session ? 0 : r.one_in(4) ? 0 : r.one_in(2) ? r.between(1, 4) : 200;
  setup_.workers = static_cast<int>(r.between(1, 4));
  if (special_.workers > 0) setup_.workers = special_.workers;
  setup_.users = "\"u1\" \"\"\n\"u2\" \"\"\n\"admin\" \"\"\n";
  setup_.engine.first_pooler = kFirstPooler;
  setup_.engine.asynchronous = !r.one_in(3);
  if (r.one_in(2)) {
    setup_.engine.client_buffer = r.between(16, 512);
    setup_.engine.server_buffer = r.between(64, 4096);
  }
  if (r.one_in(3)) network_.window = r.between(512, 16384);
  stride_ = r.one_in(3) ? 20'000 : r.one_in(2) ? 1'000 : 100;
  network_.longest_hold = r.one_in(2) ? r.between(100, 50'000) : 0;
  network_.no_more_sockets = faults_ && r.one_in(6);

  server_rules_.session_mode = session;
  server_rules_.faults = faults_;
  server_rules_.slow_percent = r.one_in(2) ? 5 : 30;
  server_rules_.slowest = r.one_in(3) ? 3 * kSecond : 50 * kMillisecond;

  client_rules_.calm = !faults_;
  client_rules_.session_mode = session;
  client_rules_.statement_mode = mode == "statement";
  client_rules_.named_statements = session || statements > 0;
  client_rules_.big_answers = r.one_in(5);
  client_rules_.first_pooler = kFirstPooler;
  client_rules_.poolers = r.one_in(3) ? r.between(2, 3) : 1;
  client_rules_.databases = {"d1"};
  if (r.one_in(2) || special_.two_databases) client_rules_.databases.push_back("d2");
  client_rules_.users = {"u1"};
  if (r.one_in(2) && !special_.one_user) client_rules_.users.push_back("u2");
  client_rules_.longest_thought = r.one_in(3) ? kSecond : 20 * kMillisecond;
  client_rules_.requests = r.between(2, 12);
  client_rules_.leaves_rudely = !r.one_in(3);
  to_come_ = r.between(3, 24);
  at_once_ = r.between(2, 12);

  static constexpr std::string_view kPlacements[] = {"shuffle", "shuffle", "spread", "kernel", "adaptive"};
  std::string& ini = fixed_ini_;
  auto set = [&](std::string_view key, auto value) { ini += fmt::format("{} = {}\n", key, value); };
  set("auth_type", "trust");
  set("auth_file", "users.txt");
  set("admin_users", "admin");
  set("server_tls_sslmode", "disable");
  set("log_connections", 0);
  set("log_disconnections", 0);
  set("log_pooler_errors", 0);
  set("log_stats", 0);
  set("pool_mode", mode);
  set("placement", r.pick(kPlacements));
  set("max_prepared_statements", statements);
  suspend_timeout_ = faults_ && r.one_in(2) ? 10 * kSecond : 300 * kSecond;
  set("suspend_timeout", suspend_timeout_ / kSecond);
  if (r.one_in(3)) set("server_reset_query_always", 1);
  if (r.one_in(3)) set("server_round_robin", 1);
  if (r.one_in(3)) set("server_check_delay", 0);
  if (r.one_in(4)) set("server_check_query", "<empty>");
  if (r.one_in(4)) set("server_idle_timeout", r.between(1, 3));
  if (r.one_in(4)) set("server_lifetime", r.between(1, 5));
  if (r.one_in(6)) set("max_db_connections", r.between(1, 4));
  if (r.one_in(6)) set("max_user_connections", r.between(1, 4));
  set("query_wait_timeout", faults_ && r.one_in(2) ? r.between(1, 20) : 0);
  set("server_login_retry", r.between(0, 3));
  if (faults_) {
    if (r.one_in(6)) set("server_fast_close", 1);
    if (r.one_in(3)) set("server_connect_timeout", r.between(1, 5));
    if (r.one_in(6)) set("query_timeout", r.between(1, 3));
    if (r.one_in(6)) set("idle_transaction_timeout", 1);
    if (r.one_in(6)) set("transaction_timeout", r.between(1, 3));
    if (r.one_in(6)) set("client_idle_timeout", r.between(1, 3));
    if (r.one_in(6)) set("max_client_conn", r.between(3, 10));
    if (r.one_in(4)) set("cancel_wait_timeout", 1);
    if (r.one_in(4)) set("client_login_timeout", r.between(1, 5));
  } else {
    set("client_login_timeout", 0);
    set("server_connect_timeout", 0);
  }
}

// The part that a RELOAD may change is drawn anew.
std::string World::ini(std::size_t pooler) {
  Random& r = random_;
  std::string text = "[databases]\n";
  for (std::size_t i = 0; i < client_rules_.databases.size(); ++i)
    text +=
        fmt::format("{} = host=127.0.0.1 port={}\n", client_rules_.databases[i], kFirstServer + static_cast<int>(i));
  text += "[pgbouncer]\n" + fixed_ini_;
  text += fmt::format("default_pool_size = {}\n", r.between(1, 3));
  if (r.one_in(4)) text += "min_pool_size = 1\n";
  if (r.one_in(4)) text += "reserve_pool_size = 1\nreserve_pool_timeout = 1\n";
  text += special_.ini;
  if (client_rules_.poolers == 1) return text;
  text += fmt::format("peer_id = {}\n[peers]\n", pooler + 1);
  for (std::size_t i = 0; i < client_rules_.poolers; ++i)
    text += fmt::format("{} = host=127.0.0.1 port={}\n", i + 1, kFirstPooler + static_cast<int>(i));
  return text;
}

std::vector<std::string> World::administration() {
  Random& r = random_;
  std::vector<std::string> commands;
  for (std::size_t n = r.between(1, 5); n > 0; --n) {
    const std::string database = r.pick(client_rules_.databases);
    switch (r.below(faults_ ? 10 : 7)) {
      case 0:
        commands.push_back("SHOW POOLS");
        break;
      case 1:
        commands.push_back("RELOAD");
        break;
      case 2:
        commands.push_back("RECONNECT " + database);
        break;
      case 3:
        commands.insert(commands.end(), {"PAUSE " + database, "RESUME " + database});
        break;
      case 4:
        commands.insert(commands.end(), {"PAUSE", "RESUME"});
        break;
      case 5:
        commands.insert(commands.end(), {"SUSPEND", "RESUME"});
        break;
      case 6:
        commands.insert(commands.end(), {"RECONNECT " + database, "WAIT_CLOSE " + database});
        break;
      case 7:
        commands.insert(commands.end(), {"KILL " + database, "RESUME " + database});
        break;
      case 8:
        commands.push_back(fmt::format("KILL_CLIENT {}", r.between(1, 40)));
        break;
      case 9:
        commands.insert(commands.end(), {"DISABLE " + database, "ENABLE " + database});
        break;
    }
  }
  return commands;
}

void World::begin() {
  draw_rules();
  trace_.note("workers", static_cast<std::uint64_t>(setup_.workers), setup_.engine.asynchronous);
  for (std::size_t i = 0; i < client_rules_.databases.size(); ++i) {
    servers_.push_back(
        std::make_unique<PgServer>(network_, random_, trace_, kFirstServer + static_cast<int>(i), server_rules_));
    servers_.back()->start();
    servers_.back()->asked_for_cancel = [this](std::uint64_t number) {
      return left_cancelling_.contains(number) ||
             std::ranges::any_of(clients_, [&](auto& c) { return c->number() == number && c->cancelling(); });
    };
  }
  for (std::size_t i = 0; i < client_rules_.poolers; ++i) {
    setup_.address = kFirstPooler + static_cast<int>(i);
    setup_.ini = ini(i);
    trace_.say("{}", setup_.ini);
    poolers_.push_back(std::make_unique<Pooler>(network_, random_, trace_, setup_));
  }
  if (random_.one_in(2))
    console_ = std::make_unique<Console>(network_, random_, trace_, kFirstPooler, administration(), kSecond);
}

void World::arrive() {
  --to_come_;
  next_arrival_ = network_.now() + static_cast<Usec>(random_.below(random_.one_in(3) ? 500'000 : 5'000));
  clients_.push_back(std::make_unique<PgClient>(network_, random_, trace_, client_rules_, next_client_++));
  PgClient& client = *clients_.back();
  client.use(*servers_[client.database() == "d2" ? 1 : 0]);
  ++result_.clients;
}

// ---- one thing after the other

bool World::step() {
  ++result_.steps;
  if (faults_ && !healed_ && random_.one_in(fault_every_)) misfortune();
  if (restart_at_ >= 0 && network_.now() >= restart_at_) {
    restart_at_ = -1;
    for (auto& s : servers_)
      if (!s->up()) s->start();
  }
  // Who is not done with what is on its way by then, loses its connection.
  client_rules_.may_be_dropped |= console_ && console_->suspending() > suspend_timeout_;
  events_.clear();
  network_.events(events_);
  actors_.clear();
  auto look = [&](Actor& actor) {
    if (actor.ready()) actors_.push_back(&actor);
  };
  for (auto& c : clients_) look(*c);
  for (auto& s : servers_)
    for (auto& b : s->backends) look(*b);
  if (console_) look(*console_);
  turns_.clear();
  for (std::size_t p = 0; p < poolers_.size(); ++p) {
    for (int i = 0; i < poolers_[p]->workers(); ++i)
      if (poolers_[p]->ready(i)) turns_.push_back({p, i});
    if (poolers_[p]->control_ready()) turns_.push_back({p, -1});
  }
  const std::size_t arrivals = to_come_ > 0 && clients_.size() < at_once_ && next_arrival_ <= network_.now();
  const std::size_t all = events_.size() + actors_.size() + turns_.size() + arrivals;
  if (all == 0) return false;
  std::size_t n = random_.below(all);
  if (n < events_.size()) {
    network_.happen(events_[n]);
  } else if ((n -= events_.size()) < actors_.size()) {
    actors_[n]->step();
  } else if ((n -= actors_.size()) < turns_.size()) {
    const auto [pooler, worker] = turns_[n];
    if (worker >= 0) {
      poolers_[pooler]->turn(worker);
    } else {
      if (random_.one_in(3)) poolers_[pooler]->new_ini(ini(pooler));
      poolers_[pooler]->control_turn();
    }
  } else {
    arrive();
  }
  if (result_.steps % 16 == 0) {
    forget_the_dead();
    for (auto& p : poolers_) p->check_queues();
  }
  network_.advance(network_.now() + static_cast<Usec>(random_.below(static_cast<std::size_t>(stride_))));
  return true;
}

void World::forget_the_dead() {
  auto dead = [](const auto& actor) { return actor->over(); };
  for (auto& c : clients_)
    if (c->over() && c->cancelling()) left_cancelling_.insert(c->number());
  std::erase_if(clients_, dead);
  for (auto& s : servers_) std::erase_if(s->backends, dead);
  // Whoever has paused everything and was cut off comes back.
  if (console_ && console_->over() && !console_->left().empty())
    console_ = std::make_unique<Console>(network_, random_, trace_, kFirstPooler, console_->left(), kSecond);
}

void World::misfortune() {
  ++result_.faults;
  Random& r = random_;
  PgServer& server = *r.pick(servers_);
  Backend* backend = server.backends.empty() ? nullptr : r.pick(server.backends).get();
  switch (r.below(8)) {
    case 0:
    case 1:
      network_.break_something(false);
      break;
    case 2:
      network_.break_something(true);
      break;
    case 3:
      if (backend) backend->vanish();
      break;
    case 4:
    case 5:
      if (backend) backend->say_goodbye();
      break;
    case 6:
      if (backend) backend->hang(network_.now() + static_cast<Usec>(r.between(kMillisecond, 10 * kSecond)));
      break;
    case 7:
      if (r.one_in(3) && restart_at_ < 0) {
        trace_.note("server stops");
        server.stop();
        restart_at_ = network_.now() + static_cast<Usec>(r.below(5 * kSecond));
      }
      break;
  }
}

void World::heal() {
  trace_.note("nothing is broken from here on");
  healed_ = true;
  network_.heal();
  restart_at_ = -1;
  for (auto& s : servers_)
    if (!s->up()) s->start();
  server_rules_.faults = false;
}

Usec World::next_time() const {
  Usec next = -1;
  auto note = [&](Usec t) {
    if (t >= 0 && (next < 0 || t < next)) next = t;
  };
  for (auto& p : poolers_) note(p->next_time());
  note(network_.next_time());
  note(restart_at_);
  for (auto& c : clients_) note(c->next_time());
  for (auto& s : servers_)
    for (auto& b : s->backends) note(b->next_time());
  if (console_) note(console_->next_time());
  if (to_come_ > 0 && clients_.size() < at_once_) note(next_arrival_);
  return next;
}

void World::pass_time() {
  forget_the_dead();
  for (auto& p : poolers_) p->check_rest();
  const Usec next = next_time();
  trace_.note("rest", static_cast<std::uint64_t>(next - network_.now()));
  network_.advance(std::max(next, network_.now() + 1));
}

bool World::all_gone() const {
  return to_come_ == 0 && (!console_ || (console_->over() && console_->left().empty())) &&
         std::ranges::all_of(clients_, [](auto& c) { return c->over(); });
}

void World::until_gone() {
  // Misfortune ends some time after the last client has come, or goes on to the end.
  const std::size_t most = 40'000;
  while (!all_gone()) {
    if (!healed_ && (result_.steps > most || (to_come_ == 0 && random_.one_in(400)))) heal();
    if (healed_ && result_.time == 0) result_.time = network_.now() + kPatience;
    if (healed_ && (network_.now() > result_.time || result_.steps > 20 * most))
      throw Violation("some wait for ever\n" + state());
    if (!step()) pass_time();
  }
  if (!healed_) heal();
}

// Everything comes to rest, and nothing is left of the clients.
void World::wind_down() {
  std::vector<std::string> end{"RESUME"};
  for (const std::string& d : client_rules_.databases) {
    end.push_back("RESUME " + d);
    end.push_back("ENABLE " + d);
  }
  if (console_) console_ = std::make_unique<Console>(network_, random_, trace_, kFirstPooler, end, 1000);
  stride_ = std::min<Usec>(stride_, 1000);           // or somebody's tick is always due, and it never rests
  const Usec until = network_.now() + 11 * kSecond;  // whoever lingers or hangs is through by then
  while (network_.now() < until || !all_gone()) {
    if (network_.now() > until + kPatience) throw Violation("the end does not come\n" + state());
    if (!step()) pass_time();
  }
  while (step()) continue;
  forget_the_dead();
  for (auto& p : poolers_) p->check_empty();
}

std::string World::state() {
  std::string text;
  for (auto& p : poolers_) text += p->state();
  for (auto& c : clients_)
    if (!c->over()) text += fmt::format("client {}: {}\n", c->number(), c->story());
  if (console_) text += console_->story() + '\n';
  return text;
}

Result World::run() {
  try {
    begin();
    until_gone();
    wind_down();
  } catch (const Violation& v) {
    result_.violation = v.what();
    trace_.say("VIOLATION {}", v.what());
    if (trace_.shown()) trace_.say("\n{}", state());
  }
  result_.hash = trace_.hash();
  result_.time = network_.now();
  for (auto& s : servers_) {
    result_.statements += s->statements;
    result_.cancels_hit += s->cancels_hit;
  }
  result_.answers = client_rules_.answered;
  result_.refused = client_rules_.refused;
  for (auto& p : poolers_) {
    result_.moved_servers += p->moved().servers;
    result_.moved_clients += p->moved().clients;
    result_.cancels_passed_on += p->moved().cancels;
  }
  return result_;
}

}  // namespace pgf::sim
