// A PostgreSQL that knows nothing and answers at once: what stands behind the pooler while the pooler is measured.
//
//   SELECT 'token'                    one row holding token
//   SELECT size N 'token'             one row of N bytes: token, repeated
//   SELECT size N rows R 'token'      R such rows
//   SELECT $1, SELECT size N $1       the same with the (text) parameter of Bind
//   SELECT pid                        the process id of BackendKeyData, to see which server connection answered
//   BEGIN, COMMIT, ROLLBACK, SET, DISCARD, DEALLOCATE, and the empty query do what they say
//
// Several statements in one simple query work, named statements and the unnamed portal too; unknown names fail with the
// SQLSTATE of the original and put the connection (and an open transaction) into the failed state.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <thread>
#include <unordered_map>

#include "loop.h"
#include "options.h"
#include "wire.h"

namespace bench {
namespace {

std::int64_t now_ns() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return ts.tv_sec * 1'000'000'000ll + ts.tv_nsec;
}

bool same(std::string_view a, std::string_view b) {
  return a.size() == b.size() && strncasecmp(a.data(), b.data(), a.size()) == 0;
}
bool begins(std::string_view text, std::string_view word) {
  return text.size() >= word.size() && strncasecmp(text.data(), word.data(), word.size()) == 0;
}
std::string_view trim(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\n' || s.front() == '\t')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\n' || s.back() == '\t')) s.remove_suffix(1);
  return s;
}
std::string_view next_word(std::string_view& s) {
  s = trim(s);
  const std::string_view word = s.substr(0, s.find_first_of(" \n\t"));
  s.remove_prefix(word.size());
  return word;
}

// Cuts the next statement off `text` at a semicolon outside quotes.
std::string_view next_statement(std::string_view& text) {
  std::size_t i = 0;
  char quote = 0;
  for (; i < text.size(); ++i) {
    const char c = text[i];
    if (quote) {
      if (c == quote) quote = 0;
    } else if (c == '\'' || c == '"') {
      quote = c;
    } else if (c == ';') {
      break;
    }
  }
  const std::string_view one = trim(text.substr(0, i));
  text.remove_prefix(std::min(text.size(), i + 1));
  return one;
}

struct Statement {
  enum Kind : std::uint8_t { rows, empty, begin, commit, rollback, set, discard_all, deallocate, other };
  Kind kind = empty;
  bool parameter = false;  // the token is $1
  bool pid = false;
  std::uint32_t size = 0, count = 1;
  std::string_view token;  // of the literal; or the name for SET / DEALLOCATE
  std::string_view value;  // SET name = value
  std::string_view tag;    // of `other`: its first word
};

std::string_view unquote(std::string_view s) {
  const bool quoted = s.size() >= 2 && (s.front() == '\'' || s.front() == '"') && s.back() == s.front();
  return quoted ? s.substr(1, s.size() - 2) : s;
}

// Views into `text`.
Statement understand(std::string_view text) {
  Statement s;
  std::string_view rest = text;
  const std::string_view verb = next_word(rest);
  if (verb.empty()) return s;
  s.tag = verb;
  if (same(verb, "select")) {
    s.kind = Statement::rows;
    rest = trim(rest);
    for (;;) {
      std::uint32_t* number = begins(rest, "size ") ? &s.size : begins(rest, "rows ") ? &s.count : nullptr;
      if (!number) break;
      next_word(rest);
      *number = static_cast<std::uint32_t>(atol(std::string(next_word(rest)).c_str()));
      rest = trim(rest);
    }
    if (begins(rest, "$1")) {
      s.parameter = true;
    } else if (same(rest, "pid")) {
      s.pid = true;
    } else if (!rest.empty() && rest[0] == '\'') {
      s.token = rest.substr(1, rest.find('\'', 1) - 1);
    } else {
      s.token = rest;
    }
  } else if (same(verb, "begin") || same(verb, "start")) {
    s.kind = Statement::begin;
  } else if (same(verb, "commit") || same(verb, "end")) {
    s.kind = Statement::commit;
  } else if (same(verb, "rollback") || same(verb, "abort")) {
    s.kind = Statement::rollback;
  } else if (same(verb, "set")) {
    s.kind = Statement::set;
    rest = trim(rest);
    if (begins(rest, "session ") || begins(rest, "local ")) next_word(rest);
    rest = trim(rest);
    const std::size_t end = rest.find_first_of(" =");
    s.token = unquote(rest.substr(0, end));
    if (end != std::string_view::npos) {
      rest.remove_prefix(end);
      rest = trim(rest);
      if (begins(rest, "="))
        rest.remove_prefix(1);
      else if (begins(rest, "to "))
        rest.remove_prefix(3);
      s.value = unquote(trim(rest));
    }
  } else if (same(verb, "discard")) {
    s.kind = Statement::discard_all;
  } else if (same(verb, "deallocate")) {
    s.kind = Statement::deallocate;
    s.token = unquote(trim(rest));
  } else {
    s.kind = Statement::other;
  }
  return s;
}

// A prepared statement owns its text, so it does not move.
struct Prepared {
  explicit Prepared(std::string_view sql) : text(sql), statement(understand(next(text))) {}
  static std::string_view next(std::string_view sql) { return next_statement(sql); }
  std::string text;
  Statement statement;
};

constexpr std::pair<std::string_view, std::string_view> kReported[] = {
    {"application_name", ""},      {"client_encoding", "UTF8"},
    {"DateStyle", "ISO, MDY"},     {"default_transaction_read_only", "off"},
    {"in_hot_standby", "off"},     {"integer_datetimes", "on"},
    {"IntervalStyle", "postgres"}, {"is_superuser", "off"},
    {"server_encoding", "UTF8"},   {"server_version", "15.10"},
    {"session_authorization", ""}, {"standard_conforming_strings", "on"},
    {"TimeZone", "UTC"},
};

void put_parameter(std::string& out, std::string_view name, std::string_view value) {
  Message m(out, 'S');
  put_cstr(out, name);
  put_cstr(out, value);
}

void put_row_description(std::string& out) {
  static const std::string kBytes = [] {
    std::string s;
    {
      Message m(s, 'T');
      put16(s, 1);
      put_cstr(s, "?column?");
      put32(s, 0);  // no table
      put16(s, 0);
      put32(s, 25);          // text
      put16(s, 0xffff);      // variable length
      put32(s, 0xffffffff);  // no modifier
      put16(s, 0);           // text format
    }
    return s;
  }();
  out.append(kBytes);
}

void put_error(std::string& out, std::string_view state, std::string_view text) {
  Message m(out, 'E');
  put_cstr(out, "SERROR");
  put_cstr(out, "VERROR");
  out.push_back('C');
  put_cstr(out, state);
  out.push_back('M');
  put_cstr(out, text);
  out.push_back('\0');
}

void put_rows(std::string& out, const Statement& s, std::string_view token, bool description) {
  if (description) put_row_description(out);
  for (std::uint32_t i = 0; i < s.count; ++i) {
    const std::size_t size = s.size ? s.size : token.size();
    out.push_back('D');
    put32(out, static_cast<std::uint32_t>(size + 10));
    put16(out, 1);
    put32(out, static_cast<std::uint32_t>(size));
    if (!s.size || token.empty()) {
      out.append(token);
      out.append(size - token.size(), ' ');
      continue;
    }
    // The token over and over: the asker can check every byte of a large row for strangers.
    const std::size_t begin = out.size();
    out.resize(begin + size);
    char* const to = out.data() + begin;
    std::size_t done = std::min(size, token.size());
    memcpy(to, token.data(), done);
    while (done < size) {
      const std::size_t more = std::min(done / token.size() * token.size(), size - done);
      memcpy(to + done, to, more);
      done += more;
    }
  }
  if (s.count == 1) {
    out.append("C\0\0\0\15SELECT 1\0", 14);
  } else {
    put_message(out, 'C', std::string("SELECT ") + std::to_string(s.count) + '\0');
  }
}

struct Conn {
  std::string partial;
  bool startup = true;
  char status = 'I';
  bool skipping = false;  // after an error in the extended protocol, until Sync
  std::uint32_t pid = 0;
  Statement portal_statement;
  std::shared_ptr<Prepared> unnamed, portal_owner;
  bool have_portal = false;
  std::string parameter;
  std::unordered_map<std::string, std::shared_ptr<Prepared>> statements;
};

struct Settings {
  std::int64_t delay_ns = 0;
  std::string engine;
  bool quiet = true;
};

class Worker final : public Handler {
 public:
  explicit Worker(const Settings& settings) : settings_(settings), loop_(Loop::make(settings.engine, *this)) {}

  void run(std::vector<int> listeners) {
    for (int fd : listeners) loop_->listen(fd);
    for (;;) {
      std::int64_t wait = -1;
      if (!delayed_.empty()) wait = std::max<std::int64_t>(0, delayed_.front().due - now_ns());
      loop_->turn(wait);
      while (!delayed_.empty() && delayed_.front().due <= now_ns()) {
        const Delayed d = std::move(delayed_.front());
        delayed_.pop_front();
        if (d.id < conns_.size() && conns_[d.id] && conns_[d.id]->pid == d.pid) {
          loop_->out(d.id).append(d.bytes);
          loop_->flush(d.id);
        }
      }
    }
  }

  void on_accept(int fd) override {
    const int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    const Id id = loop_->add(fd);
    if (id >= conns_.size()) conns_.resize(id + 1);
    conns_[id] = std::make_unique<Conn>();
    static std::atomic<std::uint32_t> next_pid{1};
    conns_[id]->pid = next_pid++;
  }

  void on_bytes(Id id, std::string_view bytes) override {
    Conn& c = *conns_[id];
    std::string& out = settings_.delay_ns && !c.startup ? scratch_ : loop_->out(id);
    scratch_.clear();
    const bool fine = cut(c.partial, bytes, c.startup, [&](char type, std::string_view body) {
      return type ? on_message(c, out, type, body) : on_startup(c, out, body);
    });
    if (!fine) {
      conns_[id].reset();
      loop_->close(id);
    } else if (!scratch_.empty()) {
      delayed_.push_back({now_ns() + settings_.delay_ns, id, c.pid, scratch_});
    } else if (!out.empty()) {
      loop_->flush(id);
    }
  }

  void on_end(Id id, int) override { conns_[id].reset(); }

 private:
  struct Delayed {
    std::int64_t due;
    Id id;
    std::uint32_t pid;
    std::string bytes;
  };

  static void put_ready(const Conn& c, std::string& out) {
    const char bytes[] = {'Z', 0, 0, 0, 5, c.status};
    out.append(bytes, sizeof bytes);
  }

  bool on_startup(Conn& c, std::string& out, std::string_view body) {
    Reader r{body};
    const std::uint32_t code = r.u32();
    if (code == 80877103 || code == 80877104) {  // SSLRequest, GSSENCRequest
      out.push_back('N');
      return true;
    }
    if (code >> 16 != 3) return false;  // CancelRequest, or nonsense
    c.startup = false;
    if (code & 0xffff) {
      Message m(out, 'v');
      put32(out, 3 << 16);
      put32(out, 0);
    }
    std::map<std::string, std::string> given;
    while (r.ok && !r.rest.empty() && r.rest[0]) {
      const std::string name(r.cstr());
      given[name] = std::string(r.cstr());
    }
    put_message(out, 'R', std::string_view("\0\0\0\0", 4));
    for (auto [name, value] : kReported) {
      std::string actual(value);
      if (name == "session_authorization") actual = given["user"];
      for (const auto& [key, text] : given)
        if (same(key, name)) actual = text;
      put_parameter(out, name, actual);
    }
    {
      Message m(out, 'K');
      put32(out, c.pid);
      put32(out, c.pid * 2654435761u);
    }
    put_ready(c, out);
    return true;
  }

  bool on_message(Conn& c, std::string& out, char type, std::string_view body) {
    Reader r{body};
    switch (type) {
      case 'Q': {
        std::string_view text = r.cstr();
        bool any = false;
        settings_changed_.clear();
        while (!trim(text).empty()) {
          const Statement s = understand(next_statement(text));
          if (s.kind == Statement::empty) continue;
          any = true;
          if (!perform(c, out, s, s.token, true)) break;
        }
        if (!any) out.append("I\0\0\0\4", 5);
        out.append(settings_changed_);
        put_ready(c, out);
        return true;
      }
      case 'S':
        c.skipping = false;
        put_ready(c, out);
        return true;
      case 'X':
        return false;
      case 'H':
        return true;
      default:
        break;
    }
    if (c.skipping) return true;
    switch (type) {
      case 'P':
        on_parse(c, out, r);
        break;
      case 'B':
        on_bind(c, out, r);
        break;
      case 'D':
        on_describe(c, out, r);
        break;
      case 'E':
        on_execute(c, out);
        break;
      case 'C': {
        const char what = r.byte();
        const std::string_view name = r.cstr();
        if (what == 'P')
          c.have_portal = false;
        else if (name.empty())
          c.unnamed.reset();
        else
          c.statements.erase(std::string(name));
        out.append("3\0\0\0\4", 5);
        break;
      }
      default:
        fail(c, out, "08P01", "the null backend does not know this message");
    }
    return true;
  }

  static void fail(Conn& c, std::string& out, std::string_view state, const std::string& text) {
    put_error(out, state, text);
    c.skipping = true;
    if (c.status == 'T') c.status = 'E';
  }

  static std::shared_ptr<Prepared> find(Conn& c, std::string& out, std::string_view name) {
    std::shared_ptr<Prepared> found;
    if (name.empty()) {
      found = c.unnamed;
    } else if (auto it = c.statements.find(std::string(name)); it != c.statements.end()) {
      found = it->second;
    }
    if (!found) fail(c, out, "26000", "prepared statement \"" + std::string(name) + "\" does not exist");
    return found;
  }

  static void on_parse(Conn& c, std::string& out, Reader& r) {
    const std::string name(r.cstr());
    const std::string_view text = r.cstr();
    // The same text again and again is what drivers do with the unnamed statement.
    if (name.empty() && c.unnamed && c.unnamed->text == text) {
      out.append("1\0\0\0\4", 5);
      return;
    }
    auto prepared = std::make_shared<Prepared>(text);
    if (name.empty()) {
      c.unnamed = std::move(prepared);
    } else if (!c.statements.try_emplace(name, std::move(prepared)).second) {
      return fail(c, out, "42P05", "prepared statement \"" + name + "\" already exists");
    }
    out.append("1\0\0\0\4", 5);
  }

  static void on_bind(Conn& c, std::string& out, Reader& r) {
    r.cstr();  // the portal: one is enough for us, whatever its name
    const std::string_view name = r.cstr();
    auto prepared = find(c, out, name);
    if (!prepared) return;
    r.take(std::size_t{2} * r.u16());
    const unsigned parameters = r.u16();
    c.parameter.clear();
    for (unsigned i = 0; i < parameters; ++i) {
      const std::uint32_t length = r.u32();
      const std::string_view value = length == 0xffffffff ? std::string_view() : r.take(length);
      if (i == 0) c.parameter.assign(value);
    }
    c.portal_statement = prepared->statement;
    c.portal_owner = std::move(prepared);
    c.have_portal = true;
    out.append("2\0\0\0\4", 5);
  }

  static void on_describe(Conn& c, std::string& out, Reader& r) {
    const char what = r.byte();
    Statement s = c.portal_statement;
    if (what == 'S') {
      auto prepared = find(c, out, r.cstr());
      if (!prepared) return;
      s = prepared->statement;
      Message m(out, 't');
      put16(out, s.parameter ? 1 : 0);
      if (s.parameter) put32(out, 25);
    } else if (!c.have_portal) {
      return fail(c, out, "34000", "portal does not exist");
    }
    if (s.kind == Statement::rows)
      put_row_description(out);
    else
      out.append("n\0\0\0\4", 5);
  }

  void on_execute(Conn& c, std::string& out) {
    if (!c.have_portal) return fail(c, out, "34000", "portal does not exist");
    const Statement& s = c.portal_statement;
    if (s.kind == Statement::empty) {
      out.append("I\0\0\0\4", 5);
      return;
    }
    settings_changed_.clear();
    if (!perform(c, out, s, s.parameter ? std::string_view(c.parameter) : s.token, false)) c.skipping = true;
    out.append(settings_changed_);
  }

  // False: an error went out.
  bool perform(Conn& c, std::string& out, const Statement& s, std::string_view token, bool description) {
    if (c.status == 'E' && s.kind != Statement::commit && s.kind != Statement::rollback) {
      put_error(out, "25P02", "current transaction is aborted, commands ignored until end of transaction block");
      return false;
    }
    std::string_view tag;
    switch (s.kind) {
      case Statement::rows:
        if (s.pid)
          put_rows(out, s, std::to_string(c.pid), description);
        else
          put_rows(out, s, token, description);
        return true;
      case Statement::begin:
        c.status = 'T', tag = "BEGIN";
        break;
      case Statement::commit:
        tag = c.status == 'E' ? "ROLLBACK" : "COMMIT", c.status = 'I';
        break;
      case Statement::rollback:
        c.status = 'I', tag = "ROLLBACK";
        break;
      case Statement::set:
        tag = "SET";
        for (auto [name, value] : kReported)
          if (same(name, s.token)) put_parameter(settings_changed_, name, s.value);
        break;
      case Statement::discard_all:
        c.statements.clear(), c.unnamed.reset(), tag = "DISCARD ALL";
        break;
      case Statement::deallocate:
        tag = "DEALLOCATE";
        if (same(s.token, "all")) {
          c.statements.clear(), tag = "DEALLOCATE ALL";
        } else if (!c.statements.erase(std::string(s.token))) {
          put_error(out, "26000", "prepared statement \"" + std::string(s.token) + "\" does not exist");
          if (c.status == 'T') c.status = 'E';
          return false;
        }
        break;
      default:
        tag = s.tag;
    }
    Message m(out, 'C');
    put_cstr(out, tag);
    return true;
  }

  const Settings settings_;
  std::unique_ptr<Loop> loop_;
  std::deque<std::unique_ptr<Conn>> conns_;
  std::deque<Delayed> delayed_;  // the delay is the same for all, so this is in order
  std::string scratch_, settings_changed_;
};

int listen_tcp(const std::string& host, int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const int one = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  inet_pton(AF_INET, host.c_str(), &address.sin_addr);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 || ::listen(fd, 4096) != 0) {
    perror("null_backend: cannot listen");
    exit(1);
  }
  return fd;
}

int listen_unix(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    fprintf(stderr, "null_backend: socket path too long: %s\n", path.c_str());
    exit(1);
  }
  memcpy(address.sun_path, path.c_str(), path.size());
  unlink(path.c_str());
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 || ::listen(fd, 4096) != 0) {
    perror("null_backend: cannot listen");
    exit(1);
  }
  chmod(path.c_str(), 0777);
  return fd;
}

int main_of(int argc, char** argv) {
  const Options options(argc, argv, "a PostgreSQL that answers at once",
                        {{"host", "127.0.0.1", "IPv4 address to listen on"},
                         {"port", "0", "TCP port, 0: none"},
                         {"unix", "", "path of a Unix socket to listen on as well, e.g. /tmp/x/.s.PGSQL.6000"},
                         {"threads", "1", "worker threads"},
                         {"delay-us", "0", "answer this much later"},
                         {"engine", "auto", "auto, io_uring or epoll"}});
  signal(SIGPIPE, SIG_IGN);
  const int port = static_cast<int>(options.number("port"));
  const std::string& path = options.text("unix");
  if (!port && path.empty()) {
    fprintf(stderr, "null_backend: --port or --unix, please\n");
    return 2;
  }
  Settings settings;
  settings.delay_ns = options.number("delay-us") * 1000;
  settings.engine = options.text("engine");
  const int unix_fd = path.empty() ? -1 : listen_unix(path);
  const long threads = std::max(1l, options.number("threads"));
  std::vector<std::vector<int>> listeners(static_cast<std::size_t>(threads));
  for (auto& fds : listeners) {
    if (port) fds.push_back(listen_tcp(options.text("host"), port));
  }
  if (unix_fd >= 0) listeners[0].push_back(unix_fd);
  printf("ready\n");
  fflush(stdout);
  std::vector<std::jthread> pool;
  for (auto& fds : listeners) pool.emplace_back([&settings, &fds] { Worker(settings).run(fds); });
  return 0;
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) { return bench::main_of(argc, argv); }
