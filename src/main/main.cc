// The wiring: options, configuration, listeners, threads, end.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>

#include "config/budget.h"
#include "main/check.h"
#include "main/options.h"
#include "main/process.h"
#include "main/systemd.h"
#include "top/top.h"
#include "worker/control.h"
#include "worker/fleet.h"
#include "worker/pages.h"
#include "worker/takeover.h"

namespace pgf {
namespace {

class Files final : public config::FileReader {
 public:
  std::optional<std::string> read(const std::string& path, std::string& error) override {
    std::string text;
    if (!read_file(path, text, error)) return std::nullopt;
    return text;
  }
};

config::LoadResult load(const std::string& path) {
  Files files;
  return config::load(path, files);
}

LogTarget log_target(const config::Settings& s, const Options& options) {
  LogTarget t;
  t.file = s.logfile;
  t.to_stderr = !options.quiet && !options.daemon;
  t.journal = stderr_is_journal();
  t.to_syslog = s.syslog != 0;
  t.syslog_ident = s.syslog_ident;
  t.syslog_facility = s.syslog_facility;
  t.json = s.log_format == config::LogFormat::json;
  t.verbose = s.verbose > 0 ? static_cast<int>(s.verbose) : options.verbose;
  return t;
}

int run(const Options& options) {
  Log log;
  log.open({.file = "", .to_stderr = true, .verbose = options.verbose});
  auto fatal = [&](std::string_view text) {
    log(LogLevel::fatal, "{}", text);
    return 1;
  };

  config::LoadResult loaded = load(options.config);
  for (const std::string& error : loaded.errors) log(LogLevel::error, "{}", error);
  if (!loaded.config) return fatal("cannot load config file");
  auto config = loaded.config;
  const config::Settings& s = config->settings;
  if (options.daemon && s.pidfile.empty()) return fatal("daemon needs pidfile configured");
  auto tls = session::make_tls_setup(*config);  // while we may still be root: the key may be readable by nobody else
  if (!tls) return fatal(tls.error());

  if (std::string error = become_user(options.user.empty() ? s.user : options.user); !error.empty())
    return fatal(error);
  if (geteuid() == 0) return fatal("pgflotilla should not run as root");
  if (std::string error = log.open(log_target(s, options)); !error.empty()) {
    std::fprintf(stderr, "%s\n", error.c_str());
    return 1;
  }
  for (const std::string& warning : config->warnings) log(LogLevel::warning, "{}", warning);

  const std::vector<int> passed = activation_sockets();
  worker::Takeover takeover(log);
  bool taken = false;
  if (options.reboot && !passed.empty()) {
    log(LogLevel::warning, "sockets come from the service manager: the old process is not taken over");
  } else if (options.reboot) {
    auto begun = s.unix_socket_dir.empty() ? false : takeover.begin(unix_socket_path(s));
    if (!begun) return fatal(begun.error());
    taken = *begun;
    if (!taken) log(LogLevel::log, "old process not found, try to continue normally");
  }
  if (!taken)
    if (std::string error = check_pidfile(s.pidfile, log); !error.empty()) return fatal(error);
  if (options.daemon)
    if (std::string error = daemonize(); !error.empty()) return fatal(error);

  worker::Plan plan;
  if (config::counts_together(s)) {
    auto ledger = worker::LedgerFile::open(s.fleet_file);
    if (!ledger) return fatal(ledger.error());
    plan.ledger = *std::move(ledger);
    plan.ledger->survive_its_loss();
  }

  // Signals are read by the control thread from a descriptor; no thread is ever interrupted.
  sigset_t signals;
  sigemptyset(&signals);
  for (int n : {SIGHUP, SIGTERM, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2}) sigaddset(&signals, n);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // a log file that has reached its limit is a full disk
  int signal_fd = signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);

  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  rlim_t soft = files.rlim_cur;
  files.rlim_cur = files.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &files) == 0) soft = files.rlim_cur;
  log(LogLevel::log, "kernel file descriptor limit: {} (hard: {}); max_client_conn: {}, max expected fd use: {}", soft,
      files.rlim_max, s.max_client_conn, expected_descriptors(*config));
  if (static_cast<rlim_t>(expected_descriptors(*config)) > soft)
    log(LogLevel::warning, "file descriptors may not suffice: {} of {} can be had", soft,
        expected_descriptors(*config));

  plan.cores = usable_cores();
  plan.workers = s.workers > 0 ? static_cast<int>(s.workers) : plan.cores;
  plan.workers = std::min(plan.workers, pool::kMaxWorkers);
  if (s.io_engine != config::IoEngine::epoll) plan.engine_reason = net::probe_uring();
  plan.use_uring = s.io_engine != config::IoEngine::epoll && plan.engine_reason.empty();
  if (s.io_engine == config::IoEngine::io_uring && !plan.use_uring)
    return fatal(fmt::format("io_engine = io_uring, but it cannot be used here: {}", plan.engine_reason));

  if (!s.resolv_conf.empty() && access(s.resolv_conf.c_str(), R_OK) != 0)
    log(LogLevel::warning, "cannot read resolv_conf {}: {}; names are asked of 127.0.0.1", s.resolv_conf,
        std::strerror(errno));

  Listeners listeners;
  std::vector<session::Handed> rows;
  if (!passed.empty()) {
    std::vector<Listeners::Given> given;
    for (int fd : passed) {
      auto address = net::local_address(fd);
      if (!address) return fatal(fmt::format("fd {} from the service manager is not a socket", fd));
      log(LogLevel::log, "socket passed from service manager (fd {})", fd);
      given.push_back({fd, address->is_unix()});
    }
    if (config->given.contains("listen_addr") || config->given.contains("unix_socket_dir"))
      log(LogLevel::warning,
          "sockets passed from service manager, listen_addr and unix_socket_dir are not listened on");
    listeners.adopt(given, plan.workers);
    plan.listeners_are_lent = true;
  } else if (taken) {
    pid_t old_pid = 0;
    if (!(std::ifstream(s.pidfile) >> old_pid)) old_pid = takeover.old_pid();
    // The last moment at which the old process can go on alone: it does if this one fails before.
    if (std::string error = takeover.finish(); !error.empty()) return fatal(error);
    log(LogLevel::log, "waiting for old pidfile to go away");
    while (!check_pidfile(s.pidfile, log).empty()) usleep(10'000);  // one that was left behind goes here, too
    log(LogLevel::log, "old process killed, resuming work");
    if (plan.ledger) plan.ledger->succeed(old_pid);
    rows = takeover.take_rows();
    std::vector<Listeners::Given> given;
    for (const session::Handed& row : rows)
      if (row.task == session::Handed::Task::pooler) given.push_back({row.received, row.addr == "unix"});
    listeners.adopt(given, plan.workers);
    if (std::string path = unix_socket_path(s); !listeners.local().empty() && path[0] != '@')
      listeners.own_socket_file(path);
  } else if (std::string error = listeners.open(s, plan.workers, log); !error.empty()) {
    listeners.stop();
    return fatal(error);
  }
  plan.listeners = listeners.tcp();
  plan.unix_listeners = listeners.local();

  auto metrics = open_metrics(s);
  if (!metrics) {
    if (!plan.listeners_are_lent) listeners.stop();
    return fatal(metrics.error());
  }
  if (!metrics->empty())
    log(LogLevel::log, "metrics on http://{}/metrics{}", s.metrics_listen, s.web_page ? ", the web page on /" : "");

  if (std::string error = write_pidfile(s.pidfile); !error.empty()) {
    if (!plan.listeners_are_lent) listeners.stop();
    return fatal(error);
  }
  log(LogLevel::log, "process up: pgflotilla {}, {} worker{} on {}{}", PGF_VERSION, plan.workers,
      plan.workers == 1 ? "" : "s", plan.use_uring ? "io_uring" : "epoll",
      plan.engine_reason.empty() ? "" : fmt::format(" (io_uring: {})", plan.engine_reason));

  int status;
  {
    const bool lent = plan.listeners_are_lent;
    worker::Fleet fleet(log, config, *std::move(tls), std::move(plan));
    if (taken) fleet.take_over(std::move(rows));
    fleet.start();
    worker::Control control(
        fleet, [&options] { return load(options.config); },
        [&](const config::Settings& now) {
          if (std::string error = log.open(log_target(now, options)); !error.empty()) log(LogLevel::error, "{}", error);
        },
        notify_manager, manager_patience());
    std::optional<web::Server> web;
    if (!metrics->empty()) {
      worker::Pages pages = worker::pages(fleet);
      web.emplace(*std::move(metrics), std::move(pages.handler), std::move(pages.refresh), log);
    }
    notify_manager("READY=1");
    status = control.run(signal_fd);
    web.reset();
    const bool ended = fleet.stop();
    // While suspended another process may be about to go on with them.
    if (!lent && !fleet.shared.suspended.load()) listeners.stop();
    remove_pidfile(s.pidfile);
    // Threads are gone, the kernel frees the rest faster than we could: clients must not wait for destructors.
    std::fflush(nullptr);
    if (!ended) log(LogLevel::warning, "a worker is stuck, leaving without it");
    if (!ended || !leak_checked()) _exit(status);
  }
  return status;
}

}  // namespace
}  // namespace pgf

static pgf::top::Outside outside() {
  return {[](const char* name) {
            const char* value = std::getenv(name);
            return std::string(value ? value : "");
          },
          pgf::load,
          [](const std::string& socket) {
            struct stat file;
            return stat(socket.c_str(), &file) == 0 && file.st_uid == geteuid();
          },
          pgf::net::user_name(geteuid()).value_or("")};
}

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "top") return pgf::top::run(argc - 1, argv + 1, outside());
  auto options = pgf::parse_options(argc, argv);
  if (!options) return options.error();
  if (options->check) {
    pgf::Checked checked = pgf::check_config(pgf::load(options->config), options->config, options->user);
    std::fputs(checked.text.c_str(), stdout);
    return checked.good ? 0 : 1;
  }
  return pgf::run(*options);
}
