#pragma once
// A server connection. It lives on one worker at a time and may move while idle.
#include <memory>
#include <optional>
#include <string>

#include "base/list.h"
#include "net/socket.h"
#include "session/env.h"
#include "wire/owed.h"
#include "wire/startup.h"

namespace pgf::session {

struct Handed;
struct Attempt;

class Server final : public net::StreamOwner, public ListNode {
 public:
  enum class Phase : std::uint8_t {
    resolving,  // waits for the resolver
    connecting,
    login,          // startup sent
    connect_query,  // runs connect_query
    idle,
    setting,         // linked; runs the client's SETs
    active,          // linked
    lookup,          // linked; runs auth_query for a client that is logging in
    resetting,       // runs server_reset_query
    checking,        // runs server_check_query for the next waiter
    being_canceled,  // free, but a cancel aimed at it is still on its way
    moving,          // leaves for another worker
    closing,         // said goodbye; its place in the limits is free once the backend has ended
    dead,
  };
  static const char* name(Phase phase);

  Server(Pool& pool, pool::Permit permit);
  ~Server();

  void start();          // resolve, connect, log in
  void check_address();  // close_needed, if our host no longer has the address that we are connected to
  void resolved(const std::vector<net::Address>& addresses, std::string_view error);

  void on_bytes(net::Stream& stream, const net::Received& received) override;
  void on_closed(net::Stream& stream, int error) override;
  void on_drained(net::Stream& stream) override;
  void on_connected(net::Stream& stream, int error) override;
  void on_detached(int fd, std::unique_ptr<net::Tls> tls) override;
  void on_secure(net::Stream& stream) override;

  // Linking (the pool decides, link() is the only place where a client meets a server).
  void link(Client* client);
  void look_up(Client* client);        // for its auth_query only: nothing else of the client gets here
  void client_gone(bool mid_message);  // the client left (half a message sent?); decides what becomes of us
  void maybe_release();                // free now? then back to the pool
  void release();
  // SUSPEND, as for clients.
  bool freeze();
  void thaw();
  bool parked() const { return parked_; }
  bool mid_message() const { return body_left_ > 0 || held_ || !plan_error_.empty(); }  // more has to be read first
  // Takeover, as for clients. go_on() with the client that it belongs to, if any.
  bool hand_over(Handed& row);
  bool take_over(const Handed& row);
  void go_on(Client* linked);
  void not_needed();  // linked, but the client wants nothing of us after all

  // server_hosts.cc
  void look_at_login_time(Usec limit);  // gives up, if it has had its time
  bool role_fits() const;               // is its host (still) what target_session_attrs asks for?
  bool check_role_now_and_then();       // idle -> checking, if its turn has come
  bool role_stale() const {             // to be asked before its next use
    return role_doubt_ || (place_ && role_known_ != place_->doubts.load(std::memory_order_relaxed));
  }
  void ask_role_again();  // in no list -> checking
  bool asks_role() const { return asking_role_; }
  void check_place();     // close_needed, if our host is no longer in the list
  bool outdated() const;  // RECONNECT, or a changed entry
  pool::Place* place() const { return place_.get(); }
  pool::Address* health() const { return health_.get(); }
  HostTimes* times() const { return times_; }

  void run_check();                 // idle -> checking
  void move_to(int worker);         // idle -> moving; Env::ship() follows
  void arrive(Pool& pool, int fd);  // on the new worker
  void find_times();

  void disconnect(std::string_view reason);  // log line, close; a linked client is told
  void gone();                               // closing -> dead
  void cancel_finished();                    // one cancel aimed at us is over
  // Not none: it is its client's alone, from its startup packet to its end, and never pooled.
  wire::Replication replication() const { return replication_; }

  // For the relay (client side).
  wire::Owed& owed() { return owed_; }
  wire::ServerStatements& statements();
  // Whose unnamed statement this server has: the client's id and the number of its Parse. Zero: nobody's.
  struct Unnamed {
    std::uint64_t client = 0;
    std::uint32_t number = 0;
    bool operator==(const Unnamed&) const = default;
  };
  // A DEALLOCATE ALL or DISCARD ALL of the client is on its way, and what is known of this server's statements will not
  // hold behind it.
  void expect_forgetting() { ++forgetting_; }
  bool forgetting() const { return forgetting_ > 0; }
  const Unnamed& unnamed() const { return unnamed_; }
  void set_unnamed(Unnamed unnamed) { unnamed_ = unnamed; }
  bool copying() const { return copy_in_; }
  // After an error: what is said now the server drops, until there is a Sync.
  bool skipping() const { return error_pending_ && owed_.skips_what_comes(); }
  void emit_fakes();  // made-up answers whose turn has come
  // Its client can read nothing of ours now: half a message stands before it, or the server's own FATAL.
  bool has_the_word() const { return body_left_ > 0 || fatal_seen_; }
  bool unread() const { return held_ != nullptr; }  // part of a message that nobody asked for

  Phase phase() const { return phase_; }
  void set_phase(Phase phase) { phase_ = phase; }
  char status() const { return status_; }
  std::string peer_text() const;
  std::string address() const;
  int port() const;
  void log(LogLevel level, std::string_view text) const;
  Env& env() const;
  int backend_pid() const;
  Bytes backend_key() const { return as_bytes(backend_key_); }
  const net::Address& dialled() const { return address_; }
  std::string take_untracked() { return std::exchange(untracked_, {}); }
  const std::string& host() const { return host_; }
  std::size_t prepared() const { return statements_ ? statements_->size() : 0; }
  const wire::ParamSet& params() const { return params_; }

  Pool* pool;
  net::Stream* stream = nullptr;
  Client* client = nullptr;
  std::uint64_t id;
  Usec connect_time, request_time, idle_since = 0;
  Usec idle_before = 0;  // since when it was idle when it was asked what it is: that is no use of it
  std::uint32_t generation;
  bool close_needed = false;
  int cancels = 0;        // cancels aimed at us and not finished
  bool was_used = false;  // by a client, at least once

 private:
  friend class Pool;
  // server.cc
  void settle();         // the own statement is done: onwards, if nothing is left unread
  void after_session();  // reset, held back, or straight to the pool
  void dial(const net::Address& address);
  void run_own(std::string_view sql, Phase phase);
  // server_login.cc
  std::size_t consume_login(Bytes bytes);
  bool login_message(std::uint8_t type, Bytes body);
  void auth_request(Bytes body);
  void login_failed(std::string_view sqlstate, std::string_view text, bool from_server);
  void role_settled();
  void login_complete();
  void send_startup();
  std::size_t tls_answer(Bytes bytes);
  void start_tls(bool direct);
  // server_hosts.cc
  void next_address();
  void try_next(std::string_view sqlstate, std::string_view text, bool from_server);
  void attempt_over(std::string_view sqlstate, std::string_view text, bool from_server);
  std::string host_report(std::string_view reason) const;
  void note_answer();
  void note_failure(std::string_view reason);
  void note_parameter(std::string_view name, std::string_view value);
  void note_error(Bytes body);
  bool check_role();
  bool claim_writer(std::string& reason);
  void ask_role(Phase phase);
  void role_answer(Bytes body);
  void take_place(std::shared_ptr<pool::Place> place);
  void find_place();
  // replication.cc
  void serve_replication(Client& client, std::vector<std::pair<std::string, std::string>>& params);
  void replication_refused(std::string_view sqlstate, std::string_view text);
  config::PoolMode pool_mode() const;  // session for replication, whatever the pool says
  std::optional<std::string> stored_secret() const;
  // server_ready.cc
  std::size_t relay(const net::Received& received);
  bool completed(std::uint8_t type, Bytes body);  // an answer that may be owed; true = swallow it
  bool parameter_status(Bytes body);              // false: it is none
  void command_tag(std::string_view tag);
  void ready_for_client(char status);
  void finish_ready(char status);
  void undo(wire::Owed::Entry& entry);
  bool plan_failed(Bytes error);
  bool said_again(char status);
  std::size_t own_answer(Bytes bytes);  // to statements of the pooler
  void own_ready(char status);
  void take_canonical();
  // auth_query.cc
  void lookup_answer(std::uint8_t type, Bytes body);
  void lookup_done();
  bool busy() const;
  bool sharing() const;
  void drop_dirty();
  bool ended() const { return phase_ == Phase::dead || phase_ == Phase::closing; }

  Phase phase_ = Phase::resolving;
  bool login_done_ = false, connecting_flag_ = false;
  bool password_sent_ = false;  // or what proves it
  bool authenticated_ = false;  // AuthenticationOk came
  bool asked_tls_ = false;      // SSLRequest sent, its one byte of answer not here yet
  bool lost_ = false;           // the other side is gone: no goodbye
  bool copy_in_ = false;        // the server expects CopyData
  bool error_pending_ = false;  // an ErrorResponse came, its ReadyForQuery not yet
  bool fatal_seen_ = false;     // the server announced its end itself: nothing to add
  bool own_error_ = false;      // the pooler's own statement failed
  bool popped_ = false;         // the message in progress completed an owed answer
  bool skip_body_ = false;      // body_left_ is swallowed
  bool offer_ = false;          // the pooler's own statement is done; to the pool when the buffer is
  bool release_ = false;        // ReadyForQuery I was seen; release when the buffer is done
  bool parked_ = false;         // SUSPEND: nothing of the socket is in the engine
  bool foreign_ = false;        // has statements of the process that this one took over
  bool dirty_ = false;          // something unexpected came while idle
  bool answered_ = false;       // the host said something of substance
  bool promised_tls_ = false;   // … and before that S, to our SSLRequest
  bool timed_out_ = false;
  bool ready_ = false;        // logged in as far as PostgreSQL is concerned
  bool asking_role_ = false;  // what runs is our question what the server is
  bool role_asked_ = false;   // before login_complete()
  bool role_doubt_ = false;   // to be asked before the next client
  std::uint8_t role_answers_ = 0;
  std::uint32_t role_known_ = 0;  // Place::doubts when it last said what it is
  char status_ = 'I';
  std::uint32_t body_left_ = 0;
  std::unique_ptr<std::string> held_;
  std::string backend_key_;
  std::string untracked_;  // ParameterStatus of the login, for the welcome message
  std::string own_error_text_;
  wire::Owed owed_;
  std::unique_ptr<wire::ServerStatements> statements_;
  Unnamed unnamed_;
  std::uint32_t forgetting_ = 0;
  std::string plan_error_;  // kept back until it is clear whether the client's batch can be said again
  wire::ParamSet params_;
  std::unique_ptr<auth::ScramClient> scram_;
  std::unique_ptr<Attempt> attempt_;  // until the login is complete
  std::string why_;                   // more exactly than the log says: for Attempt::report
  std::optional<bool> standby_, read_only_;
  std::shared_ptr<pool::Address> health_;
  HostTimes* times_ = nullptr;          // of this address on this worker; null until the login is complete
  std::shared_ptr<pool::Place> place_;  // counted there
  std::uint32_t place_generation_ = 0;
  Usec patience_ = 0;  // until the first answer; 0: as long as any login
  net::Address address_;
  std::string host_;                      // list element dialled; empty = none
  std::unique_ptr<net::Tls> moving_tls_;  // between two engines
  pool::Permit permit_;
  int move_to_ = -1;
  int port_ = 0;
  std::uint16_t minor_ = 0;  // of the protocol: asked for, then what the server agreed to
  wire::Replication replication_ = wire::Replication::none;
};

}  // namespace pgf::session
