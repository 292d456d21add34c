// SHOW FLEET: every limit that is set, what of it is whose, and how much of it is in use, here and by all processes.
#include <bit>
#include <optional>

#include "config/budget.h"
#include "worker/control.h"

namespace pgf::worker {

void Control::fill_budget(observe::Fleet& view, bool everything) {
  const config::Config& c = *fleet_.config;
  const pool::Ledger* ledger = fleet_.shared.ledger;
  const bool divided = config::divides(c.settings);
  std::optional<config::Config> undivided;  // as if nobody divided anything
  if (divided) undivided.emplace(c).settings.budget = config::Budget::process;
  const config::Config& whole = divided ? *undivided : c;

  auto add = [&](std::string_view limit, const std::string& database, const std::string& user, int configured, int part,
                 const pool::Counter& counter) {
    if (configured <= 0) return;
    observe::BudgetRow row{std::string(limit), database, user, configured, part, counter.value()};
    if (!divided) row.held = counter.total();
    if (divided) row.members = static_cast<int>(c.settings.fleet_size);
    if (ledger && counter.stake()) {
      row.share = ledger->part(configured);
      row.members = ledger->members.load();
      row.waiting = std::popcount(counter.stake()->waiting());
    }
    view.budget.push_back(std::move(row));
  };

  const session::Shared& shared = fleet_.shared;
  add("max_client_conn", "", "", config::max_client_conn(whole), config::max_client_conn(c), shared.admitted);
  if (!everything) return;
  for (pool::DatabaseShared* d : shared.directory.databases()) {
    auto db = config::find_database(c, d->name);
    if (!db) continue;
    const auto all = config::resolve(whole, *db, ""), ours = config::resolve(c, *db, "");
    const auto all_clients = config::resolve_client(whole, *db, ""), our_clients = config::resolve_client(c, *db, "");
    add("max_db_connections", d->name, "", all.max_db_connections, ours.max_db_connections, d->servers);
    add("max_db_client_connections", d->name, "", all_clients.max_db_client_connections,
        our_clients.max_db_client_connections, d->clients);
  }
  for (pool::UserShared* u : shared.directory.users()) {
    const auto all = config::resolve(whole, {}, u->name), ours = config::resolve(c, {}, u->name);
    const auto all_clients = config::resolve_client(whole, {}, u->name),
               our_clients = config::resolve_client(c, {}, u->name);
    add("max_user_connections", "", u->name, all.max_user_connections, ours.max_user_connections, u->servers);
    add("max_user_client_connections", "", u->name, all_clients.max_user_client_connections,
        our_clients.max_user_client_connections, u->clients);
  }
  for (pool::PoolShared* p : shared.directory.pools()) {
    auto db = config::find_database(c, p->database.name);
    if (!db) continue;
    const auto all = config::resolve(whole, *db, p->user.name), ours = config::resolve(c, *db, p->user.name);
    add("pool_size", p->database.name, p->user.name, all.pool_size, ours.pool_size, p->servers);
  }
}

}  // namespace pgf::worker
