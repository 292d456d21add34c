#include "worker/fleet.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <map>

#include "crypto/crypto.h"

namespace pgf::worker {

net::ResolverTimes resolver_times(const config::Settings& s) {
  return {s.dns_max_ttl, s.dns_nxdomain_ttl, s.dns_zone_check_period};
}

Fleet::Fleet(Log& log_, std::shared_ptr<const config::Config> config_, std::shared_ptr<const session::TlsSetup> tls_,
             Plan plan_)
    : log(log_),
      shared(plan_.workers, config_->settings.track_extra_parameters, plan_.ledger ? &plan_.ledger->ledger() : nullptr),
      use_uring(plan_.use_uring),
      resolver(std::make_unique<net::Resolver>(
          net::ResolverOptions{resolver_times(config_->settings), config_->settings.resolv_conf, &log_,
                               [this](const std::string& host, const auto& addresses) {
                                 broadcast(HostMoved{host, addresses});
                               }})),
      judges(std::make_unique<external::Judges>()),
      control_event(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      config(std::move(config_)),
      tls(std::move(tls_)),
      plan(std::move(plan_)),
      loops_running_(plan.workers) {
  crypto::random_bytes(shared.credentials.process_key);
  for (int i = 0; i < plan.workers; ++i) workers_.push_back(std::make_unique<Worker>(*this, i));
}

Fleet::~Fleet() {
  stop();
  control.drain([](ToControl* m) { delete m; });
  close(control_event);
}

void Fleet::start() {
  running_ = true;
  for (int i = 0; i < plan.workers; ++i)
    worker(i).start(plan.listeners[static_cast<std::size_t>(i)], i == 0 ? plan.unix_listeners : std::vector<int>{});
  if (plan.ledger) keeper = std::make_unique<Keeper>(*this, *plan.ledger);
}

void Fleet::take_over(std::vector<session::Handed> rows) {
  using Task = session::Handed::Task;
  std::vector<TakeOver> shares(workers_.size());
  std::map<int, std::size_t> of_client;  // by the old descriptor of a client that has a server
  std::size_t next_client = 0, next_server = 0;
  bool told = false;
  for (session::Handed& row : rows) {
    session::take_over_keys(shared, *config, row);
    if (row.task == Task::pool) {
      session::take_over_pool(shared, row);
    } else if (row.task == Task::client) {
      std::size_t to = next_client++ % shares.size();
      if (row.link) of_client[row.fd] = to;
      shares[to].rows.push_back(row);
    }
    told |= !row.state.empty();
  }
  if (!told) shared.statements.start_at(session::kFirstStatement);
  for (session::Handed& row : rows) {
    if (row.task != Task::server) continue;
    auto it = of_client.find(row.link);
    std::size_t to = row.link && it != of_client.end() ? it->second : next_server++ % shares.size();
    shares[to].rows.push_back(row);
  }
  for (std::size_t i = 0; i < shares.size(); ++i) workers_[i]->post(std::move(shares[i]));
}

bool Fleet::stop() {
  if (!std::exchange(running_, false)) return true;
  if (plan.ledger) plan.ledger->ledger().leaving.store(true);
  broadcast(Command{Order::stop, nullptr, 0});
  for (int i = 0; !loops_running_.try_wait(); ++i) {
    if (shared.stuck.load() != 0 && i > 1000) return false;
    poll(nullptr, 0, i < 20 ? 1 : 3);
  }
  resolver.reset();  // their threads post to workers
  judges.reset();
  keeper.reset();
  posts_possible_.count_down();
  for (auto& w : workers_) w->join();
  return true;
}

void Fleet::place(int client_fd, bool unix_socket) {
  Worker* best = nullptr;
  for (int i = 0; i < shared.workers; ++i)
    if (!(shared.stuck.load() >> i & 1) && (!best || worker(i).load.load() < best->load.load())) best = &worker(i);
  best->load.fetch_add(1, std::memory_order_relaxed);
  best->post(NewClient{client_fd, unix_socket});
}

void Fleet::loop_ended() {
  loops_running_.count_down();
  posts_possible_.wait();
}

void Fleet::broadcast(const ToWorker::Body& body) {
  for (auto& w : workers_) w->post(body);
}

void Fleet::to_control(ToControl::Body body) {
  control.push(new ToControl(std::move(body)));
  std::uint64_t one = 1;
  [[maybe_unused]] ssize_t n = write(control_event, &one, sizeof one);
}

}  // namespace pgf::worker
