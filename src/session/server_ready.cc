// HOT PATH: from a server's bytes to its client's send queue, and the decision when the server is free.
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

// Errors up to here are looked into before they are passed on; of a longer one that much is waited for, or a FATAL that
// comes in pieces would not be seen for what it is.
static constexpr std::size_t kMaxPlanError = 8 * 1024;

// What a server may say without having been asked: NoticeResponse, NotificationResponse, ParameterStatus.
static bool unasked(std::uint8_t type) { return type == 'N' || type == 'A' || type == 'S'; }

bool Server::busy() const {
  return phase_ == Phase::login || phase_ == Phase::connect_query || phase_ == Phase::setting ||
         phase_ == Phase::active || phase_ == Phase::lookup || phase_ == Phase::resetting || phase_ == Phase::checking;
}

void Server::on_bytes(net::Stream&, const net::Received& received) {
  if (phase_ == Phase::closing) return stream->arm();  // whatever it says, it is on its way out
  request_time = env().now();
  const bool was_moving = phase_ == Phase::moving;
  if (phase_ == Phase::active && !held_) {
    std::size_t used = relay(received);
    if (ended()) return;
    if (used < received.bytes.size()) {
      held_ = env().take_buffer();
      held_->append(as_text(received.bytes.subspan(used)));
    }
  } else {
    if (!held_) held_ = env().take_buffer();
    held_->append(as_text(received.bytes));
    std::unique_ptr<std::string> bytes = std::move(held_);
    std::size_t used = 0;
    while (used < bytes->size()) {
      Bytes rest = as_bytes(*bytes).subspan(used);
      Phase before = phase_;
      std::size_t n = phase_ == Phase::login    ? consume_login(rest)
                      : phase_ == Phase::active ? relay({rest, nullptr})
                                                : own_answer(rest);
      used += n;
      if (ended() || (n == 0 && phase_ == before)) break;
    }
    if (ended() || used == bytes->size()) {
      env().give_buffer(std::move(bytes));
    } else {
      bytes->erase(0, used);
      held_ = std::move(bytes);
    }
    if (ended()) return;
  }
  if (release_) maybe_release();
  if (offer_) settle();
  if (was_moving && phase_ == Phase::moving) {  // what came called the move off (Stream::detach)
    if (held_) return disconnect("idle server got dirty");
    pool->unlist(*this);
    return pool->offer(*this);
  }
  if (ended() || !stream) return;
  // One delivery at a time: the next one is asked for when the client can take it.
  if (client && phase_ == Phase::active && client->stream->queued() >= net::Stream::kHighMark)
    client->stream->want_drained();
  else if (busy() && !(env().freezing && freeze()))
    stream->arm();
}

bool Server::freeze() {
  if (!stream || phase_ == Phase::being_canceled || phase_ == Phase::closing) return true;
  // What the pooler itself has begun ends soon; a client's query may take hours, but not half a message.
  if ((phase_ != Phase::active && phase_ != Phase::idle) || mid_message()) return false;
  stream->pause();
  if (stream->tls()) return stream->queued() == 0;
  if (!parked_) stream->detach();  // as in Client::freeze()
  return parked_ && stream->queued() == 0;
}

void Server::thaw() {
  parked_ = false;
  if (stream && busy()) stream->arm();
}

std::size_t Server::relay(const net::Received& received) {
  const std::uint8_t* bytes = received.bytes.data();
  const std::size_t size = received.bytes.size();
  std::size_t at = 0, run = 0;
  auto flush = [&] {
    if (at > run) {
      client->answered();
      pool->counters.sent += at - run;
      client->stream->forward(received, received.bytes.subspan(run, at - run));
    }
    run = at;
  };

  while (at < size) {
    if (body_left_) {
      std::size_t n = std::min<std::size_t>(body_left_, size - at);
      if (skip_body_) {
        flush();
        run = at + n;
      }
      at += n;
      body_left_ -= static_cast<std::uint32_t>(n);
      if (body_left_) break;
    } else {
      if (size - at < 5) break;
      const std::uint8_t type = bytes[at];
      const std::uint32_t length = load_be32(bytes + at + 1);
      const wire::Rule rule = wire::kFromServer[type];
      if (length < 4 || length > 0x7fffffff || rule == wire::Rule::reject) {
        flush();
        disconnect(rule == wire::Rule::reject ? "unknown pkt from server" : "bad pkt header");
        return size;
      }
      const std::size_t total = 1 + std::size_t{length}, there = size - at;
      if (rule == wire::Rule::whole && there < total) {
        if (total <= wire::kWholeLimit) break;
        flush();
        disconnect("bad pkt header");
        return size;
      }
      if (release_ && owed_.empty() && sharing() && !unasked(type)) {
        flush();
        drop_dirty();
        return size;
      }
      skip_body_ = false;
      const std::size_t n = std::min(there, total);
      if (type != 'D' && type != 'd') {
        Bytes body = received.bytes.subspan(at + 5, n - 5);
        if (type == 'Z') {
          if (total != 6 || (body[0] != 'I' && body[0] != 'T' && body[0] != 'E')) {
            flush();
            disconnect("bad pkt header");
            return size;
          }
          at += n;
          if (body[0] != 'I' && pool_mode() == config::PoolMode::statement) {
            at -= n;
            flush();
            Client* c = std::exchange(client, nullptr);
            c->server_lost(say::statement_mode);
            disconnect(say::statement_mode.text);
            return size;
          }
          if (!plan_error_.empty()) {
            at -= n;
            flush();
            at += n;
            if (said_again(static_cast<char>(body[0]))) {
              run = at;
              continue;
            }
          } else {
            ready_for_client(static_cast<char>(body[0]));
          }
          if (!owed_.empty() && owed_.front().give == Give::fake) {
            flush();
            emit_fakes();
          }
          continue;
        }
        if (type == 'S' && !parameter_status(body)) {
          flush();
          disconnect("broken ParameterStatus packet");
          return size;
        }
        if (type == 'E') {
          if (there < std::min(total, kMaxPlanError)) break;
          if (total <= kMaxPlanError && plan_failed(body)) {
            flush();
            plan_error_.assign(as_text(received.bytes.subspan(at, total)));
            error_pending_ = true;
            at += total;
            run = at;
            continue;
          }
        }
        if (completed(type, body)) {
          flush();
          skip_body_ = true;
        }
      }
      if (skip_body_) run = at + n;
      at += n;
      body_left_ = static_cast<std::uint32_t>(total - n);
      if (body_left_) break;
    }
    // A message is complete: made-up answers that follow it have their place here.
    if (popped_ && !error_pending_) {
      popped_ = false;
      if (!owed_.empty() && owed_.front().give == Give::fake) {
        flush();
        emit_fakes();
      }
    }
  }
  flush();
  return at;
}

// Any message but DataRow, CopyData and ReadyForQuery.
bool Server::completed(std::uint8_t type, Bytes body) {
  bool swallow = false;
  if (owed_.completes_front(type)) {
    if (type == '1' && owed_.front().statement && owed_.front().give != Give::fake)
      statements().confirm(*owed_.front().statement);
    swallow = owed_.drop_front() == Give::skip;
    if (!copy_in_) owed_.drop_copy_ends();
    popped_ = true;
  }
  switch (type) {
    case 'E':
      error_pending_ = true;
      if (pool->entry().target_session_attrs != config::TargetSession::any) note_error(body);
      if (body.size() > 6 && (as_text(body).starts_with("SFATAL") || as_text(body).starts_with("SPANIC")))
        fatal_seen_ = true;
      if (copy_in_) {
        copy_in_ = false;
        // Which of the queued Syncs the server read while it was copying cannot be known from here; the count of its
        // answers to come may be off by one. Whoever comes next must not pay for it: this connection is not used again.
        if (owed_.sync_inside_copy()) close_needed = true;
        owed_.leave_copy();
      }
      // Now, not at the ReadyForQuery: the client may read the error, and say it again, before that comes.
      owed_.skip_after_error([this](wire::Owed::Entry& e) { undo(e); });
      break;
    case 'C': {
      std::string_view tag = as_text(body);
      tag = tag.substr(0, tag.find('\0'));
      command_tag(tag);
      if (tag == "DEALLOCATE" && !owed_.empty() && owed_.front().ask == Ask::query && owed_.front().statement) {
        statements().remove(*owed_.front().statement);
        client->deallocated(owed_.front().name, *owed_.front().statement);
      }
      if (copy_in_) {
        copy_in_ = false;
        owed_.leave_copy();
      }
      break;
    }
    case 'G':
    case 'W':
      copy_in_ = true;
      break;
    default:
      break;
  }
  return swallow;
}

void Server::command_tag(std::string_view tag) {
  if (tag != "DEALLOCATE ALL" && tag != "DISCARD ALL") return;
  if (forgetting_ > 0) --forgetting_;
  if (statements_) statements_->clear();
  if (client) client->forget_statements();
  // What was parsed behind it, in the same breath, is still to come.
  owed_.each_behind_front([this](wire::Owed::Entry& e) {
    if (e.ask == Ask::close) e.statement = nullptr;  // nothing to bring back if it is skipped
    if (e.ask != Ask::parse || !e.statement) return;
    if (e.give != Give::fake) statements().add(e.statement, pool->shared.database.plan_epoch.load());
    if (client && !e.name.empty()) client->restore_statement(e.name, e.statement);
  });
}

bool Server::parameter_status(Bytes body) {
  auto status = wire::read_parameter_status(body);
  if (!status) return false;
  note_parameter(status->name, status->value);
  int index = env().shared.names.find(status->name);
  if (index < 0) return true;
  params_.set(index, status->value);
  if (client && phase_ != Phase::lookup) client->mutable_params().set(index, params_.get(index));
  return true;
}

void Server::emit_fakes() {
  if (body_left_ || error_pending_ || !client) return;
  std::string out;
  while (!owed_.empty() && owed_.front().give == Give::fake) {
    if (owed_.front().ask == Ask::parse)
      wire::parse_complete(out);
    else
      wire::close_complete(out);
    owed_.drop_front();
  }
  if (out.empty()) return;
  client->answered();
  client->stream->send(as_bytes(out));
}

// "cached plan must not change result type": all plans of this database are stale from now on. True if the client's
// batch may be said again, which is decided when the server is ready.
bool Server::plan_failed(Bytes body) {
  if (wire::read_error(body).sqlstate != "0A000" ||
      as_text(body).find("RRevalidateCachedQuery") == std::string_view::npos)
    return false;
  auto& epoch = pool->shared.database.plan_epoch;
  std::uint32_t now = epoch.load(std::memory_order_relaxed);
  const wire::StatementPtr& statement = owed_.empty() ? nullptr : owed_.front().statement;
  if (!statement || statements().ready(*statement, now)) epoch.compare_exchange_strong(now, now + 1);
  return client->unanswered() && status_ == 'I' && !error_pending_;
}

// ReadyForQuery after an error that was kept back. True: the batch goes to the server again, the client hears nothing.
bool Server::said_again(char status) {
  std::string error = std::exchange(plan_error_, {});
  owed_.drop_through_ready([this](wire::Owed::Entry& e) { undo(e); });
  error_pending_ = false;
  if (status == 'I' && owed_.empty() && client->replay()) return true;
  client->answered();
  client->stream->send(as_bytes(error));
  finish_ready(status);
  return false;
}

// An entry that the server skipped after an error: as if it had never been said.
void Server::undo(wire::Owed::Entry& e) {
  if (!e.statement) {
    // The unnamed one: whatever the server has now, it is not the client's. Unless the client has said another since.
    if (e.ask == Ask::parse && !owed_.holds_unnamed_parse()) {
      unnamed_ = {};
      if (client && e.give == Give::forward) client->forget_unnamed();
    }
    return;
  }
  bool at_client = client && !e.name.empty();
  if (e.ask == Ask::parse) {
    // Unless it was said again behind the Sync.
    if (e.give != Give::fake && !owed_.settles(Ask::parse, *e.statement)) statements().remove(*e.statement);
    if (at_client) client->drop_statement(e.name, *e.statement);
  } else if (e.ask == Ask::close) {
    if (e.give == Give::skip)
      statements().add(e.statement);
    else if (at_client)
      client->restore_statement(e.name, e.statement);
  }
}

void Server::ready_for_client(char status) {
  if (owed_.completes_front('Z') && !error_pending_) {
    owed_.drop_front();
  } else {
    owed_.drop_through_ready([this](wire::Owed::Entry& e) { undo(e); });
  }
  owed_.drop_copy_ends();
  error_pending_ = false;
  finish_ready(status);
}

void Server::finish_ready(char status) {
  status_ = status;
  client->ready_for_query(status, owed_.empty());
  release_ = status == 'I' && owed_.empty() && !copy_in_;
  if (owed_.empty()) forgetting_ = 0;
}

void Server::maybe_release() {
  if (!release_) return;
  if (phase_ == Phase::lookup) return lookup_done();
  if (phase_ != Phase::active || status_ != 'I' || !owed_.empty() || copy_in_) {
    release_ = false;
    return;
  }
  if (held_ && sharing() && !unasked(static_cast<std::uint8_t>(held_->front()))) return drop_dirty();
  // Not with half a message of the client in front of the server, nor half of the server's unread.
  if (body_left_ || (held_ && !held_->empty()) || client->body_left()) return;
  release_ = false;
  if (!sharing()) return;
  release();
}

bool Server::sharing() const { return pool_mode() != config::PoolMode::session; }

// The client has all its answers, and the server says more than that: nobody may get this connection again.
void Server::drop_dirty() {
  release_ = false;
  Client* c = std::exchange(client, nullptr);
  c->unlinked();
  disconnect("idle server got dirty");
  c->after_release();
}

void Server::not_needed() {
  if (phase_ == Phase::active && owed_.empty() && status_ == 'I') release_ = true;
}

// Answers to the pooler's own statements (SETs, reset, check, connect_query) and whatever an idle server says.
std::size_t Server::own_answer(Bytes bytes) {
  if (bytes.size() < 5) return 0;
  const std::uint8_t type = bytes[0];
  const std::uint32_t length = load_be32(bytes.data() + 1);
  if (length < 4 || length > wire::kWholeLimit * 16 || wire::kFromServer[type] == wire::Rule::reject) {
    disconnect(length < 4 ? "bad pkt header" : "unknown pkt from server");
    return bytes.size();
  }
  const std::size_t total = 1 + std::size_t{length};
  if (bytes.size() < total) return 0;
  Bytes body = bytes.subspan(5, length - 4);

  if (offer_ || release_ || phase_ == Phase::idle || phase_ == Phase::being_canceled || phase_ == Phase::moving) {
    if (type == 'A') {
      log(LogLevel::warning, "got packet 'A' from server when not linked");
      return total;
    }
    disconnect(type == 'E' ? std::string(wire::read_error(body).message) : "idle server got dirty");
    return bytes.size();
  }
  if (phase_ == Phase::lookup) {
    lookup_answer(type, body);
    return total;
  }
  switch (type) {
    case 'S':
      if (!parameter_status(body)) {
        disconnect("broken ParameterStatus packet");
        return bytes.size();
      }
      break;
    case 'E': {
      wire::ErrorFields e = wire::read_error(body);
      own_error_ = true;
      own_error_text_ = fmt::format("{}: {}", e.severity, e.message);
      break;
    }
    case 'C': {
      std::string_view tag = as_text(body);
      command_tag(tag.substr(0, tag.find('\0')));
      break;
    }
    case 'Z':
      if (body.size() != 1) {
        disconnect("bad pkt header");
        return bytes.size();
      }
      own_ready(static_cast<char>(body[0]));
      break;
    case 'D':
      if (asking_role_) role_answer(body);
      break;
    default:
      break;
  }
  return total;
}

// The server calls some values by another name ("ISO" is "ISO, MDY"): from here on the client does too, or it would
// have to be set again each time.
void Server::take_canonical() {
  for (int i = 0; i < params_.size(); ++i) {
    const auto &mine = params_.get(i), &theirs = client->params().get(i);
    if (!mine || !theirs || *mine == *theirs) continue;
    log(LogLevel::debug, fmt::format("varcache_set_canonical: setting {} to its canonical version {} -> {}",
                                     env().shared.names.name(i), *theirs, *mine));
    client->mutable_params().set(i, mine);
  }
}

void Server::own_ready(char status) {
  status_ = status;
  bool failed = std::exchange(own_error_, false);
  switch (phase_) {
    case Phase::setting: {
      if (failed || status != 'I') {
        log(LogLevel::error, fmt::format("varcache_apply failed: {}", own_error_text_));
        Client* c = std::exchange(client, nullptr);
        c->server_lost(say::bad_parameter);
        return disconnect(say::bad_parameter.text);
      }
      phase_ = Phase::active;
      take_canonical();
      client->parameters_set();
      return;
    }
    case Phase::connect_query:
      if (std::exchange(asking_role_, false)) {
        role_asked_ = true;
        if (failed) return login_failed("", "role query failed", false);
        return role_settled();
      }
      if (failed) log(LogLevel::error, fmt::format("error while executing exec_on_query: {}", own_error_text_));
      if (status != 'I') return disconnect("connect_query left a transaction open");
      return login_complete();
    case Phase::resetting:
      // What was to be reset is still there. (PgBouncer ignores errors of the reset query, so that a statement_timeout
      // of the last client was enough to hand its role on to the next.)
      if (failed || status != 'I')
        return disconnect(failed ? "reset query failed: " + own_error_text_ : "reset query failed");
      offer_ = true;
      return;
    case Phase::checking:
      asking_role_ = false;
      if (failed || status != 'I') return disconnect("test query failed");
      offer_ = true;
      return;
    default:
      return disconnect("idle server got dirty");
  }
}

}  // namespace pgf::session
