#pragma once
// Clients, a pool and its servers without a network, for fuzz targets: the sockets are strings, the clock stands still,
// and the servers are small models of PostgreSQL. What is delivered when, and in which pieces, is the caller's choice.
#include <unistd.h>

#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "net/engine_core.h"
#include "session/cancel.h"
#include "session/client.h"
#include "session/pool.h"
#include "session/server.h"
#include "wire/read.h"
#include "wire/startup.h"
#include "wire/write.h"

namespace pgf::session::kit {

// When it begins: later than any clock of the machine, so that no deadline is over by itself.
inline constexpr Usec kStart = 1'000'000'000 * kSecond;

inline void must(bool good) {
  if (!good) __builtin_trap();
}

// What PostgreSQL would answer. Reads what the pooler sent; answers are buffered until a Sync, a Flush or a simple
// query, as there. What a statement does is told by its first letter (Backend::run).
class Backend {
 public:
  std::string in;       // from the pooler, not looked at yet
  bool strict = false;  // named statements of the pooler's making must be right
  enum class Asks { nothing, password, md5, scram } asks = Asks::nothing;  // at the login
  bool ended = false;                                                      // told to go
  bool is_cancel = false;

  bool started() const { return started_; }  // its startup packet has come

  // Everything that is complete.
  std::string answer() {
    std::string out;
    while (step(out)) continue;
    return out;
  }

 private:
  struct Prepared {
    std::string sql;
    bool stale = true;  // 'p': its plan does not fit the first time
  };

  bool step(std::string& out) {
    if (ended) return false;
    if (!started_) {
      if (in.size() < 8) return false;
      const std::uint32_t length = load_be32(as_bytes(in).data()), code = load_be32(as_bytes(in).data() + 4);
      if (in.size() < length) return false;
      in.erase(0, length);
      if (code == wire::kSslCode) return out += 'N', true;
      started_ = true;
      is_cancel = code == wire::kCancelCode;
      if (is_cancel) return ended = true, false;
      ask(out);
      return true;
    }
    if (in.size() < 5) return false;
    const std::size_t length = load_be32(as_bytes(in).data() + 1);
    if (in.size() < 1 + length) return false;
    const char type = in[0];
    const std::string body = in.substr(5, length - 4);
    in.erase(0, 1 + length);
    if (!welcome_) return password(as_bytes(body), out);
    if (skipping_) doubt(type, body);
    message(type, body);
    if (flush_) out += std::exchange(pending_, {});
    flush_ = false;
    return true;
  }

  void ask(std::string& out) {
    static constexpr std::uint8_t kSalt[4] = {1, 2, 3, 4};
    if (asks == Asks::nothing) return greet(out);
    if (asks == Asks::password) return wire::auth_cleartext(out);
    if (asks == Asks::md5) return wire::auth_md5(out, kSalt);
    wire::auth_sasl(out);
  }

  bool password(Bytes body, std::string& out) {
    if (asks != Asks::scram) return greet(out), true;
    if (!scram_) {
      scram_.emplace(auth::derive_scram("secret", 1), true);
      auto challenge = scram_->first(body);
      if (!challenge) return ended = true, false;
      return wire::auth_sasl_continue(out, *challenge), true;
    }
    auto proof = scram_->final(body);
    if (!proof) return ended = true, false;
    wire::auth_sasl_final(out, *proof);
    return greet(out), true;
  }

  void greet(std::string& out) {
    welcome_ = true;
    wire::auth_ok(out);
    for (auto [name, value] : {std::pair{"client_encoding", "UTF8"},
                               {"DateStyle", "ISO, MDY"},
                               {"TimeZone", "UTC"},
                               {"standard_conforming_strings", "on"},
                               {"application_name", ""},
                               {"server_version", "15.8"}})
      wire::parameter_status(out, name, value);
    wire::backend_key_data(out, as_bytes(std::string_view("\0\0\1\2\3\4\5\6", 8)));
    wire::ready_for_query(out, 'I');
  }

  void message(char type, const std::string& body) {
    if (copying_) {
      if (type == 'd' || type == 'H' || type == 'S') return;
      copying_ = false;
      if (type != 'c') return fail("COPY failed"), done_copying();
      wire::command_complete(pending_, "COPY 1");
      return done_copying();
    }
    if (type == 'X') {
      ended = true;
    } else if (type == 'Q') {
      if (skipping_) return;
      unnamed_.reset();
      run(body.substr(0, body.find('\0')), true);
      failed_now_ = false;
      if (!copying_) ready();
      copy_was_simple_ = true;
      flush_ = true;
    } else if (type == 'S') {
      skipping_ = false;
      if (status_ == 'i') status_ = 'I';
      ready();
    } else if (type == 'H') {
      flush_ = true;
    } else if (type == 'F') {
      if (skipping_) return;
      wire::message(pending_, 'V', std::string_view("\xff\xff\xff\xff", 4));
      ready();
    } else if (!skipping_) {
      extended(type, body);
      if (failed_now_) skipping_ = true;
      failed_now_ = false;
    }
  }

  void extended(char type, const std::string& body) {
    switch (type) {
      case 'P': {
        auto parse = wire::read_parse(as_bytes(body));
        if (!parse) return fail("bad Parse");
        const std::string sql(as_text(parse->rest).substr(0, as_text(parse->rest).find('\0')));
        const std::string name(parse->name);
        if (!name.empty() && statements_.contains(name)) return must(!ours(name)), fail("exists already");
        if (sql.starts_with('E')) return doubt(type, body), fail("syntax error");
        if (name.empty())
          unnamed_ = Prepared{sql};
        else
          statements_[name] = {sql};
        wire::parse_complete(pending_);
        return;
      }
      case 'B': {
        auto bind = wire::read_bind(as_bytes(body));
        if (!bind) return fail("bad Bind");
        Prepared* p = find(std::string(bind->name));
        if (!p) return fail("no such statement");
        if (p->sql.starts_with('p') && std::exchange(p->stale, false)) return stale();
        portals_[std::string(bind->portal)] = p->sql;
        wire::message(pending_, '2', {});
        return;
      }
      case 'D': {
        auto ref = wire::read_describe_or_close(as_bytes(body));
        if (!ref) return fail("bad Describe");
        if (ref->kind == 'S') {
          Prepared* p = find(std::string(ref->name));
          if (!p) return fail("no such statement");
          wire::message(pending_, 't', std::string_view("\0\0", 2));
          return describe(p->sql);
        }
        auto portal = portals_.find(std::string(ref->name));
        if (portal == portals_.end()) return fail("no such portal");
        return describe(portal->second);
      }
      case 'E': {
        const std::string name = body.substr(0, body.find('\0'));
        auto portal = portals_.find(name);
        if (portal == portals_.end()) return fail("no such portal");
        copy_was_simple_ = false;
        return run(portal->second, false);
      }
      case 'C': {
        auto ref = wire::read_describe_or_close(as_bytes(body));
        if (!ref) return fail("bad Close");
        if (ref->kind == 'S' && ref->name.empty()) unnamed_.reset();
        if (ref->kind == 'S') statements_.erase(std::string(ref->name));
        if (ref->kind == 'P') portals_.erase(std::string(ref->name));
        wire::close_complete(pending_);
        return;
      }
      default:
        return;
    }
  }

  // Names that the pooler must know all about: it hears of failures later, so not those of messages that failed.
  bool ours(const std::string& name) const {
    return strict && name.starts_with("PGBOUNCER_") && name != "PGBOUNCER_0" && !doubted_.contains(name);
  }
  void doubt(char type, const std::string& body) {
    if (type == 'P') doubted_.insert(body.substr(0, body.find('\0')));
    if (type == 'C' && !body.empty()) doubted_.insert(body.substr(1, body.find('\0') - 1));
    if (type == 'Q') strict = false;
  }

  Prepared* find(const std::string& name) {
    if (name.empty()) return unnamed_ ? &*unnamed_ : nullptr;
    auto it = statements_.find(name);
    must(it != statements_.end() || !ours(name));
    return it == statements_.end() ? nullptr : &it->second;
  }

  void describe(const std::string& sql) {
    if (!sql.starts_with('s')) return wire::message(pending_, 'n', {});
    const wire::Column columns[] = {{"echo", 's'}};
    wire::row_description(pending_, columns);
  }

  void run(const std::string& sql, bool simple) {
    if (sql.empty() || sql == ";") return wire::empty_query(pending_);
    if (status_ == 'E' && sql[0] != 'c') {
      if (sql[0] == 'd' || sql[0] == 'D') strict = false;
      return fail("transaction is aborted");
    }
    std::string name;
    switch (sql[0]) {
      case 'e':
        return fail("an error");
      case 'b':
        status_ = 'T';
        return wire::command_complete(pending_, "BEGIN");
      case 'c':
        status_ = 'I';
        portals_.clear();
        return wire::command_complete(pending_, "COMMIT");
      case 'i':
        copying_ = flush_ = true;
        return wire::message(pending_, 'G', std::string_view("\0\0\0", 3));
      case 'o':
        wire::message(pending_, 'H', std::string_view("\0\0\0", 3));
        wire::message(pending_, 'd', sql);
        wire::message(pending_, 'c', {});
        return wire::command_complete(pending_, "COPY 1");
      case 'n':
        wire::notice(pending_, sql);
        return wire::command_complete(pending_, "DO");
      case 'S':
      case 'x':
        return set(sql);
      case 'd':
      case 'D':
        return forget(sql);
      default:
        break;
    }
    if (simple) describe("s");
    if (sql == "secret")  // auth_query
      wire::RowWriter(pending_).text("v").text("secret");
    else
      wire::RowWriter(pending_).text(sql);
    wire::command_complete(pending_, "SELECT 1");
  }

  // "SET name='value';…" of the pooler, or "xname=value" of a client.
  void set(std::string_view sql) {
    if (sql.starts_with('x')) {
      const std::size_t equals = std::min(sql.find('='), sql.size());
      wire::parameter_status(pending_, sql.substr(1, equals - 1), sql.substr(std::min(equals + 1, sql.size())));
      return wire::command_complete(pending_, "SET");
    }
    while (sql.starts_with("SET ")) {
      const std::size_t equals = sql.find("='"), end = sql.find("';");
      if (equals == sql.npos || end == sql.npos || end < equals) break;
      wire::parameter_status(pending_, sql.substr(4, equals - 4), sql.substr(equals + 2, end - equals - 2));
      wire::command_complete(pending_, "SET");
      sql.remove_prefix(end + 2);
    }
  }

  void forget(const std::string& sql) {
    const wire::Forgets f = wire::forgotten_by(sql);
    if (f.all) {
      statements_.clear();
      unnamed_.reset();
      return wire::command_complete(pending_, (sql[1] | 0x20) == 'i' ? "DISCARD ALL" : "DEALLOCATE ALL");
    }
    if (f.name.empty()) return wire::command_complete(pending_, "DO");
    if (!statements_.erase(f.name)) return must(!ours(f.name)), fail("no such statement");
    wire::command_complete(pending_, "DEALLOCATE");
  }

  void fail(std::string_view text) {
    wire::error(pending_, "ERROR", "42601", text);
    failed_now_ = true;
    if (status_ == 'T') status_ = 'E';
  }

  void stale() {
    std::string error;
    for (const char* field : {"SERROR", "C0A000", "Mcached plan must not change result type", "RRevalidateCachedQuery"})
      error.append(field).append(1, '\0');
    wire::message(pending_, 'E', error + '\0');
    failed_now_ = true;
    if (status_ == 'T') status_ = 'E';
  }

  void ready() {
    wire::ready_for_query(pending_, status_);
    flush_ = true;
  }

  void done_copying() {
    if (copy_was_simple_) {
      failed_now_ = false;
      ready();
    } else if (failed_now_) {
      skipping_ = true;
      failed_now_ = false;
    }
  }

  std::optional<auth::ScramServer> scram_;
  bool started_ = false, welcome_ = false, copying_ = false, skipping_ = false, failed_now_ = false, flush_ = false;
  bool copy_was_simple_ = false;
  char status_ = 'I';
  std::string pending_;
  std::set<std::string> doubted_;
  std::map<std::string, Prepared> statements_;
  std::map<std::string, std::string> portals_;
  std::optional<Prepared> unnamed_;
};

// An engine without sockets: what is sent is appended to a string, what is received is handed in.
class PipeEngine final : public net::EngineCore {
 public:
  ~PipeEngine() override { release_everything(); }
  const char* name() const override { return "pipe"; }

  std::function<void(net::Stream&, Bytes)> on_send;
  std::function<void(net::Stream&)> on_deaf;  // nothing may be delivered to it any more
  std::function<void(int)> on_close;          // of a descriptor
  std::function<bool()> next;                 // deliver something; false: there is nothing left

  void give(net::Stream& s, Bytes bytes) {
    s.bytes_in += bytes.size();
    deliver(s, {bytes, nullptr});
  }
  void end(net::Stream& s) { ended(s, 0); }
  void set_time(Usec now) { now_ = now; }

 private:
  void start_reading(net::Stream&) override {}
  void stop_reading(net::Stream& s) override { on_deaf(s); }
  void abort(net::Stream& s) override { on_deaf(s); }
  void start_connect(net::Stream& s) override { connect_result(s, 0); }
  void flush(net::Stream& s) override {
    iovec parts[net::kMaxIovecs];
    while (const unsigned n = gather(s, parts)) {
      std::size_t total = 0;
      for (unsigned i = 0; i < n; ++i) {
        on_send(s, {static_cast<const std::uint8_t*>(parts[i].iov_base), parts[i].iov_len});
        total += parts[i].iov_len;
      }
      sent(s, total);
    }
  }
  void before_detach(net::Stream&) override {}
  void more_work(net::Stream&) override {}
  void watch(Listener&) override {}
  void unwatch(Listener&) override {}
  void recycle(net::Buffer&) override {}
  bool may_lend(const net::Buffer&) const override { return false; }
  void close_fd(int fd) override {
    on_close(fd);
    if (fd < kClientFd) ::close(fd);
  }
  void wait(Usec timeout) override {
    const Usec time = now_;
    woke_up();
    now_ = time;
    if (timeout != 0 && !next()) stop();
  }

 public:
  static constexpr int kClientFd = 1'000'000;  // from here on numbers of no socket
};

// One worker's world.
class World final : public Env, public net::LoopOwner {
 public:
  World(Shared& shared_, Log& log_, std::shared_ptr<const config::Config> config_) : Env(shared_, log_, 0) {
    config = std::move(config_);
    auto setup = make_tls_setup(*config);
    tls = setup ? *setup : std::make_shared<TlsSetup>();
    engine = &pipes;
    pipes.set_time(kStart);
    pipes.on_send = [this](net::Stream& s, Bytes bytes) { sent_by_us(s, bytes); };
    pipes.on_deaf = [this](net::Stream& s) {
      if (s.fd() >= PipeEngine::kClientFd)
        person(s).stream = nullptr;
      else if (auto it = peers.find(s.fd()); it != peers.end())
        it->second.stream = nullptr;
    };
    pipes.on_close = [this](int fd) { peers.erase(fd); };
  }
  ~World() {
    for (Client* c : clients_) {
      if (!c) continue;
      c->stream->close();
      delete c;
    }
    for (auto& p : pools_)
      if (p) p->abandon();
    bury_the_dead();
  }

  struct Person {
    Client* client = nullptr;       // null: gone
    net::Stream* stream = nullptr;  // null: nothing is read from it any more
    std::string out;                // what it was told
  };
  struct Peer {  // a server, or one end of a cancel request
    net::Stream* stream = nullptr;
    Backend backend;
    std::string queue;  // on its way to the pooler
    bool eof = false;   // behind it
  };

  PipeEngine pipes;
  std::vector<Person> people;
  std::map<int, Peer> peers;  // by descriptor
  bool strict = false;
  Backend::Asks asks = Backend::Asks::nothing;

  void connect_client() {
    const int fd = PipeEngine::kClientFd + static_cast<int>(people.size());
    people.emplace_back();
    people.back().client = new Client(*this, fd, false);
    people.back().stream = people.back().client->stream;
  }
  Pool* first_pool() { return pools_.empty() ? nullptr : pools_[0].get(); }
  Pool& pool(pool::PoolShared& p) override {
    if (pools_.size() <= p.number) pools_.resize(p.number + 1);
    if (!pools_[p.number]) pools_[p.number] = std::make_unique<Pool>(*this, p);
    return *pools_[p.number];
  }
  template <class F>
  void each_pool(F&& f) {
    for (auto& p : pools_)
      if (p) f(*p);
  }

 private:
  void sent_by_us(net::Stream& s, Bytes bytes) {
    if (s.fd() >= PipeEngine::kClientFd) {
      person(s).out += as_text(bytes);
      return;
    }
    auto [it, fresh] = peers.try_emplace(s.fd());
    if (fresh) {
      it->second.stream = &s;
      it->second.backend.strict = strict;
      it->second.backend.asks = asks;
    }
    it->second.backend.in += as_text(bytes);
  }
  Person& person(net::Stream& s) { return people[static_cast<std::size_t>(s.fd() - PipeEngine::kClientFd)]; }

  Usec on_turn(Usec) override {
    auto tasks = std::exchange(tasks_, {});
    for (auto& task : tasks) task();
    bury_the_dead();
    return tasks_.empty() ? -1 : 0;
  }
  void on_wake() override {}

  void bury_the_dead() {
    for (Client* c : dead_clients_) delete c;
    for (Server* s : dead_servers_) delete s;
    for (CancelLink* l : dead_links_) delete l;
    dead_clients_.clear();
    dead_servers_.clear();
    dead_links_.clear();
  }
  Client* find(ClientHandle h) {
    Client* c = h.slot < clients_.size() ? clients_[h.slot] : nullptr;
    return c && c->id == h.id ? c : nullptr;
  }

  void bury(Client* c) override {
    clients_[c->slot] = nullptr;
    for (Person& p : people)
      if (p.client == c) p.client = nullptr;
    dead_clients_.push_back(c);
  }
  void bury(Server* s) override { dead_servers_.push_back(s); }
  void bury(CancelLink* l) override { dead_links_.push_back(l); }
  std::uint32_t add_client(Client* c) override {
    clients_.push_back(c);
    return static_cast<std::uint32_t>(clients_.size() - 1);
  }
  void ship(Server*, int, int) override { must(false); }  // there is nobody else
  void ship(Client*, int, int) override { must(false); }
  void ask_for_server(pool::PoolShared&, int, int) override { must(false); }
  void poke(pool::PoolShared& p) override {
    later([this, &p] { pool(p).service(); });
  }
  void poke_after_close(pool::PoolShared& p) override { poke(p); }
  void evict_idle(pool::PoolShared& p, pool::Permit::Refused) override {
    later([this, &p] { pool(p).evict_one(); });
  }
  void fail_waiters(pool::PoolShared& p, std::string sqlstate, std::string text) override {
    pool(p).fail_waiters(sqlstate, text);
  }
  void cancel(const wire::SentKey& key, ClientHandle requester) override {
    later([this, key, requester] {
      Client* target = find(shared.cancels.find(key.key));
      if (!target || !target->owns(key)) return cancel_done(requester, "failed cancel request");
      CancelLink::begin(*target, requester);
    });
  }
  void cancel_done(ClientHandle requester, std::string_view reason) override {
    later([this, requester, reason] {
      if (Client* c = find(requester)) c->cancel_settled(reason);
    });
  }
  void resolve(std::string, Server*) override { must(false); }
  void resolve_peer(std::string, std::uint64_t) override { must(false); }
  bool judge(Client&, auth::ExternalRequest) override { return false; }
  void console(Client& c, std::string) override {
    later([this, h = ClientHandle{0, c.slot, c.id}] {
      std::string out;
      wire::ready_for_query(out, 'I');
      if (Client* client = find(h)) client->console_reply(out, false);
    });
  }
  void cancel_console(Client&) override {}

  void later(std::function<void()> task) {
    tasks_.push_back(std::move(task));
    pipes.wake();
  }

  std::vector<Client*> clients_, dead_clients_;
  std::vector<Server*> dead_servers_;
  std::vector<CancelLink*> dead_links_;
  std::vector<std::unique_ptr<Pool>> pools_;
  std::vector<std::function<void()>> tasks_;
};

// Configurations by number, read once.
inline std::shared_ptr<const config::Config> configuration(std::size_t number) {
  struct Files : config::FileReader {
    std::string ini;
    std::optional<std::string> read(const std::string& path, std::string&) override {
      if (path == "users") return "\"u\" \"secret\"\n\"s\" \"md5abc\"\n";
      if (path == "rules") return "host all u all scram-sha-256\nhost all all all reject\nlocal all all trust\n";
      return ini;
    }
  };
  static const auto all = [] {
    static constexpr const char* kVariants[] = {
        "auth_type=any\npool_mode=transaction\nmax_prepared_statements=2\n",
        "auth_type=any\npool_mode=transaction\nmax_prepared_statements=0\n",
        "auth_type=any\npool_mode=session\n",
        "auth_type=any\npool_mode=statement\nmax_prepared_statements=100\n",
        "auth_type=plain\npool_mode=transaction\nserver_reset_query_always=1\n",
        ("auth_type=any\npool_mode=transaction\nmax_prepared_statements=100\nmax_client_prepared_statements=2\n"
         "max_prepared_statement_memory=300\nmax_packet_size=2000\ntrack_extra_parameters=search_path,IntervalStyle\n"),
        "auth_type=scram-sha-256\nscram_iterations=1\n",
        "auth_type=md5\ndisable_pqexec=1\n",
        "auth_type=plain\nauth_user=u\nauth_query=secret\n",
        "auth_type=hba\nauth_hba_file=rules\n",
        "auth_type=pam\n",
        "auth_type=cert\n",
        "auth_type=any\nserver_tls_sslmode=prefer\n",
        "auth_type=trust\nserver_lifetime=0\nserver_check_query=s\nserver_check_delay=0\n",
        "auth_type=ldap\n",
        "auth_type=peer\nmax_client_conn=1\n",
    };
    std::vector<std::shared_ptr<const config::Config>> made;
    for (const char* variant : kVariants) {
      Files files;
      const char* host = std::string_view(variant).contains("tls") ? "host=127.0.0.1 max_protocol_version=latest" : "";
      files.ini = fmt::format(
          "[databases]\ndb=user=u {0}\n* = user=u {0}\nstrict=user=u require_auth=scram-sha-256\n"
          "odd=user=s connect_query=s\n[pgbouncer]\nauth_file=users\nlisten_port=6432\nadmin_users=u\n"
          "unix_socket_dir=/tmp\ndefault_pool_size=1\n{1}",
          host, variant);
      config::LoadResult loaded = config::load("f.ini", files);
      must(loaded.config != nullptr);
      made.push_back(loaded.config);
    }
    return made;
  }();
  return all[number % all.size()];
}

}  // namespace pgf::session::kit
