// log_slow_wait, log_slow_login, log_slow_transaction: who, in which pool, on which worker, and how long in each state;
// and the waits that are kept for who asks.
#include <fmt/format.h>

#include "session/client_login.h"
#include "session/pool.h"

namespace pgf::session {
namespace {

double seconds(Usec time) { return static_cast<double>(time) / kSecond; }
bool is_slow(Usec took, Usec limit) { return limit > 0 && took >= limit; }

}  // namespace

void Client::note_wait(Usec waited) {
  xact_waited_ += waited;
  wait_over(waited, false);
}

void Client::wait_over(Usec waited, bool in_vain) {
  const Usec limit = env_->settings().log_slow_wait;
  if (waited < (limit > 0 ? limit : SlowWaits::kLong)) return;
  if (env_->slow_waits.wants_one(env_->now())) keep_wait(waited, in_vain);
  if (limit > 0) tell_wait(waited, in_vain);
}

void Client::note_login() {
  const Usec took = env_->now() - connect_time;
  if (is_slow(took, env_->settings().log_slow_login)) tell_login(took, false);
}

void Client::note_unfinished() {
  const config::Settings& s = env_->settings();
  const Usec now = env_->now();
  const bool waits = phase_ == Phase::waiting || phase_ == Phase::lookup_wait;
  if (waits) wait_over(now - queued_at, true);
  if (login_ && !login_->console && is_slow(now - connect_time, s.log_slow_login)) tell_login(now - connect_time, true);
  const bool stream_of_wal = replication != wire::Replication::none;  // takes as long as it takes
  if (xact_start_ && !waits && !stream_of_wal && is_slow(now - xact_start_, s.log_slow_transaction))
    tell_transaction(now - xact_start_, true);
}

void Client::keep_wait(Usec waited, bool in_vain) {
  const int app = env_->shared.names.find("application_name");
  const std::string* name = params().size() > app ? params().get(app).get() : nullptr;
  env_->slow_waits.add({env_->now(), waited, in_vain, pool->shared.database.name, pool->server_user(),
                        pool->shared.servers.value(), pool->policy().pool_size, id, address(), port(),
                        name ? *name : ""});
}

void Client::tell_wait(Usec waited, bool in_vain) {
  if (!env_->slow_lines.take(env_->now())) return;
  const std::string &db = pool->shared.database.name, &who = pool->server_user();
  const int open = pool->shared.servers.value(), size = pool->policy().pool_size;
  const LogField fields[] = {{"event", "slow_wait"}, {"outcome", in_vain ? "none" : "served"},
                             {"waited_us", waited},  {"pool_database", db},
                             {"pool_user", who},     {"pool_servers", open},
                             {"pool_size", size}};
  log(LogLevel::log,
      fmt::format("slow wait: {:.3f} s for a server of pool {}/{}{}; worker {}, servers {} of {}", seconds(waited), db,
                  who, in_vain ? ", in vain" : "", env_->worker, open, size > 0 ? std::to_string(size) : "any number"),
      fields);
}

void Client::tell_login(Usec took, bool failed) {
  if (!env_->slow_lines.take(env_->now())) return;
  const Login& l = *login_;
  const Usec authentication = l.authenticated ? l.authenticated - connect_time : took;
  // What it was in the middle of, if it failed.
  const bool looking_up = phase_ == Phase::lookup || phase_ == Phase::lookup_wait;
  const Usec lookup = looking_up ? env_->now() - l.asked : l.lookup_time;
  const Usec judge = phase_ == Phase::judgement ? env_->now() - l.asked : l.judge_time;
  const LogField fields[] = {{"event", "slow_login"},
                             {"outcome", failed ? "failed" : "done"},
                             {"total_us", took},
                             {"authentication_us", authentication},
                             {"auth_query_us", lookup},
                             {"judge_us", judge},
                             {"server_us", took - authentication}};
  log(LogLevel::log,
      fmt::format(
          "slow login: {:.3f} s{}: authentication {:.3f} s (auth_query {:.3f} s, PAM or LDAP {:.3f} s), waiting "
          "for a server {:.3f} s; worker {}",
          seconds(took), failed ? ", failed" : "", seconds(authentication), seconds(lookup), seconds(judge),
          seconds(took - authentication), env_->worker),
      fields);
}

void Client::tell_transaction(Usec took, bool broken_off) {
  if (!env_->slow_lines.take(env_->now())) return;
  const std::string &db = pool->shared.database.name, &who = pool->server_user();
  // A request that is still being answered began at query_start_.
  const Usec asking = xact_asking_ + (query_start_ ? env_->now() - query_start_ : 0);
  const Usec at_server = std::max<Usec>(asking - xact_waited_, 0), idle = std::max<Usec>(took - asking, 0);
  const std::string where = server ? server->peer_text() : "";
  std::vector<LogField> fields{{"event", "slow_transaction"},
                               {"outcome", broken_off ? "broken off" : "done"},
                               {"total_us", took},
                               {"waited_us", xact_waited_},
                               {"server_us", at_server},
                               {"idle_us", idle},
                               {"pool_database", db},
                               {"pool_user", who}};
  if (server) fields.push_back({"server_address", where});
  log(LogLevel::log,
      fmt::format(
          "slow transaction: {:.3f} s{}: waiting for a server {:.3f} s, the server at work {:.3f} s, the client "
          "between its requests {:.3f} s; pool {}/{}, worker {}{}",
          seconds(took), broken_off ? ", broken off" : "", seconds(xact_waited_), seconds(at_server), seconds(idle), db,
          who, env_->worker, server ? ", server " + where : ""),
      fields);
}

}  // namespace pgf::session
