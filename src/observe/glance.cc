#include "observe/glance.h"

#include <strings.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <tuple>

#include "base/version.h"
#include "observe/json.h"

namespace pgf::observe {
namespace {

constexpr Usec kGap = 10 * kSecond;      // nobody looked for so long: what was before says nothing about now
constexpr Usec kLately = 60 * kSecond;   // for the percentiles that follow the load
constexpr Usec kStep = 5 * kSecond;      // between two of the past that are kept
constexpr std::size_t kPastHosts = 200;  // whose past is kept

struct Latency {
  std::string_view name;
  Histogram session::Latencies::*value;
};
constexpr Latency kLatencies_[] = {{"wait", &session::Latencies::wait},
                                   {"query", &session::Latencies::query},
                                   {"transaction", &session::Latencies::xact},
                                   {"login", &session::Latencies::login},
                                   {"connect", &session::Latencies::connect}};

// A host may have gone and come again with a new one.
Histogram grown(const Histogram& now, const Histogram& before) {
  return before.count() <= now.count() ? now.since(before) : now;
}

void write_percentiles(Json& out, std::string_view name, const Histogram& h) {
  out.key(name).open('{').member("count", h.count());
  if (h.count())
    out.member("p50", h.quantile(0.5))
        .member("p90", h.quantile(0.9))
        .member("p99", h.quantile(0.99))
        .member("p999", h.quantile(0.999))
        .member("max", h.max());
  out.close('}');
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; }

bool has(std::string_view text, std::string_view part) {
  return std::ranges::search(text, part, {}, lower, lower).begin() != text.end() || part.empty();
}

std::uint64_t difference(std::uint64_t now, std::uint64_t before) { return now > before ? now - before : 0; }

// The numbers of the `n` largest that are above 0, largest first.
template <class Row, class Size>
std::vector<std::size_t> largest(const std::vector<Row>& rows, std::size_t n, Size size) {
  std::vector<std::size_t> which;
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (size(rows[i], i) > 0) which.push_back(i);
  const std::size_t count = std::min(n, which.size());
  std::ranges::partial_sort(
      which, which.begin() + static_cast<std::ptrdiff_t>(count),
      [&](std::size_t a, std::size_t b) { return std::pair(size(rows[b], b), a) < std::pair(size(rows[a], a), b); });
  which.resize(count);
  return which;
}

}  // namespace

void Glance::update(std::shared_ptr<const Fleet> fleet, Usec now, Usec wall) {
  const bool follows = report_ && now > now_ && now - now_ < kGap;
  seconds_ = follows ? static_cast<double>(now - now_) / 1e6 : 0;
  if (!follows) past_.clear();
  if (!report_ || !std::ranges::equal(report_->settings, fleet->settings, [](const auto& a, const auto& b) {
        return std::tie(a.value, a.value_null) == std::tie(b.value, b.value_null);
      }))
    ++settings_number_;
  report_ = std::move(fleet);
  now_ = now;
  wall_ = wall;

  last_sums_ = std::exchange(sums_, {});
  for (const WorkerRow& w : report_->workers) {
    sums_.latencies += w.latencies;
    sums_.received += w.received;
    sums_.sent += w.sent;
  }
  count_rates(seconds_);

  recent_hosts_.clear();
  std::map<std::string, Histogram> hosts;
  for (const HostTimesRow& h : report_->host_times) {
    if (hosts.size() >= kPastHosts) break;
    hosts[h.address] = h.query;
    if (past_.empty()) continue;
    auto it = past_.front().host_queries.find(h.address);
    recent_hosts_[h.address] = it == past_.front().host_queries.end() ? h.query : grown(h.query, it->second);
  }
  if (past_.empty() || now - past_.back().at >= kStep) past_.push_back({now, sums_.latencies, std::move(hosts)});
  while (past_.size() > 1 && now - past_[1].at >= kLately) past_.pop_front();

  std::vector<RecentHost> recent;
  for (const auto& [address, h] : recent_hosts_) recent.push_back({address, h.count(), h.quantile(0.5)});
  findings_ = findings(*report_, recent_pools_, recent);
}

// Both reports have their pools sorted by database and user.
void Glance::count_rates(double seconds) {
  std::vector<Before> next;
  next.reserve(report_->pools.size());
  rates_.assign(report_->pools.size(), {});
  recent_pools_.assign(report_->pools.size(), {});
  auto old = before_.begin();
  for (std::size_t i = 0; i < report_->pools.size(); ++i) {
    const PoolRow& p = report_->pools[i];
    const Counters& c = p.counters;
    next.push_back({p.database, p.user, c});
    while (old != before_.end() && std::tie(old->database, old->user) < std::tie(p.database, p.user)) ++old;
    if (seconds <= 0) continue;
    static const Counters kNone;  // a new pool began with nothing
    const bool known = old != before_.end() && old->database == p.database && old->user == p.user;
    const Counters& b = known ? old->counters : kNone;
    const auto queries = difference(c.query_count, b.query_count);
    const auto given = difference(c.server_assignment_count, b.server_assignment_count);
    const auto waited = difference(c.wait_time, b.wait_time), in_query = difference(c.query_time, b.query_time);
    Rate& r = rates_[i];
    r.transactions = static_cast<double>(difference(c.xact_count, b.xact_count)) / seconds;
    r.queries = static_cast<double>(queries) / seconds;
    r.mean_wait = given ? static_cast<Usec>(waited / given) : 0;
    r.mean_query = queries ? static_cast<Usec>(in_query / queries) : 0;
    recent_pools_[i] = {static_cast<double>(in_query) / 1e6,
                        static_cast<double>(difference(c.xact_time, b.xact_time)) / 1e6};
  }
  before_ = std::move(next);
}

std::string Glance::json(const Choice& choice, std::uint64_t& settings) const {
  Json out;
  out.open('{');
  out.member("at", wall_ / 1000).member("program", PGF_VERSION).member("version", report_->version);
  out.member("state", report_->ending      ? "ending"
                      : report_->suspended ? "suspended"
                      : report_->paused    ? "paused"
                                           : "running");
  write_totals(out);
  write_findings(out);
  write_workers(out);
  write_latencies(out);
  write_pools(out, choice);
  write_tops(out);
  write_hosts(out);
  write_peers(out);
  write_slow_waits(out);
  if (settings != settings_number_) {
    settings = settings_number_;
    write_settings(out);
  }
  return out.close('}').take();
}

void Glance::write_totals(Json& out) const {
  PoolRow sum;
  Usec maxwait = 0;
  double transactions = 0, queries = 0;
  int clients = 0;
  for (std::size_t i = 0; i < report_->pools.size(); ++i) {
    const PoolRow& p = report_->pools[i];
    sum.cl_active += p.cl_active;
    sum.cl_waiting += p.cl_waiting;
    sum.sv_active += p.sv_active;
    sum.sv_idle += p.sv_idle + p.sv_used + p.sv_tested;
    sum.sv_login += p.sv_login;
    maxwait = std::max(maxwait, p.maxwait);
    transactions += rates_[i].transactions;
    queries += rates_[i].queries;
  }
  for (const WorkerRow& w : report_->workers) clients += w.clients;
  out.key("totals").open('{');
  out.member("clients", clients).member("cl_active", sum.cl_active).member("cl_waiting", sum.cl_waiting);
  out.member("sv_active", sum.sv_active).member("sv_idle", sum.sv_idle).member("sv_login", sum.sv_login);
  out.member("maxwait", maxwait);
  out.member("databases", report_->databases.size()).member("users", report_->users.size());
  out.member("pools", report_->pools.size());
  if (seconds_ > 0) {
    out.member("transactions", transactions).member("queries", queries);
    out.member("received", static_cast<double>(difference(sums_.received, last_sums_.received)) / seconds_);
    out.member("sent", static_cast<double>(difference(sums_.sent, last_sums_.sent)) / seconds_);
  }
  out.close('}');
}

void Glance::write_workers(Json& out) const {
  out.key("workers").open('[');
  for (std::size_t i = 0; i < std::min(report_->workers.size(), kMaxRows); ++i) {
    const WorkerRow& w = report_->workers[i];
    out.open('{').member("worker", w.worker).member("engine", w.engine).member("clients", w.clients);
    out.member("waiting", w.waiting).member("active", w.servers_active).member("idle", w.servers_idle);
    out.member("busy", w.busy).member("transactions", w.transactions).member("cpu", w.cpu_seconds);
    out.member("why", w.why).close('}');
  }
  out.close(']');
}

// Of the last second, of the last minute, and since the start.
void Glance::write_latencies(Json& out) const {
  out.key("latency").open('{');
  for (const Latency& l : kLatencies_) {
    const Histogram& now = sums_.latencies.*l.value;
    out.key(l.name).open('{');
    if (seconds_ > 0) write_percentiles(out, "second", grown(now, last_sums_.latencies.*l.value));
    if (seconds_ > 0) write_percentiles(out, "minute", grown(now, past_.front().latencies.*l.value));
    write_percentiles(out, "start", now);
    out.close('}');
  }
  out.close('}');
}

void Glance::write_pool(Json& out, std::size_t i) const {
  const PoolRow& p = report_->pools[i];
  const Rate& r = rates_[i];
  out.open('{').member("database", p.database).member("user", p.user).member("mode", config::to_text(p.pool_mode));
  out.member("size", p.pool_size).member("cl_active", p.cl_active).member("cl_waiting", p.cl_waiting);
  out.member("maxwait", p.maxwait).member("sv_active", p.sv_active);
  out.member("sv_idle", p.sv_idle + p.sv_used + p.sv_tested).member("sv_login", p.sv_login);
  out.member("servers", servers(p)).member("queries", r.queries).member("transactions", r.transactions);
  out.member("mean_wait", r.mean_wait).member("mean_query", r.mean_query);
  out.member("xact_count", p.counters.xact_count).member("query_count", p.counters.query_count);
  write_percentiles(out, "wait", p.latencies.wait);
  write_percentiles(out, "query", p.latencies.query);
  out.close('}');
}

void Glance::write_pools(Json& out, const Choice& choice) const {
  const std::vector<PoolRow>& pools = report_->pools;
  std::vector<std::size_t> which;
  std::size_t chosen = pools.size();
  for (std::size_t i = 0; i < pools.size(); ++i) {
    if (has(pools[i].database, choice.find) || has(pools[i].user, choice.find)) which.push_back(i);
    if (pools[i].database == choice.database && pools[i].user == choice.user) chosen = i;
  }
  auto weight = [&](std::size_t i) -> std::tuple<double, double, double> {
    const PoolRow& p = pools[i];
    const double rate = rates_[i].queries, busy = p.sv_active + p.cl_active;
    switch (choice.order) {
      case Choice::Order::waiting:
        return {p.cl_waiting, busy, rate};
      case Choice::Order::servers:
        return {servers(p), busy, rate};
      case Choice::Order::rate:
        return {rate, busy, static_cast<double>(p.counters.query_count)};
      default:
        return {};
    }
  };
  const std::size_t from = std::min(choice.from, which.empty() ? 0 : (which.size() - 1) / kRows * kRows);
  const std::size_t end = std::min(which.size(), from + kRows);
  if (choice.order != Choice::Order::name)
    std::ranges::partial_sort(which, which.begin() + static_cast<std::ptrdiff_t>(end),
                              [&](std::size_t a, std::size_t b) {
                                const auto wa = weight(a), wb = weight(b);
                                return wa != wb ? wa > wb : a < b;
                              });
  out.key("pools").open('{').member("matching", which.size()).member("from", from).member("page", kRows);
  out.key("rows").open('[');
  for (std::size_t i = from; i < end; ++i) write_pool(out, which[i]);
  out.close(']');
  if (chosen < pools.size()) write_pool(out.key("chosen"), chosen);
  out.close('}');
}

void Glance::write_tops(Json& out) const {
  std::map<std::string_view, double> by_database, by_user;
  std::map<std::string_view, int> db_waiting, user_waiting;
  for (std::size_t i = 0; i < report_->pools.size(); ++i) {
    const PoolRow& p = report_->pools[i];
    by_database[p.database] += rates_[i].queries;
    by_user[p.user] += rates_[i].queries;
    db_waiting[p.database] += p.cl_waiting;
    user_waiting[p.user] += p.cl_waiting;
  }
  auto of = [](const auto& map, const std::string& name) {
    auto it = map.find(name);
    return it == map.end() ? typename std::decay_t<decltype(map)>::mapped_type{} : it->second;
  };
  auto head = [&](const std::string& name, const auto& row, int max_servers, int max_clients, double queries,
                  int waiting) {
    out.open('{').member("name", name).member("clients", row.current_client_connections);
    out.member("max_clients", max_clients).member("servers", row.current_connections);
    out.member("max_servers", max_servers).member("queries", queries).member("waiting", waiting);
  };
  out.key("databases").open('[');
  auto size = [&](const auto& row, const auto& rates) {
    return row.current_connections + row.current_client_connections + of(rates, row.name);
  };
  for (std::size_t i : largest(report_->databases, kTop, [&](const DatabaseRow&d, std::size_t) {
         return size(d, by_database) + (d.paused || d.disabled);
       })) {
    const DatabaseRow& d = report_->databases[i];
    head(d.name, d, d.max_connections, d.max_client_connections, of(by_database, d.name), of(db_waiting, d.name));
    out.member("paused", d.paused).member("disabled", d.disabled).close('}');
  }
  out.close(']').key("users").open('[');
  for (std::size_t i : largest(report_->users, kTop, [&](const UserRow&u, std::size_t) { return size(u, by_user); })) {
    const UserRow& u = report_->users[i];
    head(u.name, u, u.max_user_connections, u.max_user_client_connections, of(by_user, u.name),
         of(user_waiting, u.name));
    out.close('}');
  }
  out.close(']');
}

void Glance::write_hosts(Json& out) const {
  // Those that are out first, then those that are used most.
  std::vector<std::size_t> which(report_->hosts.size());
  std::iota(which.begin(), which.end(), std::size_t{0});
  const std::size_t count = std::min(which.size(), kMaxRows);
  auto weight = [&](std::size_t i) {
    const HostRow& h = report_->hosts[i];
    return std::tuple(h.state == "out", count < which.size() ? h.open : 0);
  };
  std::ranges::partial_sort(
      which, which.begin() + static_cast<std::ptrdiff_t>(count),
      [&](std::size_t a, std::size_t b) { return weight(a) != weight(b) ? weight(a) > weight(b) : a < b; });
  out.key("hosts").open('{').member("total", which.size()).key("rows").open('[');
  for (std::size_t i = 0; i < count; ++i) {
    const HostRow& h = report_->hosts[which[i]];
    out.open('{').member("database", h.database).member("host", h.host).member("port", h.port);
    out.member("address", h.address).member("role", h.role).member("state", h.state).member("weight", h.weight);
    out.member("open", h.open).member("active", h.active).member("failures", h.failures);
    out.member("last_error", h.last_error).member("since", h.since / 1000).member("latency", h.latency);
    if (auto it = recent_hosts_.find(h.address); it != recent_hosts_.end() && it->second.count())
      write_percentiles(out, "minute", it->second);
    out.close('}');
  }
  out.close(']').close('}');
}

void Glance::write_peers(Json& out) const {
  out.key("peers").open('[');
  for (std::size_t i = 0; i < std::min(report_->peers.size(), kMaxRows); ++i) {
    const PeerRow& p = report_->peers[i];
    PeerPoolRow use;
    for (const PeerPoolRow& row : report_->peer_pools)
      if (row.peer_id == p.peer_id) use = row;
    out.open('{').member("peer", p.peer_id).member("host", p.host).member("port", p.port);
    out.member("sent", use.cl_active_cancel_req).member("waiting", use.cl_waiting_cancel_req);
    out.member("connections", use.sv_active_cancel).member("connecting", use.sv_login).close('}');
  }
  out.close(']');
}

void Glance::write_slow_waits(Json& out) const {
  out.key("slow_waits").open('[');
  for (std::size_t i = 0; i < std::min(report_->slow_waits.size(), kWaits); ++i) {
    const SlowWaitRow& w = report_->slow_waits[i];
    out.open('{').member("ended", w.ended / 1000).member("waited", w.waited).member("in_vain", w.in_vain);
    out.member("database", w.database).member("user", w.user).member("servers", w.servers).member("size", w.pool_size);
    out.member("client", w.client).member("addr", w.addr).member("port", w.port);
    out.member("application_name", w.application_name).member("worker", w.worker).close('}');
  }
  out.close(']');
}

void Glance::write_findings(Json& out) const {
  out.key("findings").open('[');
  for (const Finding& f : findings_) {
    out.open('{').member("bad", f.bad).member("title", f.title).member("reason", f.reason);
    if (!f.database.empty()) out.member("database", f.database).member("user", f.user);
    out.close('}');
  }
  out.close(']');
}

void Glance::write_settings(Json& out) const {
  out.key("settings").open('[');
  for (const config::ShownSetting& s : report_->settings) {
    out.open('{').member("key", s.key).member("live", s.changeable);
    s.value_null ? out.key("value").null() : out.member("value", s.value);
    s.default_null ? out.key("default").null() : out.member("default", s.default_value);
    out.close('}');
  }
  out.close(']');
}

}  // namespace pgf::observe
