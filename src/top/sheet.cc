#include "top/sheet.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace pgf::top {
namespace {

using Row = std::vector<std::string>;

Cell text(std::string value, Mood mood = Mood::plain) { return {std::move(value), 0, mood}; }
Cell count(double value, Mood mood = Mood::plain) { return {fmt::format("{:.0f}", value), value, mood}; }
Cell rate(double value) { return value < 0 ? Cell{"-", -1} : Cell{short_number(value), value}; }
Cell time_of(double us, Mood mood = Mood::plain) { return us < 0 ? Cell{"-", -1} : Cell{short_time(us), us, mood}; }
Mood if_any(double value, Mood mood) { return value > 0 ? mood : Mood::plain; }

constexpr double kSlowWait = 1e6;  // microseconds

// The growth of a column per second since `before`; -1 if that cannot be told. The same row is the one with this key.
double growth(const Table& now, const Row& row, const Table* before, double seconds, std::string_view key,
              std::string_view column) {
  if (!before || seconds <= 0) return -1;
  for (const Row& old : before->rows)
    if (before->at(old, key) == now.at(row, key))
      return std::max(0.0, (now.number(row, column) - before->number(old, column)) / seconds);
  return -1;
}

double sum(const Table& table, std::string_view column) {
  double all = 0;
  for (const Row& row : table.rows) all += table.number(row, column);
  return all;
}

struct Past {
  const Sample* sample;
  double seconds;
  const Table* table(std::string_view what) const { return sample ? &sample->table(what) : nullptr; }
};

Past past(const Sample& now, const Sample* before) {
  return {before, before ? static_cast<double>(now.at - before->at) / kSecond : 0};
}

Sheet pools(const Sample& now) {
  Sheet sheet{{{"DATABASE"},
               {"USER"},
               {"CLIENTS", true},
               {"WAIT", true},
               {"MAXWAIT", true},
               {"ACTIVE", true},
               {"IDLE", true},
               {"LOGIN", true},
               {"WAIT p99", true},
               {"QUERY p50", true},
               {"QUERY p99", true},
               {"XACT p99", true},
               {"MODE"}},
              {}};
  const Table &t = now.table("POOLS"), &latency = now.table("LATENCY");
  std::map<std::array<std::string_view, 3>, const Row*> known;
  for (const Row& l : latency.rows)
    known[{latency.at(l, "database"), latency.at(l, "user"), latency.at(l, "what")}] = &l;
  for (const Row& r : t.rows) {
    auto quantile = [&](std::string_view what, std::string_view column) {
      auto it = known.find({t.at(r, "database"), t.at(r, "user"), what});
      return it == known.end() ? -1.0 : latency.number(*it->second, column);
    };
    const double waiting = t.number(r, "cl_waiting"), wait = t.number(r, "maxwait") * 1e6 + t.number(r, "maxwait_us");
    sheet.rows.push_back(
        {text(t.at(r, "database")), text(t.at(r, "user")), count(t.number(r, "cl_active") + waiting),
         count(waiting, if_any(waiting, Mood::warning)),
         time_of(wait, wait >= kSlowWait ? Mood::bad : if_any(wait, Mood::warning)), count(t.number(r, "sv_active")),
         count(t.number(r, "sv_idle") + t.number(r, "sv_used") + t.number(r, "sv_tested")),
         count(t.number(r, "sv_login")), time_of(quantile("wait", "p99_us")), time_of(quantile("query", "p50_us")),
         time_of(quantile("query", "p99_us")), time_of(quantile("transaction", "p99_us")), text(t.at(r, "pool_mode"))});
  }
  return sheet;
}

Sheet clients(const Sample& now) {
  Sheet sheet{{{"ID", true},
               {"DATABASE"},
               {"USER"},
               {"STATE"},
               {"WAIT", true},
               {"ADDRESS"},
               {"PORT", true},
               {"SINCE"},
               {"TLS"},
               {"APPLICATION"}},
              {}};
  const Table& t = now.table("CLIENTS");
  for (const Row& r : t.rows) {
    const double wait = t.number(r, "wait") * 1e6 + t.number(r, "wait_us");
    const bool waits = t.at(r, "state") == "waiting";
    const std::string& tls = t.at(r, "tls");
    sheet.rows.push_back({count(t.number(r, "id")), text(t.at(r, "database")), text(t.at(r, "user")),
                          text(t.at(r, "state"), waits ? Mood::warning : Mood::plain),
                          time_of(wait, waits && wait >= kSlowWait ? Mood::bad : Mood::plain), text(t.at(r, "addr")),
                          count(t.number(r, "port")), text(t.at(r, "connect_time")), text(tls.substr(0, tls.find('/'))),
                          text(t.at(r, "application_name"))});
  }
  return sheet;
}

Sheet workers(const Sample& now, const Past& before) {
  Sheet sheet{{{"WORKER", true},
               {"BUSY", true},
               {"CLIENTS", true},
               {"WAIT", true},
               {"ACTIVE", true},
               {"IDLE", true},
               {"XACT/s", true},
               {"IN B/s", true},
               {"OUT B/s", true},
               {"CALLS/s", true},
               {"MOVES", true},
               {"ENGINE"},
               {"LAST MOVE"}},
              {}};
  const Table& t = now.table("WORKERS");
  for (const Row& r : t.rows) {
    auto per_second = [&](std::string_view column) {
      return rate(growth(t, r, before.table("WORKERS"), before.seconds, "worker", column));
    };
    const double busy = t.number(r, "busy"), waiting = t.number(r, "waiting");
    sheet.rows.push_back({count(t.number(r, "worker")),
                          {fmt::format("{:.0f}%", busy * 100), busy, busy > 0.9 ? Mood::warning : Mood::plain},
                          count(t.number(r, "clients")),
                          count(waiting, if_any(waiting, Mood::warning)),
                          count(t.number(r, "servers_active")),
                          count(t.number(r, "servers_idle")),
                          per_second("transactions"),
                          per_second("received"),
                          per_second("sent"),
                          per_second("syscalls"),
                          count(t.number(r, "clients_moved_in") + t.number(r, "clients_moved_out")),
                          text(t.at(r, "engine")),
                          text(t.at(r, "last_move"))});
  }
  return sheet;
}

Sheet hosts(const Sample& now) {
  Sheet sheet{{{"DATABASE"},
               {"HOST"},
               {"PORT", true},
               {"ADDRESS"},
               {"ROLE"},
               {"STATE"},
               {"OPEN", true},
               {"ACTIVE", true},
               {"WEIGHT", true},
               {"FAILURES", true},
               {"CONNECT", true},
               {"LAST ERROR"}},
              {}};
  const Table& t = now.table("HOSTS");
  for (const Row& r : t.rows) {
    const std::string& state = t.at(r, "state");
    sheet.rows.push_back({text(t.at(r, "database")), text(t.at(r, "host")), count(t.number(r, "port")),
                          text(t.at(r, "address")), text(t.at(r, "role")),
                          text(state, state == "out" ? Mood::bad : Mood::plain), count(t.number(r, "open")),
                          count(t.number(r, "active")), count(t.number(r, "weight")), count(t.number(r, "failures")),
                          time_of(t.number(r, "connect_us")), text(t.at(r, "last_error"))});
  }
  return sheet;
}

std::string listed(const Sample& now, std::string_view what) {
  const Table& t = now.table("LISTS");
  for (const Row& r : t.rows)
    if (t.at(r, "list") == what) return t.at(r, "items");
  return "?";
}

}  // namespace

const Table& Sample::table(std::string_view what) const {
  static const Table kNone;
  auto it = tables.find(what);
  return it == tables.end() ? kNone : it->second;
}

std::vector<std::string_view> wanted(View view) {
  std::vector<std::string_view> all{"VERSION", "STATE", "LISTS", "POOLS", "WORKERS", "STATS_TOTALS", "HOSTS"};
  if (view == View::pools) all.push_back("LATENCY");
  if (view == View::clients) all.push_back("CLIENTS");
  return all;
}

Sheet make_sheet(View view, const Sample& now, const Sample* before) {
  switch (view) {
    case View::pools:
      return pools(now);
    case View::clients:
      return clients(now);
    case View::workers:
      return workers(now, past(now, before));
    case View::hosts:
      return hosts(now);
  }
  return {};
}

std::vector<std::string> head_lines(const Sample& now, const Sample* before) {
  const Table &pools = now.table("POOLS"), &workers = now.table("WORKERS"), &totals = now.table("STATS_TOTALS"),
              &hosts = now.table("HOSTS");
  const Past then = past(now, before);
  auto per_second = [&](std::string_view column) -> std::string {
    const Table* old = then.table("STATS_TOTALS");
    if (!old || then.seconds <= 0) return "-";
    return short_number(std::max(0.0, (sum(totals, column) - sum(*old, column)) / then.seconds));
  };
  double longest = 0;
  for (const Row& r : pools.rows)
    longest = std::max(longest, pools.number(r, "maxwait") * 1e6 + pools.number(r, "maxwait_us"));
  const auto out = std::ranges::count_if(hosts.rows, [&](const Row& r) { return hosts.at(r, "state") == "out"; });
  std::string state;
  const Table& states = now.table("STATE");
  for (const Row& r : states.rows)
    if (const std::string& key = states.at(r, "key"); states.at(r, "value") == "yes" && key != "active")
      state += fmt::format("  {}", key);
  std::string loads;
  for (const Row& r : workers.rows) loads += fmt::format(" {:.0f}%", workers.number(r, "busy") * 100);
  return {
      fmt::format("{} clients, {:.0f} wait, longest {}   {} servers, {:.0f} active   {} of {} hosts out{}",
                  listed(now, "used_clients"), sum(pools, "cl_waiting"), short_time(longest),
                  listed(now, "used_servers"), sum(pools, "sv_active"), out, hosts.rows.size(), state),
      fmt::format("{} transactions/s, {} queries/s   {} B/s in, {} B/s out   {} workers, busy{}",
                  per_second("xact_count"), per_second("query_count"), per_second("bytes_received"),
                  per_second("bytes_sent"), workers.rows.size(), loads),
  };
}

Order usual_order(View view) {
  switch (view) {
    case View::pools:
      return {3, true};  // who waits
    case View::clients:
      return {4, true};
    case View::workers:
    case View::hosts:
      return {0, false};
  }
  return {};
}

void sort(Sheet& sheet, Order order) {
  if (order.column >= sheet.columns.size()) return;
  const bool numeric = sheet.columns[order.column].numeric;
  std::ranges::stable_sort(sheet.rows, [&](const auto& a, const auto& b) {
    const Cell &x = a[order.column], &y = b[order.column];
    const Cell &first = order.descending ? y : x, &second = order.descending ? x : y;
    return numeric ? first.number < second.number : first.text < second.text;
  });
}

std::string short_number(double value) {
  static constexpr std::string_view kUnits[] = {"", "k", "M", "G", "T"};
  std::size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < std::size(kUnits); ++unit) value /= 1000;
  return unit == 0 ? fmt::format("{:.0f}", value) : fmt::format("{:.{}f}{}", value, value < 9.95 ? 1 : 0, kUnits[unit]);
}

std::string short_time(double us) {
  if (us <= 0) return "0";
  if (us < 999.5) return fmt::format("{:.0f}us", us);
  if (us < 999'500) return fmt::format("{:.{}f}ms", us / 1e3, us < 9950 ? 1 : 0);
  if (us < 120e6) return fmt::format("{:.{}f}s", us / 1e6, us < 9.95e6 ? 1 : 0);
  return fmt::format("{:.0f}min", us / 60e6);
}

}  // namespace pgf::top
