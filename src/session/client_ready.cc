// HOT PATH: from a client's bytes to its server's send queue. Only headers are looked at; runs of whole messages go out
// as one span; bodies of any size pass by count. Named statements are rewritten (behaviour.md section 9).
#include <fmt/format.h>

#include "session/client.h"
#include "session/pool.h"
#include "session/server.h"
#include "wire/read.h"
#include "wire/rules.h"
#include "wire/write.h"

namespace pgf::session {

using wire::Ask;
using wire::Give;

// A first message takes no server before it is complete or this much of it is there: half a query must not hold a
// connection. Bytes that came, not bytes that are claimed.
static constexpr std::size_t kCompleteFirst = 16 * 1024;
// A named Parse is kept whole: its text is what statements are known by.
static constexpr std::size_t kMaxNamedParse = 64 * 1024 * 1024;
// Names at the head of Bind, Describe and Close have to arrive within this many bytes.
static constexpr std::size_t kHeadLimit = 1024 * 1024;
// An unnamed Parse up to here is remembered, to be said again on whatever server the client meets next.
static constexpr std::size_t kMaxUnnamedParse = 64 * 1024;
// A batch up to here can be said again after "cached plan must not change result type".
static constexpr std::size_t kMaxReplay = 16 * 1024;
static constexpr std::size_t kMaxDeallocate = 1024;
// No statement has this name: numbers begin at 1.
static constexpr std::string_view kNoStatement = "PGBOUNCER_0";

bool Client::sharing() const {
  return pool->policy().pool_mode != config::PoolMode::session && replication == wire::Replication::none;
}
bool Client::tracking() const { return env_->settings().max_prepared_statements > 0 && sharing(); }

void Client::begin_request() {
  if (query_start_) return;
  query_start_ = env_->now();
  spoke_ = true;
  ++pool->counters.queries;
  if (xact_start_) return;
  xact_start_ = query_start_;
  xact_waited_ = xact_asking_ = 0;
  ++pool->counters.xacts;
}

std::size_t Client::consume_ready(const net::Received& received) {
  const std::uint8_t* bytes = received.bytes.data();
  const std::size_t size = received.bytes.size();
  std::size_t at = 0, run = 0;  // [run, at) is to be forwarded
  auto flush = [&] {
    if (at > run) server->stream->forward(received, received.bytes.subspan(run, at - run));
    run = at;
  };

  while (at < size) {
    if (body_left_) {
      std::size_t n = std::min<std::size_t>(body_left_, size - at);
      if (batch_) keep_for_replay(received.bytes.subspan(at, n));
      if (discarding_) {
        if (server) flush();
        run = at + n;
      }
      at += n;
      body_left_ -= static_cast<std::uint32_t>(n);
      if (!body_left_) discarding_ = false;
      continue;
    }
    if (size - at < 5) break;
    const std::uint8_t type = bytes[at];
    const std::uint32_t length = load_be32(bytes + at + 1);
    if (length < 4 || length > env_->settings().max_packet_size || length > 0x7fffffff) {
      if (server) flush();
      bad_header(received.bytes.subspan(at));
      return size;
    }
    if (wire::kFromClient[type] == wire::Rule::reject) {
      if (server) flush();
      fatal(say::unknown_message);
      return size;
    }
    const std::size_t total = 1 + std::size_t{length}, there = size - at;
    if (type == 'X') {
      if (server) flush();
      disconnect("client close request");
      return size;
    }
    if (type == 'Q' && env_->settings().disable_pqexec) {
      fatal(say::no_pqexec);
      return size;
    }

    const bool named_parse = type == 'P' && there > 5 && bytes[at + 5] != 0 && tracking();
    if (named_parse && total > kMaxNamedParse) {
      if (server) flush();
      fatal("54000", "named prepared statement too large");
      return size;
    }

    if (!server) {
      if (type == 'd' || type == 'c' || type == 'f') {  // the rest of a COPY that failed: nobody wants it any more
        body_left_ = length - 4;
        discarding_ = body_left_ > 0;
        at += 5;
        run = at;
        continue;
      }
      if (there < total && (there < kCompleteFirst || named_parse)) break;
      begin_request();
      if (!pool->take(*this) || phase_ != Phase::active) return at;
    } else {
      begin_request();
    }

    if (batch_) note_for_replay(type);
    switch (type) {
      case 'Q':
        if (sharing()) {
          server->set_unnamed({});  // a simple query drops the unnamed statement
          forget_unnamed();
          if (total <= kMaxDeallocate && tracking() && (there <= 5 || wire::may_forget(bytes[at + 5]))) {
            flush();
            if (there < total) return hold_back(), at;
            if (deallocate(received.bytes.subspan(at + 5, total - 5))) {
              at += total;
              run = at;
              continue;
            }
          }
        }
        server->owed().push(Ask::query);
        break;
      case 'F':
        server->owed().push(Ask::function_call);
        break;
      case 'S':
        server->owed().push(Ask::sync);
        break;
      case 'E':
        server->owed().push(Ask::execute);
        break;
      case 'c':
      case 'f':
        // Also ahead of the answer that tells that it is a COPY: the Syncs behind the end are answered, those before
        // not.
        if (server->copying() || !server->owed().empty()) server->owed().push(Ask::copy_end);
        break;
      case 'P':
      case 'B':
      case 'D':
      case 'C': {
        if (sharing()) {
          std::size_t used = 0;
          Bytes message = received.bytes.subspan(at, std::min(there, total));
          flush();  // what rewrite() writes itself comes behind
          Step step = rewrite(type, message, total, used);
          if (step == Step::stop) return size;
          if (step == Step::wait) return hold_back(), at;
          if (step == Step::done) {  // head replaced; the rest of the message (if any) passes by count
            if (batch_) keep_for_replay(message.first(used));
            body_left_ = static_cast<std::uint32_t>(total - used);
            at += used;
            run = at;
            continue;
          }
        }
        server->owed().push(type == 'P'   ? Ask::parse
                            : type == 'B' ? Ask::bind
                            : type == 'D' ? Ask::describe
                                          : Ask::close);
        break;
      }
      default:
        break;  // d, H
    }
    std::size_t n = std::min(there, total);
    if (batch_) keep_for_replay(received.bytes.subspan(at, n));
    at += n;
    body_left_ = static_cast<std::uint32_t>(total - n);
  }

  if (!server) return at;
  flush();
  hold_back();
  server->maybe_release();
  return at;
}

// The server has enough of this client's bytes for now: it is read on when they are sent.
void Client::hold_back() {
  if (server->stream->queued() < net::Stream::kHighMark) return;
  if (!std::exchange(paused_, true)) stream->pause();
  server->stream->want_drained();  // also when it was paused before, in the queue
}

void Client::server_drained() {
  if (!paused_) return;
  paused_ = false;
  if (held_) consume_held();
  if (phase_ != Phase::dead && !paused_) read_on();
}

void Client::ready_for_query(char status, bool all_answered) {
  if (!all_answered) {
    ++pool->counters.queries;  // the next of a pipelined row begins
    return;
  }
  Usec now = env_->now();
  if (query_start_) {
    pool->counters.query_time += static_cast<std::uint64_t>(now - query_start_);
    pool->latencies.query.record(now - query_start_);
    if (server && server->times()) server->times()->query.record(now - query_start_);
    xact_asking_ += now - query_start_;
  }
  query_start_ = 0;
  if (status == 'I') {
    if (xact_start_) {
      pool->counters.xact_time += static_cast<std::uint64_t>(now - xact_start_);
      pool->latencies.xact.record(now - xact_start_);
      const Usec limit = env_->settings().log_slow_transaction;
      if (limit > 0 && now - xact_start_ >= limit) [[unlikely]]
        tell_transaction(now - xact_start_, false);
    }
    xact_start_ = 0;
  }
}

// Parse, Bind, Describe, Close. `message` is what has arrived of it. done: `used` bytes are dealt with, the server got
// what it needs, the rest of the message is forwarded as it is. plain: forward untouched.
Client::Step Client::rewrite(std::uint8_t type, Bytes message, std::size_t total, std::size_t& used) {
  const bool complete = message.size() == total;
  Bytes body = message.subspan(5);
  if (type == 'P') {
    if (!body.empty() && body[0] == 0) {
      if (!complete && total <= kMaxUnnamedParse) return Step::wait;
      const std::string_view tail = complete ? as_text(body.subspan(1)) : std::string_view();
      remember_unnamed(tail);
      if (tail.size() <= kMaxDeallocate && tracking() && wire::forgotten_by(tail.substr(0, tail.find('\0'))).all)
        server->expect_forgetting();
      return Step::plain;
    }
    if (!tracking()) return body.empty() && !complete ? Step::wait : Step::plain;
    if (!complete) return Step::wait;
    used = total;
    return parse_statement(body);
  }
  if (type == 'B') {
    auto bind = wire::read_bind(body);
    if (!bind) {
      if (!complete && message.size() < kHeadLimit) return Step::wait;
      return fatal(say::broken_bind), Step::stop;
    }
    wire::StatementPtr statement;
    std::string_view server_name;
    if (!bind->name.empty() && tracking()) begin_batch();
    if (Step s = find_at_server(bind->name, statement, server_name); s != Step::done) return s;
    if (statement) ++pool->counters.binds;
    std::size_t head = 5 + bind->portal.size() + 1 + bind->name.size() + 1;
    std::uint64_t length = total - 1 + server_name.size() - bind->name.size();
    if (length > 0x7fffffff) return fatal("54000", "Bind packet too large"), Step::stop;
    std::string& out = env_->scratch;
    out.clear();
    out += 'B';
    out.resize(5);
    store_be32(reinterpret_cast<std::uint8_t*>(out.data()) + 1, static_cast<std::uint32_t>(length));
    out.append(bind->portal).append(1, '\0').append(server_name).append(1, '\0');
    server->stream->send(as_bytes(out));
    server->owed().push(Ask::bind, Give::forward, std::move(statement));
    used = head;
    return Step::done;
  }

  if (!complete) return message.size() < kHeadLimit ? Step::wait : (fatal(say::broken_describe), Step::stop);
  auto ref = wire::read_describe_or_close(body);
  if (!ref || (ref->kind != 'S' && ref->kind != 'P'))
    return fatal(type == 'D' ? say::broken_describe : say::broken_close), Step::stop;
  if (ref->kind == 'P') return Step::plain;
  if (type == 'C' && ref->name.empty()) {
    server->set_unnamed({});
    forget_unnamed();
    return Step::plain;
  }
  used = total;
  if (type == 'C') return tracking() ? close_statement(ref->name) : Step::plain;
  wire::StatementPtr statement;
  std::string_view server_name;
  if (Step s = find_at_server(ref->name, statement, server_name); s != Step::done) return s;
  std::string& out = env_->scratch;
  out.clear();
  out += 'D';
  out.resize(5);
  store_be32(reinterpret_cast<std::uint8_t*>(out.data()) + 1,
             static_cast<std::uint32_t>(4 + 1 + server_name.size() + 1));
  out.append(1, 'S').append(server_name).append(1, '\0');
  server->stream->send(as_bytes(out));
  server->owed().push(Ask::describe, Give::forward, std::move(statement));
  return Step::done;
}

Client::Step Client::parse_statement(Bytes body) {
  auto parse = wire::read_parse(body);
  if (!parse || !wire::valid_parse_tail(parse->rest)) return fatal(say::broken_parse), Step::stop;
  if (!statements_) statements_ = std::make_unique<wire::ClientStatements>();
  wire::StatementPtr statement = env_->shared.statements.intern(as_text(parse->rest));
  bool fresh = statements_->add(parse->name, statement);
  const bool forgotten = server->forgetting();
  if (!fresh && (unproven_.erase(std::string(parse->name)) || forgotten)) {
    statements_->remove(parse->name);
    fresh = statements_->add(parse->name, statement);
  }
  if (!fresh && server->skipping()) return Step::done;  // as PostgreSQL would: no answer, nothing has changed
  if (!fresh) {
    log(LogLevel::warning, fmt::format("prepared statement '{}' was already prepared", parse->name));
    return fatal(say::statement_in_use), Step::stop;
  }
  ++pool->counters.client_parses;
  if (!make_room()) return fatal(say::statement_memory), Step::stop;
  if (!forgotten && server->statements().ready(*statement, plan_epoch(), server->owed().batch())) {
    server->owed().push(Ask::parse, Give::fake, statement, parse->name);
    server->emit_fakes();
  } else {
    ensure_prepared(statement, Give::forward, parse->name);
  }
  return Step::done;
}

// done: `name` is known to the linked server as `server_name`; `statement` stays null for the unnamed one that the
// client does not have. plain: by the same name.
Client::Step Client::find_at_server(std::string_view name, wire::StatementPtr& statement,
                                    std::string_view& server_name) {
  if (name.empty()) {
    if (use_unnamed()) return Step::plain;
    server_name = kNoStatement;
    return Step::done;
  }
  if (!tracking()) return Step::plain;
  if (server->skipping() && !(statements_ && statements_->find(name))) {  // PostgreSQL does not look at it
    server_name = kNoStatement;
    return Step::done;
  }
  if (Step s = use_statement(name, statement); s != Step::done) return s;
  server_name = statement->server_name;
  return Step::done;
}

// Finds the client's statement and sees to it that the linked server has it.
Client::Step Client::use_statement(std::string_view name, wire::StatementPtr& statement) {
  if (statements_) statement = statements_->find(name);
  if (!statement) {
    log(LogLevel::warning, fmt::format("prepared statement '{}' not found", name));
    return fatal(say::statement_unknown), Step::stop;
  }
  if (!server->statements().use(*statement, plan_epoch(), server->owed().batch()))
    ensure_prepared(statement, Give::skip, {});
  return Step::done;
}

void Client::ensure_prepared(const wire::StatementPtr& statement, Give give, std::string_view client_name) {
  std::string& out = env_->scratch;
  out.clear();
  // It may be there: with a plan that no longer fits, about to be forgotten, or by an answer that is still to come.
  if (server->statements().has(*statement) || server->owed().settles(Ask::close, *statement)) {
    wire::close_statement(out, statement->server_name);
    server->owed().push(Ask::close, Give::skip, statement);
  }
  server->statements().add(statement, plan_epoch(), server->owed().batch());
  std::size_t limit = static_cast<std::size_t>(env_->settings().max_prepared_statements);
  while (wire::StatementPtr victim = server->statements().evict(limit)) {
    wire::close_statement(out, victim->server_name);
    server->owed().push(Ask::close, Give::skip, victim);
  }
  wire::parse(out, statement->server_name, statement->tail);
  server->owed().push(Ask::parse, give, statement, client_name);
  ++pool->counters.server_parses;
  server->stream->send(as_bytes(out));
}

std::uint32_t Client::plan_epoch() const { return database->plan_epoch.load(std::memory_order_relaxed); }

// The newest statement has been added: the oldest of this client make room for it. False: it is too big even alone.
bool Client::make_room() {
  const config::Settings& s = env_->settings();
  const auto names = static_cast<std::size_t>(s.max_client_prepared_statements);
  while (names > 0 && statements_->size() > names && statements_->forget_oldest()) continue;
  const auto bytes = static_cast<std::size_t>(s.max_prepared_statement_memory);
  std::size_t leaving = 0;  // let go of when the server has confirmed its Close
  auto full = [&] { return bytes > 0 && env_->shared.statements.bytes() - leaving > bytes; };
  while (full() && statements_->forget_oldest()) continue;
  if (!full()) return true;
  // What only this server still knows goes too.
  std::string& out = env_->scratch;
  out.clear();
  while (full()) {
    wire::StatementPtr victim = server->statements().evict(0);
    if (!victim) break;
    wire::close_statement(out, victim->server_name);
    if (victim.use_count() == 1) leaving += victim->tail.size();
    server->owed().push(Ask::close, Give::skip, std::move(victim));
  }
  server->stream->send(as_bytes(out));
  return !full();
}

// --- the unnamed statement: it is the client's, though its Parse went to a server that others use too

void Client::remember_unnamed(std::string_view tail) {
  ++unnamed_number_;
  if (tail.empty()) {
    unnamed_.reset();
  } else if (unnamed_) {
    unnamed_->assign(tail);
  } else {
    unnamed_ = std::make_unique<std::string>(tail);
  }
  server->set_unnamed({id, unnamed_number_});
}

void Client::forget_unnamed() {
  ++unnamed_number_;
  if (!unnamed_) return;
  if (unnamed_->capacity() > 1024)
    unnamed_.reset();
  else
    unnamed_->clear();
}

// Sees to it that the server's unnamed statement is this client's. False: this client has none.
bool Client::use_unnamed() {
  if (server->unnamed() == Server::Unnamed{id, unnamed_number_}) return true;
  if (!unnamed_ || unnamed_->empty()) return false;
  std::string& out = env_->scratch;
  out.clear();
  wire::parse(out, "", *unnamed_);
  server->stream->send(as_bytes(out));
  server->owed().push(Ask::parse, Give::skip);
  server->set_unnamed({id, unnamed_number_});
  return true;
}

// --- "cached plan must not change result type": a batch that is known whole, has had no answer yet and asks what its
// rows look like is said again with fresh plans. One that does not ask would get rows of a shape that it does not
// expect.

void Client::begin_batch() {
  if (batch_ || replaying_ || server->status() != 'I' || !server->owed().empty()) return;
  batch_ = env_->take_buffer();
  batch_describes_ = batch_complete_ = false;
}

void Client::note_for_replay(std::uint8_t type) {
  // Not with a Flush: its client may wait for the error, which is kept back, before it says Sync.
  if (batch_complete_ || !(type == 'B' || type == 'D' || type == 'E' || type == 'S')) return answered();
  batch_describes_ |= type == 'D';
  batch_complete_ = type == 'S';
}

void Client::keep_for_replay(Bytes part) {
  if (batch_->size() + part.size() > kMaxReplay) return answered();
  batch_->append(as_text(part));
}

void Client::answered() {
  if (batch_) env_->give_buffer(std::move(batch_));
}

bool Client::replay() {
  if (!batch_ || !batch_complete_ || !batch_describes_ || body_left_ || phase_ != Phase::active) return false;
  log(LogLevel::debug, "cached plan changed its result type: prepared again");
  std::unique_ptr<std::string> batch = std::move(batch_);
  replaying_ = true;
  consume_ready({as_bytes(*batch), nullptr});
  replaying_ = false;
  env_->give_buffer(std::move(batch));
  return true;
}

// DEALLOCATE of a name that was prepared by the protocol: said with the server's name, and forgotten when it succeeds.
bool Client::deallocate(Bytes sql) {
  if (sql.empty() || sql.back() != 0) return false;
  const auto [all, name] = wire::forgotten_by(as_text(sql.first(sql.size() - 1)));
  if (all) server->expect_forgetting();
  wire::StatementPtr statement = name.empty() || !statements_ ? nullptr : statements_->find(name);
  if (!statement) return false;
  if (!server->statements().ready(*statement, plan_epoch(), server->owed().batch()))
    ensure_prepared(statement, Give::skip, {});
  std::string& out = env_->scratch;
  out.clear();
  wire::query(out, fmt::format("DEALLOCATE \"{}\"", statement->server_name));
  server->stream->send(as_bytes(out));
  server->owed().push(Ask::query, Give::forward, std::move(statement), name);
  return true;
}

void Client::deallocated(std::string_view name, const wire::Statement& statement) {
  wire::StatementPtr mine = statements_ ? statements_->find(name) : nullptr;
  if (mine && mine->id == statement.id) statements_->remove(name);
}

Client::Step Client::close_statement(std::string_view name) {
  wire::StatementPtr statement = statements_ ? statements_->find(name) : nullptr;
  if (statement) statements_->remove(name);
  // One that PostgreSQL never had does not come back if this Close is skipped.
  if (!unproven_.empty() && unproven_.erase(std::string(name))) statement = nullptr;
  server->owed().push(Ask::close, Give::fake, std::move(statement), name);
  server->emit_fakes();
  return Step::done;
}

void Client::parameters_set() {
  phase_ = Phase::active;
  consume_held();
  if (server && !query_start_) server->not_needed();  // its request was cancelled meanwhile
}

void Client::unlinked() {
  answered();
  server = nullptr;
  phase_ = Phase::idle;
}

void Client::after_release() {
  if (phase_ != Phase::idle || !paused_) return;
  paused_ = false;
  if (held_) consume_held();
  if (phase_ != Phase::dead && !paused_) read_on();
}

// The client waits for a server, or for its parameters there, and somebody cancels it: it gets what PostgreSQL would
// say, its request (all up to the point where PostgreSQL would answer with ReadyForQuery) is dropped, its place in the
// queue is free.
void Client::cancel_in_queue() {
  if ((phase_ != Phase::waiting && phase_ != Phase::setting) || !held_) return;
  Bytes bytes = as_bytes(*held_);
  std::size_t at = 0;
  bool answered = false;
  while (bytes.size() - at >= 5 && !answered) {
    std::size_t total = 1 + std::size_t{load_be32(bytes.data() + at + 1)};
    if (bytes.size() - at < total) return;  // not all here yet: the query has not begun, and will run
    std::uint8_t type = bytes[at];
    answered = type == 'Q' || type == 'S' || type == 'F';
    at += total;
  }
  if (!answered) return;
  held_->erase(0, at);
  if (phase_ == Phase::waiting) {
    note_unfinished();
    pool->leave_queue(*this);
    pool->clients.push_back(this);
    phase_ = Phase::idle;
  }
  query_start_ = xact_start_ = 0;
  std::string out;
  wire::error(out, "ERROR", say::cancelled.sqlstate, say::cancelled.text);
  wire::ready_for_query(out, 'I');
  stream->send(as_bytes(out));
  if (phase_ == Phase::idle) consume_held();
}

void Client::drop_statement(std::string_view name, const wire::Statement& statement) {
  if (!statements_) return;
  wire::StatementPtr mine = statements_->find(name);
  if (mine && mine->id == statement.id) unproven_.emplace(name);
}

void Client::restore_statement(std::string_view name, const wire::StatementPtr& statement) {
  if (!statements_) return;
  // Another one of that name, said behind the Close, was skipped with it.
  if (!unproven_.empty() && unproven_.erase(std::string(name))) statements_->remove(name);
  statements_->add(name, statement);
}

}  // namespace pgf::session
