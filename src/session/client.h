#pragma once
// A client connection. One explicit phase at a time; enter() is the only door between phases.
#include <sys/socket.h>

#include <memory>
#include <set>
#include <string>

#include "base/list.h"
#include "session/env.h"
#include "wire/owed.h"
#include "wire/startup.h"

namespace pgf::session {

class AuthQueryReply;
struct Handed;

class Client final : public net::StreamOwner, public ListNode {
 public:
  enum class Phase : std::uint8_t {
    first,        // expects SSLRequest, GSSENCRequest, CancelRequest or StartupMessage
    lookup,       // a server runs auth_query for it
    judgement,    // its password is with PAM or LDAP
    password,     // authentication under way
    lookup_wait,  // queued for a server that runs auth_query
    welcome,      // authenticated, queued until the pool knows what a server says at login
    joining,      // the same, but until a server of its own has logged in (replication)
    idle,         // logged in, no server
    waiting,      // queued for a server
    setting,      // linked; the server is taking over this client's parameters
    active,       // linked; messages flow
    console,      // talks to the admin console
    asking,       // the console is working on a command
    cancel,       // sent a CancelRequest: stays open until that is settled
    dead,         // buried at the end of the turn
  };
  static const char* name(Phase phase);

  Client(Env& env, int fd, bool unix_socket);
  ~Client();

  void seek_place();  // one of max_client_conn; asked again while the client says nothing

  // From the engine.
  void on_bytes(net::Stream& stream, const net::Received& received) override;
  void on_closed(net::Stream& stream, int error) override;
  void on_drained(net::Stream& stream) override;
  void on_detached(int fd, std::unique_ptr<net::Tls> tls) override;

  // From the pool and the linked server.
  void write_lookup(std::string& out);  // lookup: the messages that ask for the password
  AuthQueryReply& lookup_reply();
  void looked_up();       // lookup -> password or further; the server is on its own again
  void welcome_ready();   // pool().welcome is known
  void parameters_set();  // setting -> active
  void unlinked();        // active -> idle, the server is on its own again
  void server_lost(const Say& reason, std::string_view text = {});
  void ready_for_query(char status, bool all_answered);  // statistics
  void after_release();   // unlinked and the server is placed: go on with what waited here
  void server_drained();  // the server can take more
  void joined();          // replication: our own server is logged in; joining -> active

  // Changing the worker (client_move.cc): only between two requests, owing and owed nothing.
  bool may_move() const;
  bool talked_since(Usec time) const { return spoke_ && request_time > time; }  // its login does not count
  void move_to(int worker);         // Env::ship() follows, unless the client says something or ends before
  void arrive(Pool& pool, int fd);  // on the new worker

  // SUSPEND. freeze() stops reading between two messages; true when that is so and all is sent. Consoles go on.
  bool freeze();
  void thaw();
  // Takeover (handover.cc): the row that the next process goes on from, and going on from it.
  bool hand_over(Handed& row);
  bool take_over(const Handed& row);
  void go_on();

  void judged(const std::string& reason);  // judgement -> further; no reason = the password is good

  // Ends the connection: reason goes to the log, `say` (if any) to the client first.
  void disconnect(std::string_view reason);
  void fatal(const Say& say, std::string_view text = {});
  void fatal(std::string_view sqlstate, std::string_view text, std::string_view detail = {});
  void fatal_waiting(const Say& say);          // with what is wrong with the servers, if none can be had
  void cancel_in_queue();                      // a CancelRequest for a queued client
  bool owns(const wire::SentKey& key) const;   // compared in constant time
  const std::string& startup_options() const;  // of a replication client that attaches: as it gave them
  void console_reply(std::string_view bytes, bool close);
  void cancel_settled(std::string_view reason);  // phase cancel: the request is done with

  // For timeouts, views and control.
  bool queued() const {
    return phase_ == Phase::waiting || phase_ == Phase::welcome || phase_ == Phase::joining ||
           phase_ == Phase::lookup_wait;
  }
  bool looking_up() const { return phase_ == Phase::lookup || phase_ == Phase::lookup_wait; }
  Usec query_clock() const { return query_start_ ? query_start_ : request_time; }
  Usec wait_time_at(Usec now) const { return query_start_ ? now - query_start_ : 0; }
  std::string peer_text() const;  // "HOST:PORT" as in the log
  std::string address() const;    // without port, as in SHOW CLIENTS
  int port() const;
  int unix_pid() const;  // of a client on the Unix socket, else 0
  const wire::ParamSet& params() const { return params_; }
  std::size_t statements() const { return statements_ ? statements_->size() : 0; }
  void log(LogLevel level, std::string_view text, std::span<const LogField> more = {}) const;
  void set_phase(Phase phase) { phase_ = phase; }  // by Pool, together with list membership
  void on_query_wait_notify();
  void note_wait(Usec waited);  // for a server; client_slow.cc

  Phase phase() const { return phase_; }
  Env& env() { return *env_; }
  Env* env_;
  net::Stream* stream = nullptr;
  Pool* pool = nullptr;
  Server* server = nullptr;
  pool::DatabaseShared* database = nullptr;  // counted there while set
  pool::UserShared* user = nullptr;          // likewise; the login user
  std::uint64_t id;
  std::uint32_t slot = 0;
  Usec connect_time, request_time;
  Usec queued_at = 0;  // entered the wait queue
  bool notified = false;
  bool is_admin = false, is_unix = false;
  bool counted_pool = false;  // Pool::clients includes us
  wire::CancelKey cancel_key{};
  std::unique_ptr<wire::KeyTail> key_tail;  // the rest of it, if the client speaks protocol 3.2
  bool has_key = false;
  wire::Replication replication = wire::Replication::none;

 private:
  friend class Pool;
  struct Login;  // what only a login needs; gone afterwards

  // client.cc
  std::size_t consume(const net::Received& received);
  bool wants_bytes() const;
  void hold(Bytes bytes);
  void consume_held();
  void finish();
  void bad_header(Bytes bytes);
  void read_on();
  void log_tls_error() const;

  // client_login.cc
  std::size_t consume_first(Bytes bytes);
  std::size_t consume_password(Bytes bytes);
  void start_login(Bytes body, std::uint32_t code);
  bool take_parameter(const std::string& name, const std::string& value, bool in_options);
  bool admit_console();
  bool on_console_list() const;
  void begin_authentication();
  void ask_password();
  void check_password(Bytes body);
  void authenticated();
  void enter_pool();
  void send_welcome();
  void welcome(std::string_view untracked, Phase then);
  void append_key(std::string& out) const;
  void auth_failed(const Say& say);
  std::expected<void, Say> count_client(const config::Config& config);
  std::expected<void, Say> count_user(const config::Config& config);
  config::ClientPolicy limits(const config::Config& config) const;
  void note_auto_database(const config::Database& entry, pool::DatabaseShared& shared);

  // auth_query.cc
  const std::string* auth_user() const;  // who runs auth_query for this login; null = no need
  void start_lookup(const std::string& auth_user);

  // client_identity.cc
  const auth::HbaRule* hba_rule() const;
  bool is_judged_elsewhere() const;
  void ask_judge(std::string_view password);
  bool choose_method();
  void login_as_system_user();
  void login_by_certificate();

  // client_ready.cc
  std::size_t consume_ready(const net::Received& received);
  enum class Step { plain, done, wait, stop };
  Step rewrite(std::uint8_t type, Bytes available, std::size_t total, std::size_t& used);
  Step parse_statement(Bytes body);
  Step find_at_server(std::string_view name, wire::StatementPtr& statement, std::string_view& server_name);
  Step use_statement(std::string_view name, wire::StatementPtr& statement);
  Step close_statement(std::string_view name);
  void ensure_prepared(const wire::StatementPtr& statement, wire::Give give, std::string_view client_name);
  bool sharing() const;   // servers are shared with others: transaction and statement mode
  bool tracking() const;  // ... and named statements are rewritten
  std::uint32_t plan_epoch() const;
  bool make_room();
  void remember_unnamed(std::string_view tail);
  bool use_unnamed();
  void begin_batch();
  void note_for_replay(std::uint8_t type);
  void keep_for_replay(Bytes part);
  bool deallocate(Bytes sql);
  void begin_request();
  void hold_back();

  // client_slow.cc: what took longer than its setting allows gets a line
  void note_login();
  void note_unfinished();  // the client goes: what it waited for, logged in to or was in the middle of
  void wait_over(Usec waited, bool in_vain);
  void keep_wait(Usec waited, bool in_vain);
  void tell_wait(Usec waited, bool in_vain);
  void tell_login(Usec took, bool failed);
  void tell_transaction(Usec took, bool broken_off);

  // console in client_console.cc
  std::size_t consume_console(Bytes bytes);

  Phase phase_ = Phase::first;
  bool paused_ = false;      // reading is paused because held_ or the server's queue is full
  bool admitted_ = false;    // has a place under max_client_conn
  bool cut_ = false;         // the server went with the word (Server::has_the_word): nothing readable can follow
  bool discarding_ = false;  // body_left_ is thrown away
  bool batch_describes_ = false, batch_complete_ = false;  // batch_ has a Describe, its Sync
  bool replaying_ = false;
  bool spoke_ = false;  // has asked for something
  bool frozen_ = false;
  bool parked_ = false;          // frozen, and nothing of the socket is in the engine
  std::int8_t move_to_ = -1;     // the worker that the stream is being detached for
  std::uint32_t body_left_ = 0;  // of a message whose head has been dealt with
  Usec query_start_ = 0, xact_start_ = 0;
  Usec xact_waited_ = 0, xact_asking_ = 0;  // of this transaction: for a server, and from requests to answers
  std::unique_ptr<std::string> held_;
  std::unique_ptr<Login> login_;
  std::unique_ptr<wire::ClientStatements> statements_;
  // Names whose Parse failed or was skipped after an error. They may be parsed again, as in PostgreSQL; using one sends
  // its Parse to the server once more, as PgBouncer does (psycopg counts on it in a broken pipeline).
  std::set<std::string> unproven_;
  std::unique_ptr<std::string> unnamed_;  // text, types of the last unnamed Parse; null or empty: none that is kept
  std::unique_ptr<std::string> batch_;    // what the client said since its named Bind, while nothing answered it
  std::uint32_t unnamed_number_ = 0;      // of the last unnamed Parse
  wire::ParamSet params_;
  std::unique_ptr<net::Tls> moving_tls_;  // between two engines

 public:
  Usec xact_start() const { return xact_start_; }
  Usec query_start() const { return query_start_; }
  std::uint32_t body_left() const { return body_left_; }
  wire::ParamSet& mutable_params() { return params_; }
  // A Parse that failed never was; a Close that was skipped never was.
  void drop_statement(std::string_view name, const wire::Statement& statement);
  void restore_statement(std::string_view name, const wire::StatementPtr& statement);
  void deallocated(std::string_view name, const wire::Statement& statement);
  void forget_unnamed();
  // The first answer to the batch is on its way: it cannot be said again.
  void answered();
  bool unanswered() const { return batch_ != nullptr; }  // a batch that may turn out to be one to say again
  bool replay();                                         // says the batch again; false: it cannot
  void forget_statements() {
    if (statements_) statements_->clear();
    unproven_.clear();
  }
};

}  // namespace pgf::session
