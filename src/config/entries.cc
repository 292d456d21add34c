#include "config/entries.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <vector>

#include "config/connstring.h"
#include "config/keyword.h"
#include "config/limits.h"
#include "config/nearest.h"
#include "config/value.h"

namespace pgf::config {
namespace {

using Outcome = std::expected<void, std::string>;
std::unexpected<std::string> fail(std::string reason) { return std::unexpected(std::move(reason)); }

template <class Entry>
struct Key {
  std::string_view name;
  Outcome (*set)(Entry& entry, const std::string& value);
};

// Setters for the shapes that occur more than once; the member is part of the type, so that tables stay constexpr.
template <class Entry, auto member>
Outcome text(Entry& entry, const std::string& value) {
  entry.*member = value;
  return {};
}
template <class Entry, auto member>  // negative = the default applies, 0 counts
Outcome size(Entry& entry, const std::string& value) {
  int n = lenient_int(value);
  entry.*member = n < 0 ? std::nullopt : std::optional(n);
  return {};
}
template <class Entry, auto member>  // only > 0 counts
Outcome limit(Entry& entry, const std::string& value) {
  int n = lenient_int(value);
  entry.*member = n <= 0 ? std::nullopt : std::optional(n);
  return {};
}
template <class Entry, auto member>  // negative = the default applies, 0 = off
Outcome seconds(Entry& entry, const std::string& value) {
  int n = lenient_int(value);
  entry.*member = n < 0 ? std::nullopt : std::optional(n * kSecond);
  return {};
}
template <class Entry, auto member>  // only > 0 counts
Outcome timeout(Entry& entry, const std::string& value) {
  int n = lenient_int(value);
  entry.*member = n <= 0 ? std::nullopt : std::optional(n * kSecond);
  return {};
}
template <class Entry>
Outcome pool_mode(Entry& entry, const std::string& value) {
  entry.pool_mode = parse_keyword<PoolMode>(value);
  if (!entry.pool_mode) return fail("invalid pool mode: " + value);
  return {};
}

std::expected<int, std::string> parse_port(std::string_view value) {
  int port = lenient_int(value);
  if (port < 1 || port > 65535) return fail(fmt::format("invalid port: {}", value));
  return port;
}

std::vector<std::string> split_commas(std::string_view list) {
  std::vector<std::string> parts;
  while (true) {
    std::size_t comma = list.find(',');
    parts.emplace_back(trim(list.substr(0, comma)));
    if (comma == std::string_view::npos) return parts;
    list.remove_prefix(comma + 1);
  }
}

Outcome database_host(Database& db, const std::string& value) {
  db.host = value;
  db.hosts = split_commas(value);
  if (std::ranges::any_of(db.hosts, &std::string::empty)) return fail("empty name in host list: " + value);
  return {};
}
Outcome database_port(Database& db, const std::string& value) {
  db.ports.clear();
  for (const std::string& part : split_commas(value)) {
    auto port = parse_port(part);
    if (!port) return fail(port.error());
    db.ports.push_back(*port);
  }
  return {};
}
Outcome database_user(Database& db, const std::string& value) {
  if (value.size() > kMaxUserName) return fail("user name is too long: " + value);
  db.user = value;
  return {};
}
Outcome database_password(Database& db, const std::string& value) {
  if (value.size() > kMaxPassword) return fail("password is too long");
  db.password = value;
  return {};
}
Outcome database_load_balance(Database& db, const std::string& value) {
  auto policy = parse_keyword<LoadBalance>(value);
  if (!policy) return fail("invalid load_balance_hosts: " + value);
  db.load_balance_hosts = *policy;
  return {};
}
Outcome database_target_session(Database& db, const std::string& value) {
  auto target = parse_keyword<TargetSession>(value);
  if (!target) return fail("invalid target_session_attrs: " + value);
  db.target_session_attrs = *target;
  return {};
}
Outcome database_sslnegotiation(Database& db, const std::string& value) {
  auto how = parse_keyword<SslNegotiation>(value);
  if (!how) return fail("invalid sslnegotiation: " + value);
  db.sslnegotiation = *how;
  return {};
}
Outcome database_require_auth(Database& db, const std::string& value) {
  auto methods = auth::RequireAuth::parse(value);
  if (!methods) return fail("invalid require_auth: " + value);
  db.require_auth = *methods;
  return {};
}
// Ours, so it is as exact and as strict as the settings are.
Outcome database_connect_timeout(Database& db, const std::string& value) {
  auto time = parse_seconds(value);
  if (!time) return fail("invalid connect_timeout: " + value);
  db.connect_timeout = *time > 0 ? std::optional(*time) : std::nullopt;
  return {};
}

// libpq's key, off by default: docs/decisions/0007-protocol-3.2.md.
Outcome database_protocol(Database& db, const std::string& value) {
  if (value != "3.0" && value != "3.2" && value != "latest") return fail("invalid max_protocol_version: " + value);
  db.protocol_minor = value == "3.0" ? 0 : 2;
  return {};
}

using D = Database;
constexpr Key<Database> kDatabaseKeys[] = {
    {"dbname", text<D, &D::dbname>},
    {"host", database_host},
    {"port", database_port},
    {"user", database_user},
    {"password", database_password},
    {"auth_user", text<D, &D::auth_user>},
    {"auth_query", text<D, &D::auth_query>},
    {"auth_dbname", text<D, &D::auth_dbname>},
    {"pool_size", size<D, &D::pool_size>},
    {"min_pool_size", size<D, &D::min_pool_size>},
    {"reserve_pool_size", size<D, &D::reserve_pool_size>},
    {"reserve_pool", size<D, &D::reserve_pool_size>},
    {"pool_mode", pool_mode<D>},
    {"max_db_connections", limit<D, &D::max_db_connections>},
    {"max_db_client_connections", limit<D, &D::max_db_client_connections>},
    {"server_lifetime", timeout<D, &D::server_lifetime>},
    {"query_wait_timeout", seconds<D, &D::query_wait_timeout>},
    {"connect_timeout", database_connect_timeout},
    {"load_balance_hosts", database_load_balance},
    {"target_session_attrs", database_target_session},
    {"max_protocol_version", database_protocol},
    {"sslnegotiation", database_sslnegotiation},
    {"require_auth", database_require_auth},
    {"connect_query", text<D, &D::connect_query>},
    {"client_encoding", text<D, &D::client_encoding>},
    {"datestyle", text<D, &D::datestyle>},
    {"timezone", text<D, &D::timezone>},
    {"application_name", text<D, &D::application_name>},
};

using U = User;
constexpr Key<User> kUserKeys[] = {
    {"pool_size", size<U, &U::pool_size>},
    {"reserve_pool_size", size<U, &U::reserve_pool_size>},
    {"pool_mode", pool_mode<U>},
    {"max_user_connections", limit<U, &U::max_user_connections>},
    {"max_user_client_connections", limit<U, &U::max_user_client_connections>},
    {"query_timeout", timeout<U, &U::query_timeout>},
    {"idle_transaction_timeout", timeout<U, &U::idle_transaction_timeout>},
    {"transaction_timeout", timeout<U, &U::transaction_timeout>},
    {"client_idle_timeout", timeout<U, &U::client_idle_timeout>},
    {"query_wait_timeout", seconds<U, &U::query_wait_timeout>},
};

Outcome peer_port(Peer& peer, const std::string& value) {
  auto port = parse_port(value);
  if (!port) return fail(port.error());
  peer.port = *port;
  return {};
}
using P = Peer;
constexpr Key<Peer> kPeerKeys[] = {
    {"host", text<P, &P::host>}, {"port", peer_port}, {"pool_size", size<P, &P::pool_size>}};

template <class Entry>
Outcome fill(Entry& entry, std::string_view connstring, std::span<const Key<Entry>> keys) {
  auto pairs = parse_connstring(connstring);
  if (!pairs) return fail("syntax error in connection string");
  for (const Pair& pair : *pairs) {
    auto key = std::ranges::find(keys, pair.key, &Key<Entry>::name);
    if (key == keys.end()) {
      std::vector<std::string_view> names;
      for (const auto& known : keys) names.push_back(known.name);
      return fail(fmt::format("unrecognized connection parameter: {}{}", pair.key, hint(nearest(pair.key, names))));
    }
    if (Outcome done = key->set(entry, pair.value); !done) return done;
  }
  return {};
}

}  // namespace

std::expected<Database, std::string> parse_database(std::string_view name, std::string_view connstring) {
  if (name == kConsoleDatabase) return fail("database name \"pgbouncer\" is reserved");
  if (name.size() > kMaxDatabaseName) return fail(fmt::format("database name is too long: {}", name));
  Database db;
  db.name = name;
  if (Outcome done = fill<Database>(db, connstring, kDatabaseKeys); !done) return fail(done.error());
  if (db.dbname.size() > kMaxDatabaseName) return fail(fmt::format("dbname is too long: {}", db.dbname));
  std::size_t hosts = std::max<std::size_t>(db.hosts.size(), 1);
  if (db.ports.size() != 1 && db.ports.size() != hosts)
    return fail(
        fmt::format("database \"{}\" has {} ports for {} host{}", name, db.ports.size(), hosts, hosts == 1 ? "" : "s"));
  return db;
}

std::expected<User, std::string> parse_user(std::string_view name, std::string_view connstring) {
  if (name.size() > kMaxUserName) return fail(fmt::format("user name is too long: {}", name));
  User user;
  user.name = name;
  if (Outcome done = fill<User>(user, connstring, kUserKeys); !done) return fail(done.error());
  return user;
}

std::expected<Peer, std::string> parse_peer(std::string_view id, std::string_view connstring) {
  bool digits = !id.empty() && std::ranges::all_of(id, [](char c) { return c >= '0' && c <= '9'; });
  Peer peer;
  peer.id = digits ? lenient_int(id) : 0;
  if (id != "*" && (peer.id < 1 || peer.id > 65535)) return fail(fmt::format("invalid peer id: {}", id));
  if (Outcome done = fill<Peer>(peer, connstring, kPeerKeys); !done) return fail(done.error());
  if (peer.host.empty()) return fail(fmt::format("peer {} has no host", id));
  return peer;
}

}  // namespace pgf::config
