#pragma once
// The control thread: console commands, signals, RELOAD, statistics. Never on a query's way; waits for workers by
// tickets, never by blocking, so one slow command (PAUSE) does not hold up another (SHOW).
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "admin/parse.h"
#include "observe/report.h"
#include "observe/views.h"
#include "worker/descriptors.h"
#include "worker/fleet.h"
#include "worker/watchdog.h"

namespace pgf::worker {

class Control {
 public:
  using Loader = std::function<config::LoadResult()>;
  // `notify` tells the service manager: "READY=1" and so on (sd_notify). manager_patience: worker/watchdog.h.
  Control(Fleet& fleet, Loader loader, std::function<void(const config::Settings&)> reopen_log,
          std::function<void(const std::string&)> notify, Usec manager_patience);

  // Until the program is to end. signal_fd delivers SIGHUP, SIGTERM, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2. Returns the
  // exit status.
  int run(int signal_fd);
  // What it does each time around, for who has a loop of his own (tests/sim).
  void turn(Usec now);

 private:
  struct Console {  // who asked
    session::ClientHandle client;
    bool is_admin = false;
    std::shared_ptr<const Descriptor> socket = {};  // to send descriptors over; null: not to this one
  };
  struct Ticket {
    int left;
    bool found = false;
    std::vector<observe::Report> reports;
    std::function<void(Ticket&)> then;
  };
  struct Waiting {  // PAUSE, WAIT_CLOSE: answered when it has become true everywhere
    Console console;
    std::string tag, database;  // empty database = all
    bool close_needed;          // WAIT_CLOSE: until no server is close_needed; else until none is active
  };

  void receive(ConsoleCommand& m);
  void receive(ConsoleCancel& m);
  void receive(Done& m);
  void receive(Gathered& m);
  void receive(ReportWanted& m);

  void execute(Console console, const admin::Command& command);
  void show(Console console, const admin::Command& command);
  void show_handed(const Console& console, const observe::View& view, observe::Fleet& fleet);
  void set(Console console, const admin::Command& command);
  void pause(Console console, const admin::Command& command);
  void suspend(Console console, const admin::Command& command);
  void resume(Console console, const admin::Command& command);
  void kill(Console console, const admin::Command& command);
  void reconnect(Console console, const admin::Command& command);
  void able(Console console, const admin::Command& command, bool disabled);
  std::string reload();  // error text or empty; the workers' acknowledgement comes by the ticket
  bool renew_tls(const config::Config& next);
  void publish(std::function<void(Ticket&)> then);  // the new configuration, to all workers
  void end_generation(pool::DatabaseShared* database);
  bool end_generation_of_host(pool::DatabaseShared* database, const std::string& host, int port);
  // `then`: when it has taken effect on all workers; never for `now`.
  void shutdown(
      admin::ShutdownMode mode, std::function<void()> then = [] {});

  void reply(const Console& console, std::string bytes, bool close = false);
  void fail(const Console& console, std::string_view text, std::string_view sqlstate = "08P01");
  void done(const Console& console, std::string_view tag);
  void cancelled(const Console& console);

  std::uint64_t ticket(std::function<void(Ticket&)> then);
  void order(Order what, pool::DatabaseShared* database, std::function<void(Ticket&)> then = {});
  void tell(ToWorker::Body order);  // all workers, with a ticket: when no client is between two of them
  void tell_pending();
  void carried_out(std::map<std::uint64_t, Ticket>::iterator ticket);
  void place(Usec now);
  // The workers' part and our own part of a report; `parts` are of observe::Gather.
  void gather(unsigned parts, std::function<void(observe::Fleet&)> then);
  void report_if_wanted(Usec now);
  void fill(observe::Fleet& view, unsigned parts);
  void fill_hosts(observe::Fleet& view);
  void fill_dns(observe::Fleet& view);
  void fill_budget(observe::Fleet& view, bool everything);  // control_budget.cc
  void fill_databases(observe::Fleet& view);
  void fill_users(observe::Fleet& view);
  pool::DatabaseShared* known_database(const std::string& name, bool create);

  void on_signal(int number);
  void tick(Usec now);
  void check_waiting();
  void check_exit();
  void forget_auto_databases(Usec now);
  void end_period(Usec now);

  Fleet& fleet_;
  Loader loader_;
  std::function<void(const config::Settings&)> reopen_log_;
  std::function<void(const std::string&)> notify_;
  std::map<std::uint64_t, Ticket> tickets_;
  std::uint64_t next_ticket_ = 1;
  std::deque<ToWorker::Body> orders_;  // not told yet
  pool::Placement placement_;
  Watchdog watchdog_;
  std::vector<Usec> cpu_times_;  // of each worker, at the last look
  Usec looked_at_ = 0;
  std::vector<Waiting> waiting_;
  std::vector<ReportWanted> wanted_;  // and not asked for yet
  bool reporting_ = false;
  Usec next_report_ = 0;
  std::vector<observe::Fleet::Stats> last_stats_, growth_;
  Usec period_ = kSecond, period_start_ = 0, next_tick_ = 0;
  bool waiting_asked_ = false;
  bool ending_ = false;            // SHUTDOWN or a signal began it; Shared::shutdown follows when the port is closed
  bool servers_outdated_ = false;  // their TLS rules have changed, and publish() has not seen to it yet
  std::map<pool::DatabaseShared*, Usec> unused_since_;  // auto-databases without connections
  std::optional<int> exit_;
};

}  // namespace pgf::worker
