// A closed-loop load generator: each client asks, waits for the answer, checks that it is the answer to its own
// question, and asks again. Every question carries a token that no other question has, and large rows repeat it to
// their end, so an answer that went to the wrong client, or was put together from two, is noticed.
//
//   --mode query   as fast as the other side answers
//   --mode login   connect, authenticate, Terminate, wait for the other side to close; again and again
//   --mode idle    log everybody in, ask one question each, then hold still
//
// Prints one line of JSON. Exit status 0: all answers right; 1: wrong answers or errors; 2: could not measure.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "histogram.h"
#include "loop.h"
#include "options.h"
#include "scram.h"
#include "watch.h"
#include "wire.h"

namespace bench {
namespace {

std::int64_t now_ns() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return ts.tv_sec * 1'000'000'000ll + ts.tv_nsec;
}

enum class Mode { query, login, idle };
enum class Protocol { simple, extended, prepared };

struct Settings {
  Mode mode = Mode::query;
  Protocol protocol = Protocol::simple;
  std::string host, user, password, database, engine;
  int port = 0;
  unsigned size = 0, rows = 1, statements = 1, ramp = 64;
  bool transaction = false, ask = true;
};

// What all threads share: the phase of the run, and the first thing that went wrong.
struct Run {
  enum Phase : int { ramp, warm, measure, stop };
  std::atomic<int> phase{ramp};
  std::atomic<unsigned> ready{0};  // clients that are logged in (and, when idle, have asked)
  std::atomic<std::uint64_t> errors{0}, wrong{0};
  std::mutex mutex;
  std::string first_problem;

  void problem(std::atomic<std::uint64_t>& counter, const std::string& text) {
    ++counter;
    const std::lock_guard lock(mutex);
    if (first_problem.empty()) first_problem = text;
  }
};

struct Client {
  enum State : std::uint8_t { off, login, prepare, asking, idle, leaving, dead };
  State state = off;
  bool startup = false;  // for cut(): the server never sends messages without a type
  bool refused = false, completed = false;
  unsigned rows = 0, step = 0, next_statement = 0;
  std::uint32_t number = 0;
  Id id = 0;
  std::int64_t since = 0;
  std::uint64_t question = 0;
  std::string partial, token;
  std::optional<ScramClient> scram;
};

class Worker final : public Handler {
 public:
  Worker(const Settings& settings, Run& run, unsigned first, unsigned count)
      : settings_(settings), run_(run), clients_(count), loop_(Loop::make(settings.engine, *this)) {
    for (unsigned i = 0; i < count; ++i) clients_[i].number = first + i;
  }

  void work() {
    while (run_.phase != Run::stop) {
      if (run_.phase == Run::measure && !measuring_) {
        measuring_ = true;
        latency_ = Histogram();
      }
      start_some();
      if (settings_.mode == Mode::query && run_.phase >= Run::warm && !asking_) {
        asking_ = true;
        for (Client& c : clients_)
          if (c.state == Client::idle) ask(c);
      }
      loop_->turn(20'000'000);
    }
    measuring_ = false;
  }

  const Histogram& latency() const { return latency_; }
  const char* engine() const { return loop_->name(); }
  unsigned alive() const {
    return static_cast<unsigned>(
        std::count_if(clients_.begin(), clients_.end(), [](const Client& c) { return c.state != Client::dead; }));
  }

  void on_bytes(Id id, std::string_view bytes) override {
    Client& c = *by_id_[id];
    const bool fine =
        cut(c.partial, bytes, c.startup, [&](char type, std::string_view body) { return on_message(c, type, body); });
    if (!fine) {
      run_.problem(run_.errors, "client " + std::to_string(c.number) + ": cannot go on after what the server sent");
      lose(c);
      loop_->close(id);
    }
  }

  void on_end(Id id, int error) override {
    Client& c = *by_id_[id];
    if (c.state == Client::leaving) {
      count(c);
      c.state = Client::off;
      waiting_.push_back(&c);
      return;
    }
    run_.problem(run_.errors, "client " + std::to_string(c.number) + ": connection ended (" +
                                  (error ? strerror(error) : "closed by the server") + ")");
    lose(c);
  }

 private:
  void lose(Client& c) {
    const bool idle_asking = settings_.mode == Mode::idle && c.state == Client::asking;
    if (c.state == Client::login || c.state == Client::prepare || idle_asking) --logging_in_;
    if (settings_.mode == Mode::login && run_.errors < 1000) {
      c.state = Client::off;
      waiting_.push_back(&c);
    } else {
      c.state = Client::dead;
      if (run_.phase == Run::ramp) ++run_.ready;  // nobody shall wait for it
    }
    c.partial.clear();
  }

  void start_some() {
    if (!started_) {
      started_ = true;
      for (Client& c : clients_) waiting_.push_back(&c);
    }
    if (settings_.mode == Mode::login && run_.phase == Run::ramp) return;
    while (!waiting_.empty() && (settings_.mode == Mode::login || logging_in_ < settings_.ramp)) {
      Client& c = *waiting_.front();
      waiting_.pop_front();
      start(c);
    }
  }

  // connect() on the loopback is done when it returns, so a blocking one costs nothing and saves a state.
  void start(Client& c) {
    c.since = now_ns();
    int fd = -1, rc = -1;
    if (settings_.host.starts_with("/")) {
      fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
      sockaddr_un address{};
      address.sun_family = AF_UNIX;
      snprintf(address.sun_path, sizeof address.sun_path, "%s/.s.PGSQL.%d", settings_.host.c_str(), settings_.port);
      rc = connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address);
    } else {
      fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      const int one = 1;
      const timeval patience{.tv_sec = 10, .tv_usec = 0};
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
      setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_port = htons(static_cast<std::uint16_t>(settings_.port));
      inet_pton(AF_INET, settings_.host.c_str(), &address.sin_addr);
      rc = connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address);
    }
    ++logging_in_;
    c.state = Client::login;
    c.scram.reset();
    if (rc != 0) {
      run_.problem(run_.errors, std::string("connect: ") + strerror(errno));
      if (fd >= 0) ::close(fd);
      lose(c);
      return;
    }
    c.id = loop_->add(fd);
    if (c.id >= by_id_.size()) by_id_.resize(c.id + 1);
    by_id_[c.id] = &c;
    std::string& out = loop_->out(c.id);
    {
      Message m(out, 0);
      put32(out, 3 << 16);
      put_cstr(out, "user"), put_cstr(out, settings_.user);
      put_cstr(out, "database"), put_cstr(out, settings_.database);
      put_cstr(out, "client_encoding"), put_cstr(out, "UTF8");
      out.push_back('\0');
    }
    loop_->flush(c.id);
  }

  bool on_message(Client& c, char type, std::string_view body) {
    switch (type) {
      case 'D':
        return on_row(c, body);
      case 'C':
        c.completed = true;
        return true;
      case 'Z':
        return on_ready(c, body.empty() ? '?' : body[0]);
      case 'R':
        return on_authentication(c, body);
      case 'E':
        on_error(c, body);
        return true;
      default:
        return true;  // ParameterStatus, BackendKeyData, notices, completions of Parse and Bind, ...
    }
  }

  void on_error(Client& c, std::string_view body) {
    Reader r{body};
    std::string text = "client " + std::to_string(c.number) + ":";
    while (r.ok && !r.rest.empty() && r.rest[0]) {
      const char field = r.byte();
      const std::string_view value = r.cstr();
      if (field == 'C' || field == 'M') text.append(" ").append(value);
    }
    if (measuring_ || run_.phase <= Run::measure) run_.problem(run_.errors, text);
    c.refused = true;  // an error, so not wrong on top of it
  }

  bool on_authentication(Client& c, std::string_view body) {
    Reader r{body};
    std::string& out = loop_->out(c.id);
    const std::uint32_t kind = r.u32();
    switch (kind) {
      case 0:
        return true;
      case 3: {
        Message m(out, 'p');
        put_cstr(out, settings_.password);
        break;
      }
      case 5: {
        const std::string answer = md5_password(settings_.user, settings_.password, r.take(4));
        Message m(out, 'p');
        put_cstr(out, answer);
        break;
      }
      case 10: {
        c.scram.emplace(settings_.password);
        const std::string first = c.scram->first();
        Message m(out, 'p');
        put_cstr(out, "SCRAM-SHA-256");
        put32(out, static_cast<std::uint32_t>(first.size()));
        out.append(first);
        break;
      }
      case 11: {
        const std::string last = c.scram ? c.scram->final(r.rest) : std::string();
        if (last.empty()) return false;
        put_message(out, 'p', last);
        break;
      }
      case 12:
        return c.scram && c.scram->verify(r.rest);
      default:
        return false;
    }
    loop_->flush(c.id);
    return true;
  }

  bool on_ready(Client& c, char status) {
    switch (c.state) {
      case Client::login:
        if (settings_.mode == Mode::login) {
          --logging_in_;
          std::string& out = loop_->out(c.id);
          put_message(out, 'X', {});
          loop_->flush(c.id);
          c.state = Client::leaving;
          return true;
        }
        if (settings_.protocol == Protocol::prepared) {
          c.state = Client::prepare;
          prepare(c);
          return true;
        }
        logged_in(c);
        return true;
      case Client::prepare:
        logged_in(c);
        return true;
      case Client::asking:
        return on_answered(c, status);
      default:
        return false;
    }
  }

  void logged_in(Client& c) {
    c.scram.reset();
    c.state = Client::idle;
    // Before it is idle a client asks one question, as idle clients of the real world have. It keeps its place in the
    // ramp until then: the memory of a crowd that waits is not the memory of idle clients.
    if (settings_.mode == Mode::idle && settings_.ask) return ask(c);
    --logging_in_;
    ++run_.ready;
    if (asking_) ask(c);
  }

  bool on_answered(Client& c, char status) {
    const bool in_transaction = settings_.transaction && c.step != 2;
    const bool row_due = !settings_.transaction || c.step == 1;
    if (!c.refused && (!c.completed || (row_due && c.rows != settings_.rows) || (status == 'T') != in_transaction))
      run_.problem(run_.wrong, "client " + std::to_string(c.number) + ": incomplete answer (" + std::to_string(c.rows) +
                                   " rows, status " + status + ")");
    if (settings_.transaction && c.step < 2) {
      ++c.step;
      send_question(c);
      return true;
    }
    c.step = 0;
    count(c);
    if (settings_.mode == Mode::idle) {
      c.state = Client::idle;
      c.token = std::string();
      --logging_in_;
      ++run_.ready;
    } else {
      ask(c);
    }
    return true;
  }

  // One clock reading per turn is not exact enough for a latency; one per answer is.
  void count(const Client& c) {
    if (measuring_) latency_.add(static_cast<std::uint64_t>(now_ns() - c.since));
  }

  bool on_row(Client& c, std::string_view body) {
    ++c.rows;
    Reader r{body};
    const unsigned columns = r.u16();
    const std::uint32_t length = r.u32();
    const std::string_view value = r.take(length);
    const std::size_t n = c.token.size();
    const std::size_t expected = settings_.size ? settings_.size : n;
    const bool right = r.ok && columns == 1 && value.size() == expected &&
                       value.starts_with(std::string_view(c.token).substr(0, expected)) &&
                       (expected <= n || memcmp(value.data(), value.data() + n, expected - n) == 0);
    if (!right || c.state != Client::asking)
      run_.problem(run_.wrong, "client " + std::to_string(c.number) + " asked for " + c.token + ", got " +
                                   std::string(value.substr(0, 40)));
    return true;
  }

  void ask(Client& c) {
    c.state = Client::asking;
    c.since = now_ns();
    send_question(c);
  }

  void send_question(Client& c) {
    c.rows = 0;
    c.completed = c.refused = false;
    std::string& out = loop_->out(c.id);
    if (settings_.transaction && c.step != 1) {
      put_message(out, 'Q', c.step == 0 ? std::string_view("BEGIN\0", 6) : std::string_view("COMMIT\0", 7));
      loop_->flush(c.id);
      return;
    }
    char token[64];
    const int n = snprintf(token, sizeof token, "%08x.%06x.%010llx", run_nonce(), c.number,
                           static_cast<unsigned long long>(++c.question));
    c.token.assign(token, static_cast<std::size_t>(n));
    switch (settings_.protocol) {
      case Protocol::simple: {
        Message m(out, 'Q');
        put_select(out);
        out.push_back('\'');
        out.append(c.token);
        out.append("'\0", 2);
        break;
      }
      case Protocol::extended: {
        {
          Message m(out, 'P');
          out.push_back('\0');
          put_select(out);
          out.append("$1\0\0\0", 5);
        }
        bind_and_execute(c, out, "");
        break;
      }
      case Protocol::prepared: {
        char name[16];
        snprintf(name, sizeof name, "s%u", c.next_statement);
        c.next_statement = (c.next_statement + 1) % settings_.statements;
        bind_and_execute(c, out, name);
        break;
      }
    }
    loop_->flush(c.id);
  }

  void put_select(std::string& out) const {
    out.append("SELECT ");
    if (settings_.size) out.append("size ").append(std::to_string(settings_.size)).append(" ");
    if (settings_.rows != 1) out.append("rows ").append(std::to_string(settings_.rows)).append(" ");
  }

  // The messages libpq sends for PQsendQueryParams and PQsendQueryPrepared.
  static void bind_and_execute(const Client& c, std::string& out, std::string_view statement) {
    {
      Message m(out, 'B');
      out.push_back('\0');
      put_cstr(out, statement);
      put16(out, 0);
      put16(out, 1);
      put32(out, static_cast<std::uint32_t>(c.token.size()));
      out.append(c.token);
      put16(out, 1);
      put16(out, 0);
    }
    out.append("D\0\0\0\6P\0", 7);
    out.append("E\0\0\0\11\0\0\0\0\0", 10);
    out.append("S\0\0\0\4", 5);
  }

  void prepare(Client& c) {
    std::string& out = loop_->out(c.id);
    for (unsigned i = 0; i < settings_.statements; ++i) {
      Message m(out, 'P');
      put_cstr(out, "s" + std::to_string(i));
      put_select(out);
      put_cstr(out, i ? "$1 /* " + std::to_string(i) + " */" : "$1");
      put16(out, 0);
    }
    out.append("S\0\0\0\4", 5);
    loop_->flush(c.id);
  }

  static unsigned run_nonce() {
    static const unsigned nonce = static_cast<unsigned>(getpid()) * 2654435761u ^ static_cast<unsigned>(time(nullptr));
    return nonce;
  }

  const Settings& settings_;
  Run& run_;
  std::deque<Client> clients_;
  std::vector<Client*> by_id_;
  std::deque<Client*> waiting_;
  std::unique_ptr<Loop> loop_;
  Histogram latency_;
  unsigned logging_in_ = 0;
  bool started_ = false, asking_ = false, measuring_ = false;
};

std::string quoted(const std::string& s) {
  std::string out = "\"";
  for (const char ch : s) {
    if (ch == '"' || ch == '\\') out.push_back('\\');
    if (static_cast<unsigned char>(ch) >= 32) out.push_back(ch);
  }
  return out + "\"";
}

std::vector<int> pids_of(const std::string& text) {
  std::vector<int> pids;
  for (std::size_t i = 0; i < text.size();) {
    pids.push_back(atoi(text.c_str() + i));
    const std::size_t comma = text.find(',', i);
    if (comma == std::string::npos) break;
    i = comma + 1;
  }
  return pids;
}

void sleep_seconds(double seconds) {
  const timespec ts{.tv_sec = static_cast<time_t>(seconds),
                    .tv_nsec = static_cast<long>((seconds - static_cast<double>(static_cast<time_t>(seconds))) * 1e9)};
  nanosleep(&ts, nullptr);
}

int main_of(int argc, char** argv) {
  const Options options(argc, argv, "closed-loop load generator for PostgreSQL poolers",
                        {{"host", "127.0.0.1", "IPv4 address, or directory of a Unix socket"},
                         {"port", "6432", "port"},
                         {"user", "bench", "user"},
                         {"password", "", "password for MD5 or SCRAM"},
                         {"database", "bench", "database"},
                         {"mode", "query", "query, login or idle"},
                         {"protocol", "simple", "simple, extended or prepared"},
                         {"clients", "1", "connections"},
                         {"threads", "1", "threads"},
                         {"seconds", "3", "how long to measure (or to hold still)"},
                         {"warmup", "0.3", "seconds before that"},
                         {"size", "0", "bytes per row; 0: just the token"},
                         {"rows", "1", "rows per answer"},
                         {"statements", "1", "prepared statements per client, used in turn"},
                         {"transaction", "", "wrap each question in BEGIN and COMMIT (flag)"},
                         {"no-ask", "", "idle clients ask nothing before they are idle (flag)"},
                         {"ramp", "64", "logins under way at once, per thread"},
                         {"ramp-timeout", "60", "seconds until all have to be logged in"},
                         {"watch", "", "process ids, comma-separated, whose CPU and memory to report"},
                         {"engine", "auto", "auto, io_uring or epoll"}});
  signal(SIGPIPE, SIG_IGN);
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);

  Settings settings;
  const std::string& mode = options.text("mode");
  const std::string& protocol = options.text("protocol");
  if (mode != "query" && mode != "login" && mode != "idle") return fprintf(stderr, "load: bad --mode\n"), 2;
  if (protocol != "simple" && protocol != "extended" && protocol != "prepared")
    return fprintf(stderr, "load: bad --protocol\n"), 2;
  settings.mode = mode == "query" ? Mode::query : mode == "login" ? Mode::login : Mode::idle;
  settings.protocol = protocol == "simple"     ? Protocol::simple
                      : protocol == "extended" ? Protocol::extended
                                               : Protocol::prepared;
  settings.host = options.text("host");
  settings.port = static_cast<int>(options.number("port"));
  settings.user = options.text("user");
  settings.password = options.text("password");
  settings.database = options.text("database");
  settings.engine = options.text("engine");
  settings.size = static_cast<unsigned>(options.number("size"));
  settings.rows = static_cast<unsigned>(std::max(1l, options.number("rows")));
  settings.statements = static_cast<unsigned>(std::max(1l, options.number("statements")));
  settings.ramp = static_cast<unsigned>(std::max(1l, options.number("ramp")));
  settings.ask = options.number("no-ask") == 0;
  settings.transaction = options.number("transaction") != 0;
  const unsigned clients = static_cast<unsigned>(std::max(1l, options.number("clients")));
  const unsigned threads = std::min(clients, static_cast<unsigned>(std::max(1l, options.number("threads"))));
  const std::vector<int> watched = pids_of(options.text("watch"));
  const int self = getpid();

  std::vector<Usage> start;
  for (int pid : watched) start.push_back(usage_of(pid));

  Run run;
  std::deque<std::optional<Worker>> workers(threads);
  std::string engine;
  std::vector<std::jthread> pool;
  std::atomic<unsigned> built{0};
  for (unsigned t = 0; t < threads; ++t) {
    const unsigned first = static_cast<unsigned>(std::uint64_t{clients} * t / threads);
    const unsigned last = static_cast<unsigned>(std::uint64_t{clients} * (t + 1) / threads);
    // The ring has to be made in the thread that uses it.
    pool.emplace_back([&, t, first, last] {
      workers[t].emplace(settings, run, first, last - first);
      ++built;
      workers[t]->work();
    });
  }
  while (built < threads) sleep_seconds(0.001);

  const std::int64_t deadline = now_ns() + static_cast<std::int64_t>(options.real("ramp-timeout") * 1e9);
  const std::int64_t ramp_begin = now_ns();
  while (settings.mode != Mode::login && run.ready < clients) {
    sleep_seconds(0.002);
    if (now_ns() > deadline) {
      const std::lock_guard lock(run.mutex);
      printf("{\"error\": %s, \"ready\": %u}\n", quoted("not all logged in: " + run.first_problem).c_str(),
             run.ready.load());
      fflush(stdout);
      _exit(2);
    }
  }
  const double ramp_seconds = static_cast<double>(now_ns() - ramp_begin) / 1e9;

  std::vector<Usage> before, after;
  run.phase = Run::warm;
  sleep_seconds(options.real("warmup"));
  const Usage self_before = usage_of(self);
  for (int pid : watched) before.push_back(usage_of(pid));
  const std::int64_t begin = now_ns();
  run.phase = Run::measure;
  sleep_seconds(options.real("seconds"));
  const double seconds = static_cast<double>(now_ns() - begin) / 1e9;
  for (int pid : watched) after.push_back(usage_of(pid));
  const Usage self_after = usage_of(self);  // while the threads live: the dead are not counted
  run.phase = Run::stop;
  for (auto& thread : pool) thread.join();

  Histogram latency;
  unsigned alive = 0;
  for (const auto& w : workers) latency.merge(w->latency()), alive += w->alive();
  const double count = static_cast<double>(latency.count());

  printf(
      "{\"mode\": \"%s\", \"protocol\": \"%s\", \"clients\": %u, \"alive\": %u, \"engine\": \"%s\", "
      "\"seconds\": %.3f, \"ramp_seconds\": %.3f, ",
      mode.c_str(), protocol.c_str(), clients, alive, workers[0]->engine(), seconds, ramp_seconds);
  printf(
      "\"transactions\": %llu, \"tps\": %.1f, \"mean_us\": %.1f, \"p50_us\": %.1f, \"p99_us\": %.1f, "
      "\"max_us\": %.1f, ",
      static_cast<unsigned long long>(latency.count()), count / seconds, latency.mean_us(), latency.quantile_us(0.5),
      latency.quantile_us(0.99), latency.max_us());
  printf("\"own_cpu_us\": %llu, \"watch\": [",
         static_cast<unsigned long long>((self_after.cpu_ns - self_before.cpu_ns) / 1000));
  for (std::size_t i = 0; i < watched.size(); ++i) {
    const Usage &s = start[i], &b = before[i], &a = after[i];
    printf(
        "%s{\"pid\": %d, \"cpu_us\": %.1f, \"wait_us\": %.1f, \"ramp_cpu_us\": %.1f, "
        "\"rss_start_kb\": %llu, \"rss_before_kb\": %llu, \"rss_after_kb\": %llu}",
        i ? ", " : "", watched[i], static_cast<double>(a.cpu_ns - b.cpu_ns) / 1000,
        static_cast<double>(a.wait_ns - b.wait_ns) / 1000, static_cast<double>(b.cpu_ns - s.cpu_ns) / 1000,
        static_cast<unsigned long long>(s.rss_kb), static_cast<unsigned long long>(b.rss_kb),
        static_cast<unsigned long long>(a.rss_kb));
  }
  printf("], \"errors\": %llu, \"wrong\": %llu, \"first_problem\": %s}\n",
         static_cast<unsigned long long>(run.errors.load()), static_cast<unsigned long long>(run.wrong.load()),
         quoted(run.first_problem).c_str());
  fflush(stdout);
  // Thousands of sockets close faster with the process than one by one.
  _exit(run.errors || run.wrong ? 1 : alive && (latency.count() || settings.mode == Mode::idle) ? 0 : 2);
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) { return bench::main_of(argc, argv); }
