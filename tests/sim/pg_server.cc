#include "pg_server.h"

#include <fmt/format.h>

#include <algorithm>

#include "wire/read.h"
#include "wire/startup.h"
#include "wire/write.h"

namespace pgf::sim {

static constexpr std::size_t kEnough = 32 * 1024;  // not sent yet: then a backend waits before it goes on

// ---- PgServer

PgServer::PgServer(Network& network, Random& random, Trace& trace, int address, ServerRules& rules)
    : network_(network), random_(random), trace_(trace), address_(address), rules_(rules) {}

void PgServer::start() {
  up_ = true;
  network_.listen(address_, [this](End end) { backends.push_back(std::make_unique<Backend>(*this, end)); });
}

void PgServer::stop() {
  up_ = false;
  network_.silence(address_);
  for (auto& backend : backends) backend->vanish();
}

// ---- Backend

Backend::Backend(PgServer& server, End end_) : server_(server), talk_(end_), pid_(server.next_pid_++) {
  for (int i = 0; i < 4; ++i) secret_ += static_cast<char>(server.random_.below(256));
  params_ = {"ISO, MDY", "UTF8", "UTC", "on", ""};
}

bool Backend::ready() const {
  if (over()) return false;
  if (talk_.writable()) return true;
  if (busy_until_ > server_.network_.now()) return false;
  if (leaving_) return talk_.out.empty() || talk_.end().broken();
  if (talk_.out.size() >= kEnough) return false;
  return executing_ || talk_.readable() || phase_ == Phase::login || talk_.complete(phase_ == Phase::startup);
}

Usec Backend::next_time() const { return !over() && busy_until_ > server_.network_.now() ? busy_until_ : -1; }

void Backend::step() {
  Random& random = server_.random_;
  const bool busy = busy_until_ > server_.network_.now();
  if (talk_.writable() && (busy || leaving_ || talk_.out.size() >= kEnough || random.one_in(2)))
    return talk_.write(random);
  if (busy) return;
  if (leaving_) return end();
  if (phase_ == Phase::login) return finish_login();
  if (executing_) return run_next();
  if (auto m = talk_.next(phase_ == Phase::startup)) return message(m->type, m->body);
  if (!talk_.readable()) return;
  if (talk_.ended()) return end();
  talk_.read(random);
  if (auto m = talk_.next(phase_ == Phase::startup)) message(m->type, m->body);
}

void Backend::vanish() {
  if (over()) return;
  server_.trace_.note("backend vanishes", pid_);
  talk_.reset();
  phase_ = Phase::over;
}

void Backend::say_goodbye() {
  if (!serving() || leaving_) return;
  server_.trace_.note("backend is terminated", pid_);
  wire::error(talk_.out, "FATAL", "57P01", "terminating connection due to administrator command");
  executing_ = false;
  busy_until_ = 0;
  leaving_ = true;
}

void Backend::end() {
  server_.trace_.note("backend ends", pid_);
  talk_.close();
  phase_ = Phase::over;
}

void Backend::message(char type, Bytes body) {
  server_.trace_.note("backend hears", pid_, static_cast<unsigned char>(type), body.size());
  if (phase_ == Phase::startup) return startup(body);
  if (type == 'X') {
    leaving_ = true;
    if (server_.random_.one_in(4))
      busy_until_ = server_.network_.now() + static_cast<Usec>(server_.random_.below(50'000));
    return;
  }
  if (phase_ == Phase::copy) return copy_message(type, body);
  if (type != 'Q') return extended(type, body);
  if (skipping_) return;  // to the Sync
  std::string_view sql = as_text(body);
  if (sql.empty() || sql.back() != '\0') throw Violation("a Query without its end");
  sql.remove_suffix(1);
  unnamed_.reset();
  simple_ = executing_ = true;
  if (sql.empty()) {
    wire::empty_query(talk_.out);
    return;
  }
  while (!sql.empty()) {
    const std::size_t semicolon = std::min(sql.find(';'), sql.size());
    if (semicolon > 0) todo_.emplace_back(sql.substr(0, semicolon));
    sql.remove_prefix(std::min(semicolon + 1, sql.size()));
  }
}

// ---- login, cancel

void Backend::startup(Bytes body) {
  Cursor in(body);
  const std::uint32_t code = in.u32();
  if (code == wire::kCancelCode) return cancel_request(body.subspan(4));
  auto packet = wire::parse_startup(body.subspan(4), code);
  if (!packet) throw Violation("the pooler's startup packet: " + packet.error());
  for (auto& [name, value] : packet->params) {
    if (name == "database") database_ = value;
    if (name == "user") user_ = value;
    if (int i = tracked(name); i >= 0) params_[static_cast<std::size_t>(i)] = canonical(i, value);
  }
  phase_ = Phase::login;
  if (server_.random_.one_in(3))
    busy_until_ = server_.network_.now() + static_cast<Usec>(server_.random_.below(100'000));
}

void Backend::finish_login() {
  if (server_.rules_.faults && server_.random_.one_in(25)) {
    const bool full = server_.random_.one_in(2);
    wire::error(talk_.out, "FATAL", full ? "53300" : "57P03",
                full ? "sorry, too many clients already" : "the database system is starting up");
    leaving_ = true;
    return;
  }
  ++server_.logins;
  phase_ = Phase::ready;
  wire::auth_ok(talk_.out);
  wire::parameter_status(talk_.out, "server_version", "15.0");
  for (std::size_t i = 0; i < kTracked.size(); ++i) wire::parameter_status(talk_.out, kTracked[i], params_[i]);
  std::string key(4, '\0');
  store_be32(reinterpret_cast<std::uint8_t*>(key.data()), pid_);
  wire::backend_key_data(talk_.out, as_bytes(key + secret_));
  wire::ready_for_query(talk_.out, status_);
}

void Backend::cancel_request(Bytes key) {
  leaving_ = true;
  // Whoever closes before he has an answer may not count on anything (cancel_wait_timeout); PostgreSQL would still
  // look.
  if (key.size() != 8 || !talk_.end().other().open() || talk_.end().broken()) return;
  for (auto& backend : server_.backends)
    if (backend->pid() == load_be32(key.data()) && backend->secret() == as_text(key.subspan(4)))
      return backend->cancel();
  ++server_.cancels_missed;
}

void Backend::cancel() {
  server_.trace_.note("cancel", pid_, executing_, current_.client);
  const bool copying = phase_ == Phase::copy;
  // Between two statements nothing is there to be cancelled, and a DEALLOCATE cannot be told whose it is.
  if (!serving() || leaving_ || !(copying || (executing_ && drawn_)) || current_.sql.starts_with("DEALLOCATE")) {
    ++server_.cancels_missed;
    return;
  }
  if (current_.client == 0) throw Violation(fmt::format("a cancel request hits the pooler's own \"{}\"", current_.sql));
  if (!server_.asked_for_cancel(current_.client))
    throw Violation(fmt::format("a cancel request hits client {}, who did not ask for it", current_.client));
  ++server_.cancels_hit;
  if (copying) return copy_failed("57014", "canceling statement due to user request");
  cancelled_ = true;
  busy_until_ = 0;
}

// ---- transactions, parameters

void Backend::set(int parameter, std::string_view value) {
  std::string& now = params_[static_cast<std::size_t>(parameter)];
  std::string wanted = canonical(parameter, value);
  if (now == wanted) return;
  now = std::move(wanted);
  wire::parameter_status(talk_.out, kTracked[static_cast<std::size_t>(parameter)], now);
}

void Backend::begin_implicit() {
  if (status_ != 'I' || implicit_) return;
  implicit_ = true;
  before_ = params_;
  writes_.clear();
}

void Backend::commit() {
  server_.committed_.insert(writes_.begin(), writes_.end());
  writes_.clear();
  implicit_ = false;
  status_ = 'I';
  transaction_of_ = 0;
}

void Backend::roll_back() {
  writes_.clear();
  if (implicit_ || status_ != 'I')
    for (std::size_t i = 0; i < before_.size(); ++i) set(static_cast<int>(i), before_[i]);
  implicit_ = false;
  status_ = 'I';
  transaction_of_ = 0;
}

void Backend::error(std::string_view sqlstate, std::string_view text) {
  wire::error(talk_.out, "ERROR", sqlstate, text);
  todo_.clear();
  if (status_ == 'T')
    status_ = 'E';
  else if (status_ == 'I')
    roll_back();
}

void Backend::statement_error(std::string_view sqlstate, std::uint64_t client, std::uint64_t serial,
                              std::string_view reason) {
  error(sqlstate, fmt::format("#{} #{} {}", client, serial, reason));
}

void Backend::complete(std::string_view tag) { wire::command_complete(talk_.out, tag); }

void Backend::ready_for_query() {
  if (status_ == 'I') {
    commit();
    portals_.clear();
  }
  batch_of_ = 0;
  wire::ready_for_query(talk_.out, status_);
}

void Backend::belongs_to(std::uint64_t client) {
  auto check = [&](std::uint64_t whose, std::string_view what) {
    if (whose != 0 && whose != client)
      throw Violation(fmt::format("a statement of client {} runs in the {} of client {}", client, what, whose));
  };
  check(transaction_of_, "transaction");
  check(batch_of_, "batch");
  if (client == 0) return;
  if (server_.rules_.session_mode) {
    check(session_of_, "session");
    session_of_ = client;
  }
}

// ---- statements

void Backend::run_next() {
  Random& random = server_.random_;
  if (simple_ && todo_.empty()) {
    executing_ = false;
    return ready_for_query();
  }
  if (!drawn_) {
    if (simple_) {
      current_.sql = todo_.front();
      auto w = words(current_.sql);
      const bool theirs = w.size() > 2 && w[0][0] >= 'a' && w[0] != "select";
      current_.client = theirs ? number(w[1]) : 0;
      current_.serial = theirs ? number(w[2]) : 0;
    }
    // DEALLOCATE and DISCARD are the client's or the pooler's, which nobody can see.
    if (current_.client != 0 || !current_.sql.starts_with("D")) belongs_to(current_.client);
    drawn_ = true;
    if (random.percent(server_.rules_.slow_percent))
      busy_until_ =
          server_.network_.now() + static_cast<Usec>(random.below(static_cast<std::size_t>(server_.rules_.slowest)));
    if (random.one_in(30)) wire::notice(talk_.out, "by the way");
    return;
  }
  drawn_ = false;
  ++server_.statements;
  Outcome outcome;
  const Portal now = current_;
  current_ = {};
  if (std::exchange(cancelled_, false)) {
    statement_error("57014", now.client, now.serial, "canceling statement due to user request");
    outcome = Outcome::failed;
  } else {
    begin_implicit();
    outcome = run(now.sql, now.client, now.serial, simple_);
  }
  if (simple_ && !todo_.empty()) todo_.pop_front();
  if (!simple_) executing_ = false;
  if (outcome == Outcome::copying) {
    executing_ = false;
    phase_ = Phase::copy;
    current_ = now;
    copied_ = 0;
  }
  if (outcome == Outcome::failed && !simple_) skipping_ = true;
}

Backend::Outcome Backend::run(std::string_view sql, std::uint64_t client, std::uint64_t serial, bool simple) {
  auto w = words(sql);
  const std::string_view verb = w[0];
  server_.trace_.text("runs", pid_, sql);
  if (verb == "DEALLOCATE" || verb == "DISCARD") return forget(sql);
  if (client == 0) return run_own(sql);
  if (verb != "prep" && (number(w[1]) != client || number(w[2]) != serial))
    throw Violation(fmt::format("client {} runs \"{}\" as its {}", client, sql, serial));
  if (status_ != 'I') transaction_of_ = client;

  if (verb == "commit" || verb == "rollback") {
    if (verb == "commit" && status_ != 'E')
      commit();
    else
      roll_back();
    complete(fmt::format("END {}", serial));
    return Outcome::done;
  }
  if (status_ == 'E') {
    statement_error("25P02", client, serial, "current transaction is aborted");
    return Outcome::failed;
  }
  if (verb == "begin") {
    if (status_ == 'I' && !implicit_) before_ = params_;
    implicit_ = false;
    status_ = 'T';
    transaction_of_ = client;
    complete(fmt::format("BEGIN {}", serial));
    return Outcome::done;
  }
  if (verb == "rows" || verb == "prep") {
    const bool prepared = verb == "prep";
    const std::uint64_t id = prepared ? number(w[1]) : 0, rows = number(w[prepared ? 2 : 3]);
    const std::string filler(number(w[prepared ? 3 : 4]), '.');
    const wire::Column column{"r", 's'};
    if (simple) wire::row_description(talk_.out, {&column, 1});
    for (std::uint64_t i = 0; i < rows; ++i)
      wire::RowWriter(talk_.out).text(
          fmt::format("{} {} {} {} #{}#{}", client, serial, i, id, digest(params_), filler));
    complete(fmt::format("SELECT {}", serial));
  } else if (verb == "write") {
    if (!server_.executed_.insert({client, serial}).second)
      throw Violation(fmt::format("change {} of client {} is done twice", serial, client));
    writes_.insert({client, serial});
    complete(fmt::format("INSERT {}", serial));
  } else if (verb == "set") {
    set(tracked(w[3]), w[4]);
    complete(fmt::format("SET {}", serial));
  } else if (verb == "copyin") {
    wire::message(talk_.out, 'G', std::string_view("\0\0\0", 3));
    return Outcome::copying;
  } else if (verb == "copyout") {
    wire::message(talk_.out, 'H', std::string_view("\0\0\0", 3));
    for (std::uint64_t i = 0; i < number(w[3]); ++i)
      wire::message(talk_.out, 'd', fmt::format("{} {} {} {}", client, serial, i, std::string(number(w[4]), '.')));
    wire::message(talk_.out, 'c', "");
    complete(fmt::format("COPY {}", serial));
  } else {
    statement_error("22012", client, serial, "as ordered");
    return Outcome::failed;
  }
  return Outcome::done;
}

// SETs of tracked parameters, the check query.
Backend::Outcome Backend::run_own(std::string_view sql) {
  if (status_ != 'I') throw Violation(fmt::format("the pooler's own \"{}\" runs in a transaction", sql));
  if (sql.starts_with("SET ")) {
    const std::size_t equals = sql.find('=');
    const int parameter = tracked(sql.substr(4, equals - 4));
    if (parameter < 0) throw Violation(fmt::format("the pooler sets what it does not track: {}", sql));
    set(parameter, sql.substr(equals + 2, sql.size() - equals - 3));
    complete("SET");
  } else {
    complete("SELECT 1");
  }
  return Outcome::done;
}

Backend::Outcome Backend::forget(std::string_view sql) {
  if (status_ == 'E') {
    error("25P02", "current transaction is aborted");
    return Outcome::failed;
  }
  if (sql == "DISCARD ALL" || sql == "DEALLOCATE ALL") {
    statements_.clear();
    if (sql == "DISCARD ALL") {
      session_of_ = 0;
      set(0, "ISO, MDY");
      set(1, "UTF8");
      set(2, "UTC");
      set(4, "");
      before_ = params_;
    }
    complete(sql);
    return Outcome::done;
  }
  std::string name(words(sql)[1]);
  std::erase(name, '"');
  if (!statements_.erase(name)) {
    error("26000", "#0 #0 no such statement");
    return Outcome::failed;
  }
  complete("DEALLOCATE");
  return Outcome::done;
}

void Backend::copy_message(char type, Bytes body) {
  const Portal now = current_;
  if (type == 'd') {
    auto w = words(as_text(body));
    if (w.empty() || number(w[0]) != now.client)
      throw Violation(fmt::format("client {} gets \"{}\" into its COPY", now.client, as_text(body)));
    ++copied_;
    return;
  }
  if (type == 'H' || type == 'S') return;
  if (type != 'c') return copy_failed("57014", type == 'f' ? "COPY from stdin failed" : "unexpected message in COPY");
  phase_ = Phase::ready;
  current_ = {};
  executing_ = simple_;
  complete(fmt::format("COPY {}", now.serial));
}

void Backend::copy_failed(std::string_view sqlstate, std::string_view reason) {
  const Portal now = std::exchange(current_, {});
  phase_ = Phase::ready;
  executing_ = simple_;
  skipping_ = !simple_;
  statement_error(sqlstate, now.client, now.serial, reason);
}

// ---- extended protocol

void Backend::extended(char type, Bytes body) {
  if (type == 'S') {
    skipping_ = false;
    return ready_for_query();
  }
  if (skipping_ || type == 'H' || type == 'd' || type == 'c' || type == 'f') return;
  switch (type) {
    case 'P': {
      auto parse = wire::read_parse(body);
      if (!parse || !wire::valid_parse_tail(parse->rest)) throw Violation("a broken Parse");
      const std::string sql(as_text(parse->rest).substr(0, as_text(parse->rest).find('\0')));
      server_.trace_.text("parses", pid_, fmt::format("{}: {}", parse->name, sql));
      const std::string_view verb = words(sql)[0];
      if (status_ == 'E' && verb != "commit" && verb != "rollback") {
        error("25P02", "#0 #0 current transaction is aborted");
        skipping_ = true;
        return;
      }
      if (parse->name.empty()) {
        unnamed_ = sql;
      } else if (!statements_.emplace(parse->name, sql).second) {
        error("42P05", "#0 #0 prepared statement already exists");
        skipping_ = true;
        return;
      }
      return wire::parse_complete(talk_.out);
    }
    case 'B':
      return bind(body);
    case 'D':
      return describe(body);
    case 'C': {
      auto ref = wire::read_describe_or_close(body);
      if (!ref) throw Violation("a broken Close");
      if (ref->kind == 'S' && ref->name.empty()) unnamed_.reset();
      if (ref->kind == 'S') statements_.erase(std::string(ref->name));
      return wire::close_complete(talk_.out);
    }
    case 'E': {
      Cursor in(body);
      auto portal = portals_.find(std::string(in.cstr()));
      if (portal == portals_.end()) throw Violation("Execute of a portal that is not there");
      current_ = portal->second;
      simple_ = false;
      executing_ = true;
      return;
    }
    default:
      throw Violation(fmt::format("a backend gets a message '{}'", type));
  }
}

void Backend::bind(Bytes body) {
  auto head = wire::read_bind(body);
  if (!head) throw Violation("a broken Bind");
  const std::string* sql = nullptr;
  if (head->name.empty())
    sql = unnamed_ ? &*unnamed_ : nullptr;
  else if (auto it = statements_.find(std::string(head->name)); it != statements_.end())
    sql = &it->second;
  Cursor in(head->rest);
  for (int formats = in.u16(); formats > 0; --formats) in.u16();
  Portal portal;
  if (const int parameters = in.u16(); parameters == 2) {
    portal.client = number(as_text(in.bytes(in.u32())));
    portal.serial = number(as_text(in.bytes(in.u32())));
  }
  if (portal.client == 0) throw Violation("a Bind without its parameters");
  belongs_to(portal.client);
  batch_of_ = portal.client;
  auto fail = [&](std::string_view state, std::string_view reason) {
    statement_error(state, portal.client, portal.serial, reason);
    skipping_ = true;
  };
  if (!sql) return fail("26000", "no such statement");
  const std::string_view verb = words(*sql)[0];
  if (status_ == 'E' && verb != "commit" && verb != "rollback") return fail("25P02", "current transaction is aborted");
  portal.sql = *sql;
  portals_[std::string(head->portal)] = std::move(portal);
  wire::message(talk_.out, '2', "");
}

void Backend::describe(Bytes body) {
  auto ref = wire::read_describe_or_close(body);
  if (!ref) throw Violation("a broken Describe");
  std::string_view sql;
  if (ref->kind == 'P') {
    auto it = portals_.find(std::string(ref->name));
    if (it == portals_.end()) throw Violation("Describe of a portal that is not there");
    sql = it->second.sql;
  } else if (ref->name.empty()) {
    if (unnamed_) sql = *unnamed_;
  } else if (auto it = statements_.find(std::string(ref->name)); it != statements_.end()) {
    sql = it->second;
  }
  const std::string_view verb = sql.empty() ? sql : words(sql)[0];
  if (sql.empty() || (status_ == 'E' && verb != "commit" && verb != "rollback")) {
    error(sql.empty() ? "26000" : "25P02", "#0 #0 cannot be described");
    skipping_ = true;
    return;
  }
  if (ref->kind == 'S') wire::message(talk_.out, 't', std::string_view("\0\2\0\0\0\x19\0\0\0\x19", 10));
  if (verb == "rows" || verb == "prep") {
    // What it is can be told from here: the name of the column.
    const std::string name(verb == "prep" ? words(sql)[1] : "r");
    const wire::Column column{name, 's'};
    return wire::row_description(talk_.out, {&column, 1});
  }
  wire::message(talk_.out, 'n', "");
}

}  // namespace pgf::sim
