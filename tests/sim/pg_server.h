#pragma once
// A PostgreSQL: backends that speak enough of the protocol, transactions, prepared statements, tracked parameters,
// COPY, cancel requests. It checks what only a server can see: whose statements run in whose transaction, that nothing
// is done twice, and whom a cancel request hits.
#include <deque>
#include <map>
#include <memory>
#include <set>

#include "model.h"

namespace pgf::sim {

struct ServerRules {  // of a run
  bool session_mode = false;
  bool faults = false;
  std::size_t slow_percent = 10;  // statements that take their time
  Usec slowest = kSecond;
};

class PgServer;

class Backend final : public Actor {
 public:
  Backend(PgServer& server, End end);
  bool ready() const override;
  void step() override;
  Usec next_time() const override;
  bool over() const override { return phase_ == Phase::over; }

  // Faults.
  void vanish();       // its process is gone
  void say_goodbye();  // 57P01, and gone
  void hang(Usec until) { busy_until_ = std::max(busy_until_, until); }

  std::uint32_t pid() const { return pid_; }
  const std::string& secret() const { return secret_; }
  bool serving() const { return phase_ == Phase::ready || phase_ == Phase::copy; }
  void cancel();
  End end() const { return talk_.end(); }

 private:
  enum class Phase : std::uint8_t { startup, login, ready, copy, over };
  struct Portal {
    std::string sql;
    std::uint64_t client = 0, serial = 0;
  };
  enum class Outcome : std::uint8_t { done, failed, copying };

  void message(char type, Bytes body);
  void startup(Bytes body);
  void finish_login();
  void cancel_request(Bytes key);
  void extended(char type, Bytes body);
  void bind(Bytes body);
  void describe(Bytes body);
  void run_next();
  Outcome run(std::string_view sql, std::uint64_t client, std::uint64_t serial, bool simple);
  Outcome run_own(std::string_view sql);
  Outcome forget(std::string_view sql);
  void copy_message(char type, Bytes body);
  void copy_failed(std::string_view sqlstate, std::string_view reason);
  void set(int parameter, std::string_view value);
  void begin_implicit();
  void commit();
  void roll_back();
  void error(std::string_view sqlstate, std::string_view text);
  void statement_error(std::string_view sqlstate, std::uint64_t client, std::uint64_t serial, std::string_view reason);
  void complete(std::string_view tag);
  void ready_for_query();
  void belongs_to(std::uint64_t client);  // this session, transaction and batch
  void end();

  PgServer& server_;
  Talk talk_;
  Phase phase_ = Phase::startup;
  std::uint32_t pid_;
  std::string secret_, database_, user_;
  Params params_, before_;  // now, and when the transaction began
  char status_ = 'I';
  bool implicit_ = false;  // a transaction of one message or batch
  std::uint64_t transaction_of_ = 0, batch_of_ = 0, session_of_ = 0;
  std::set<std::pair<std::uint64_t, std::uint64_t>> writes_;  // of this transaction
  std::map<std::string, std::string> statements_;
  std::optional<std::string> unnamed_;
  std::map<std::string, Portal> portals_;
  bool skipping_ = false;  // after an error, to the Sync
  // At work.
  std::deque<std::string> todo_;  // statements of a simple query
  bool simple_ = false, executing_ = false, drawn_ = false, cancelled_ = false, leaving_ = false;
  Portal current_;
  Usec busy_until_ = 0;
  std::uint64_t copied_ = 0;
};

class PgServer {
 public:
  PgServer(Network& network, Random& random, Trace& trace, int address, ServerRules& rules);

  void start();  // listens
  void stop();   // the whole server is gone
  bool up() const { return up_; }

  // What clients must not lose: a change that was told to be done.
  bool committed(std::uint64_t client, std::uint64_t serial) const { return committed_.contains({client, serial}); }
  std::vector<std::unique_ptr<Backend>> backends;
  // Whether a client has a cancel request on its way now.
  std::function<bool(std::uint64_t client)> asked_for_cancel;
  std::size_t cancels_hit = 0, cancels_missed = 0, statements = 0, logins = 0;

 private:
  friend class Backend;
  Network& network_;
  Random& random_;
  Trace& trace_;
  const int address_;
  ServerRules& rules_;
  bool up_ = false;
  std::uint32_t next_pid_ = 1000;
  std::set<std::pair<std::uint64_t, std::uint64_t>> executed_, committed_;
};

}  // namespace pgf::sim
