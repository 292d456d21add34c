#pragma once
// A client: one session with the pooler, from its startup packet to its end, with a random script. It knows what each
// answer has to be, and whose.
#include <deque>
#include <map>
#include <set>

#include "model.h"
#include "pg_server.h"

namespace pgf::sim {

struct ClientRules {  // of a run
  bool calm = true;   // no faults: nothing may go wrong that the client did not ask for
  bool session_mode = false, statement_mode = false;
  bool named_statements = false;  // may be used: the pooler, or the session, keeps them
  bool big_answers = false;
  bool administration = false;  // PAUSE, KILL and the like: ends that nobody else asked for
  int first_pooler = 0;
  std::size_t poolers = 1;  // one address behind the other; a cancel request takes any of them
  std::vector<std::string> databases, users;
  Usec longest_thought = 50'000;
  std::size_t requests = 8;
  bool leaves_rudely = true;
  bool may_be_dropped = false;            // SUSPEND has lasted for suspend_timeout
  std::size_t answered = 0, refused = 0;  // counted
};

class PgClient final : public Actor {
 public:
  PgClient(Network& network, Random& random, Trace& trace, ClientRules& rules, std::uint64_t number);
  void use(const PgServer& ledger) { ledger_ = &ledger; }

  bool ready() const override;
  void step() override;
  Usec next_time() const override;
  bool over() const override { return phase_ == Phase::over && !cancel_.alive(); }

  std::uint64_t number() const { return number_; }
  const std::string& database() const { return database_; }
  bool cancelling() const { return cancels_open_ > 0 || sloppy_; }
  bool waiting() const { return phase_ != Phase::over && !requests_.empty(); }
  std::string story() const;  // for a report

 private:
  enum class Phase : std::uint8_t { login, ready, leaving, over };
  enum class Kind : std::uint8_t {
    rows,
    write,
    fail,
    set,
    begin,
    commit,
    rollback,
    copy_in,
    copy_out,
    forget_all,  // statements
    parse,
    bind,
    describe_statement,
    describe_portal,
    close,
    sync,  // messages
  };
  struct Step {
    Kind kind;
    std::uint64_t serial = 0, id = 0, rows = 0, seen = 0;
    bool described = true;  // rows: a RowDescription comes first
    bool prepared = false;
    std::string name = {};  // parse, close: of the statement; set: the parameter
    std::string value = {};
  };
  struct Request {
    bool simple;
    bool failed = false;
    std::deque<Step> steps = {};
  };

  // What to do.
  void think();
  void ask();
  void simple_request();
  void extended_request();
  Step statement(std::string& sql, bool in_batch);
  void parse(Request& r, std::string_view name, std::string_view sql);
  void bind(Request& r, std::string_view name, std::uint64_t serial);
  void message(char type, std::string_view body);
  void ask_for_cancel();
  void leave();
  void go();  // over
  // What is answered.
  void hear(char type, Bytes body);
  void hear_login(char type, Bytes body);
  void error(Bytes body);
  void row(Bytes body, Step& step);
  void ready_for_query(char status);
  void finish(Step& step);
  void parameter(Bytes body);
  [[noreturn]] void wrong(std::string_view what) const;
  Step& front(char type);

  Network& network_;
  Random& random_;
  Trace& trace_;
  ClientRules& rules_;
  const PgServer* ledger_ = nullptr;
  const std::uint64_t number_;
  std::string database_, user_;
  Talk talk_, cancel_;
  Phase phase_ = Phase::login;
  Params view_;    // what we were told is in force
  Params wanted_;  // what we asked for at login; empty: nothing
  std::string key_;
  char status_ = 'I';  // after the answers so far
  char plan_ = 'I';    // after all that was asked, if nothing goes wrong
  std::uint64_t serial_ = 0;
  std::deque<Request> requests_;
  std::map<std::string, std::uint64_t> names_;  // statements that we know to be there: name, id
  std::set<std::string> unclear_;               // asked for, closed or lost, and not known which
  std::optional<std::uint64_t> unnamed_;        // id of the unnamed one
  std::string copy_data_;                       // when the server wants it
  std::size_t left_;                            // requests to come
  std::set<std::uint64_t> written_;
  Usec think_until_ = 0, read_after_ = 0;
  int cancels_open_ = 0;
  bool cancel_possible_ = false, sloppy_ = false, fatal_ = false, cancel_sent_ = false;
  std::string last_words_;
};

}  // namespace pgf::sim
