#include "net/tls.h"

#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <deque>
#include <fstream>

#include "net/engine_test_kit.h"

namespace pgf::net {
namespace {

using Side = TlsOptions::Side;
using Verify = TlsOptions::Verify;

// A folder with certificates made on the spot: an authority, and what it signed.
class Certificates {
 public:
  explicit Certificates(const std::string& authority = "Test CA") {
    char name[] = "/tmp/pgf-tls-XXXXXX";
    dir_ = ::mkdtemp(name);
    ca_key_ = EVP_EC_gen("P-256");
    ca_ = make("/ca", authority, ca_key_, {}, true);
  }
  ~Certificates() {
    X509_free(ca_);
    EVP_PKEY_free(ca_key_);
    for (const std::string& f : files_) ::unlink(f.c_str());
    ::rmdir(dir_.c_str());
  }
  // NAME.crt and NAME.key.
  void issue(const std::string& name, const std::string& common_name, const std::string& alternatives) {
    EVP_PKEY* key = EVP_EC_gen("P-256");
    X509_free(make("/" + name, common_name, key, alternatives, false));
    EVP_PKEY_free(key);
  }
  std::string path(const std::string& name) const { return dir_ + "/" + name; }

 private:
  X509* make(const std::string& file, const std::string& cn, EVP_PKEY* key, const std::string& names, bool ca) {
    X509* x = X509_new();
    X509_set_version(x, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(x), ++serial_);
    X509_gmtime_adj(X509_getm_notBefore(x), -3600);
    X509_gmtime_adj(X509_getm_notAfter(x), 24 * 3600);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_UTF8,
                               reinterpret_cast<const unsigned char*>(cn.c_str()), -1, -1, 0);
    X509_set_issuer_name(x, X509_get_subject_name(ca ? x : ca_));
    X509_set_pubkey(x, key);
    auto extend = [&](int nid, const char* value) {
      X509_EXTENSION* e = X509V3_EXT_conf_nid(nullptr, nullptr, nid, value);
      X509_add_ext(x, e, -1);
      X509_EXTENSION_free(e);
    };
    if (ca) extend(NID_basic_constraints, "critical,CA:TRUE");
    if (!names.empty()) extend(NID_subject_alt_name, names.c_str());
    X509_sign(x, ca_key_, EVP_sha256());
    write(file + ".crt", [&](FILE* f) { PEM_write_X509(f, x); });
    write(file + ".key", [&](FILE* f) { PEM_write_PrivateKey(f, key, nullptr, nullptr, 0, nullptr, nullptr); });
    return x;
  }
  template <class F>
  void write(const std::string& name, F content) {
    files_.push_back(dir_ + name);
    FILE* f = std::fopen(files_.back().c_str(), "w");
    content(f);
    std::fclose(f);
  }

  std::string dir_;
  std::vector<std::string> files_;
  EVP_PKEY* ca_key_;
  X509* ca_ = nullptr;
  int serial_ = 0;
};

const Certificates& certificates() {
  static Certificates made;
  static bool issued = [] {
    made.issue("server", "db.example.com", "DNS:localhost,DNS:*.pool.example.com,IP:127.0.0.1");
    made.issue("plain", "db.example.com", "");
    made.issue("alice", "alice", "DNS:alice.example.com");
    return true;
  }();
  (void)issued;
  return made;
}

TlsOptions accepting(const std::string& name = "server") {
  return {.side = Side::accept,
          .prefix = "client_tls",
          .key_file = certificates().path(name + ".key"),
          .cert_file = certificates().path(name + ".crt")};
}
TlsOptions connecting(Verify verify = Verify::none) {
  return {.side = Side::connect, .verify = verify, .prefix = "server_tls", .ca_file = certificates().path("ca.crt")};
}
std::shared_ptr<const TlsContext> context(const TlsOptions& options) {
  auto made = TlsContext::make(options);
  EXPECT_TRUE(made) << (made ? "" : made.error());
  return made ? *made : nullptr;
}

struct Collect final : Tls::Out {
  std::string bytes;
  std::size_t largest = 0;
  void put(Bytes cipher) override {
    bytes += as_text(cipher);
    largest = std::max(largest, cipher.size());
  }
};

struct End {
  explicit End(std::unique_ptr<Tls> t) : tls(std::move(t)) {}
  std::unique_ptr<Tls> tls;
  Collect out;
  std::string in;
  void take(std::string_view cipher) {
    std::vector<std::uint8_t> plain(cipher.size() + Tls::kRoom);
    std::size_t n = tls->read(as_bytes(cipher), plain, out);
    in += as_text({plain.data(), n});
  }
  void send(std::string_view text) { tls->write(as_bytes(text), out); }
};

// Carries bytes both ways until nothing moves any more, `step` at a time.
void carry(End& a, End& b, std::size_t step = 1 << 20) {
  auto move = [step](End& from, End& to) {
    std::string bytes = std::exchange(from.out.bytes, {});
    for (std::size_t at = 0; at < bytes.size(); at += step) to.take(std::string_view(bytes).substr(at, step));
    return !bytes.empty();
  };
  while (move(a, b) | move(b, a)) {
  }
}

struct Pair {
  explicit Pair(const TlsOptions& server = accepting(), const TlsOptions& client = connecting(),
                const std::string& host = "localhost", bool direct_server = false, bool direct_client = false)
      : s(Tls::accept(*context(server), direct_server)), c(Tls::connect(*context(client), host, direct_client)) {
    c.tls->start(c.out);
  }
  End s, c;
};

TEST(Tls, HandshakeAndData) {
  Pair p;
  carry(p.c, p.s);
  ASSERT_TRUE(p.c.tls->open() && p.s.tls->open()) << p.c.tls->error() << p.s.tls->error();
  EXPECT_EQ(p.s.tls->info(), p.c.tls->info());
  EXPECT_TRUE(p.s.tls->info().starts_with("TLSv1.3/TLS_")) << p.s.tls->info();
  EXPECT_NE(p.s.tls->info().find("/ECDH="), std::string::npos);
  EXPECT_FALSE(p.s.tls->has_peer_certificate());
  p.c.send("hello");
  p.s.send("world");
  carry(p.c, p.s);
  EXPECT_EQ(p.s.in, "hello");
  EXPECT_EQ(p.c.in, "world");
}

TEST(Tls, SplitAtEveryByteInBothVersions) {
  for (const char* version : {"tlsv1.2", "tlsv1.3"}) {
    TlsOptions client = connecting(Verify::name);
    client.protocols = version;
    Pair p(accepting(), client);
    carry(p.c, p.s, 1);
    ASSERT_TRUE(p.c.tls->open() && p.s.tls->open()) << version;
    std::string text(20000, 'x');
    p.c.send(text);
    p.s.send(text);
    p.s.send("end");
    carry(p.c, p.s, 1);
    EXPECT_EQ(p.s.in, text);
    EXPECT_EQ(p.c.in, text + "end");
  }
}

TEST(Tls, RecordsAreAsSmallAsPostgresqls) {
  Pair p;
  carry(p.c, p.s);
  p.s.out.largest = 0;
  p.s.send(std::string(100'000, 'x'));
  EXPECT_GT(p.s.out.largest, Tls::kMaxRecord / 2);
  EXPECT_LE(p.s.out.largest, Tls::kMaxRecord + 256);
  carry(p.c, p.s);
  EXPECT_EQ(p.c.in.size(), 100'000u);
}

TEST(Tls, NothingStaysInsideWhenManyRecordsComeAtOnce) {
  Pair p;
  carry(p.c, p.s);
  for (int i = 0; i < 1000; ++i) p.c.send("0123456789");
  p.s.take(std::exchange(p.c.out.bytes, {}));  // one call
  EXPECT_EQ(p.s.in.size(), 10'000u);
}

TEST(Tls, GoodbyeAndWhatComesAfterIt) {
  Pair p;
  carry(p.c, p.s);
  p.c.send("last");
  p.c.tls->close(p.c.out);
  p.s.take(p.c.out.bytes + "clear text behind it");
  EXPECT_EQ(p.s.in, "last");
  EXPECT_EQ(p.s.tls->state(), Tls::State::closed);
}

TEST(Tls, AlteredOrClearBytesAreRefused) {
  Pair p;
  carry(p.c, p.s);
  p.c.send("secret");
  std::string altered = std::exchange(p.c.out.bytes, {});
  altered[altered.size() / 2] ^= 1;
  p.s.take(altered);
  EXPECT_EQ(p.s.tls->state(), Tls::State::failed);
  EXPECT_EQ(p.s.in, "");
  EXPECT_FALSE(p.s.out.bytes.empty());  // the alert
  p.s.take("more");
  p.s.send("unheard");
  EXPECT_EQ(p.s.in, "");

  Pair clear;
  carry(clear.c, clear.s);
  clear.s.take(std::string("Q\0\0\0\x0dselect 1", 13));
  EXPECT_EQ(clear.s.tls->state(), Tls::State::failed);
  EXPECT_EQ(clear.s.in, "");
}

TEST(Tls, GarbageForAHello) {
  for (std::string hello : {std::string("\x16\x03\x01\x00\x05hello", 10), std::string(300, '\x16'),
                            std::string("\x16\x03\x01\xff\xff", 5) + std::string(70'000, 'a'), std::string(9, '\0')}) {
    End s(Tls::accept(*context(accepting()), false));
    s.take(hello);
    EXPECT_EQ(s.tls->state(), Tls::State::failed) << hello.size();
    EXPECT_TRUE(s.tls->error().starts_with("handshake failed: ")) << s.tls->error();
    EXPECT_EQ(s.in, "");
  }
}

TEST(Tls, ATruncatedHandshakeJustWaits) {
  Pair p;
  p.s.take(p.c.out.bytes.substr(0, p.c.out.bytes.size() - 1));
  EXPECT_EQ(p.s.tls->state(), Tls::State::handshake);
  EXPECT_EQ(p.s.out.bytes, "");
}

TEST(Tls, Names) {
  auto opens = [](const std::string& host, const std::string& cert, Verify verify = Verify::name) {
    Pair p(accepting(cert), connecting(verify), host);
    carry(p.c, p.s);
    if (!p.c.tls->open()) {
      EXPECT_NE(p.c.tls->error().find("certificate verify failed"), std::string::npos) << p.c.tls->error();
    }
    return p.c.tls->open();
  };
  EXPECT_TRUE(opens("localhost", "server"));
  EXPECT_TRUE(opens("LOCALHOST", "server"));
  EXPECT_TRUE(opens("127.0.0.1", "server"));
  EXPECT_TRUE(opens("a.pool.example.com", "server"));
  EXPECT_TRUE(opens("db.example.com", "server"));  // the common name counts too, as in PgBouncer
  EXPECT_TRUE(opens("db.example.com", "plain"));
  EXPECT_FALSE(opens("a.b.pool.example.com", "server"));
  EXPECT_FALSE(opens("pool.example.com", "server"));
  EXPECT_FALSE(opens("127.0.0.2", "server"));
  EXPECT_FALSE(opens("::1", "server"));
  EXPECT_FALSE(opens("localhost", "plain"));
  EXPECT_TRUE(opens("localhost", "plain", Verify::chain));
}

TEST(Tls, AnotherAuthorityIsRefused) {
  Certificates other("Another CA");
  TlsOptions client = connecting(Verify::chain);
  client.ca_file = other.path("ca.crt");
  Pair p(accepting(), client);
  carry(p.c, p.s);
  EXPECT_EQ(p.c.tls->state(), Tls::State::failed);
  EXPECT_NE(p.c.tls->error().find("certificate verify failed"), std::string::npos) << p.c.tls->error();
  EXPECT_EQ(p.s.tls->state(), Tls::State::failed);
  EXPECT_NE(p.s.tls->error().find("unknown ca"), std::string::npos) << p.s.tls->error();
}

TEST(Tls, ClientCertificates) {
  TlsOptions client = connecting(), server = accepting();
  server.ca_file = certificates().path("ca.crt");
  auto with = [&](Verify verify, const std::string& cert) {
    server.verify = verify;
    client.cert_file = cert.empty() ? "" : certificates().path(cert + ".crt");
    client.key_file = cert.empty() ? "" : certificates().path(cert + ".key");
    auto p = std::make_unique<Pair>(server, client);
    carry(p->c, p->s);
    return p;
  };
  auto alice = with(Verify::chain, "alice");
  ASSERT_TRUE(alice->s.tls->open()) << alice->s.tls->error();
  EXPECT_TRUE(alice->s.tls->has_peer_certificate());
  EXPECT_TRUE(alice->s.tls->peer_is("alice"));
  EXPECT_TRUE(alice->s.tls->peer_is("alice.example.com"));
  for (const char* name : {"Alice", "alic", "alice ", "", "bob"}) EXPECT_FALSE(alice->s.tls->peer_is(name)) << name;
  EXPECT_FALSE(with(Verify::chain, "")->s.tls->open());
  auto nobody = with(Verify::if_given, "");
  EXPECT_TRUE(nobody->s.tls->open());
  EXPECT_FALSE(nobody->s.tls->peer_is("alice"));

  Certificates other;
  other.issue("mallory", "alice", "");
  for (Verify verify : {Verify::chain, Verify::if_given}) {  // what is shown must be good even if it need not be shown
    server.verify = verify;
    client.cert_file = other.path("mallory.crt");
    client.key_file = other.path("mallory.key");
    Pair p(server, client);
    carry(p.c, p.s);
    EXPECT_EQ(p.s.tls->state(), Tls::State::failed);
  }
}

TEST(Tls, DirectTlsNeedsAlpn) {
  auto state = [](bool direct_server, bool direct_client) {
    Pair p(accepting(), connecting(), "localhost", direct_server, direct_client);
    carry(p.c, p.s);
    return std::pair(p.s.tls->open(), p.c.tls->open());
  };
  EXPECT_EQ(state(true, true), std::pair(true, true));
  EXPECT_EQ(state(true, false), std::pair(false, false));
  EXPECT_EQ(state(false, false), std::pair(true, true));
  EXPECT_EQ(state(false, true), std::pair(true, true));
}

// A peer of the library's own, for what our side never does.
struct Raw {
  explicit Raw(int version) {
    context = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_max_proto_version(context, version);
    ssl = SSL_new(context);
    SSL_set_bio(ssl, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    SSL_set_connect_state(ssl);
  }
  ~Raw() {
    SSL_free(ssl);
    SSL_CTX_free(context);
  }
  std::string sent() {
    char buffer[65536];
    int n = BIO_read(SSL_get_wbio(ssl), buffer, sizeof buffer);
    return {buffer, n > 0 ? static_cast<std::size_t>(n) : 0};
  }
  // What we send goes to `end`, its answers come back, until both are silent.
  void talk(End& end, std::string* plain = nullptr) {
    for (int i = 0; i < 20; ++i) {
      if (SSL_is_init_finished(ssl)) {
        char buffer[1000];
        int n;
        while ((n = SSL_read(ssl, buffer, sizeof buffer)) > 0)
          if (plain) plain->append(buffer, static_cast<std::size_t>(n));
      } else {
        SSL_do_handshake(ssl);
      }
      ERR_clear_error();
      end.take(sent());
      std::string answer = std::exchange(end.out.bytes, {});
      BIO_write(SSL_get_rbio(ssl), answer.data(), static_cast<int>(answer.size()));
    }
  }
  SSL_CTX* context;
  SSL* ssl;
};

TEST(Tls, RenegotiationIsRefused) {
  End s(Tls::accept(*context(accepting()), false));
  Raw raw(TLS1_2_VERSION);
  raw.talk(s);
  ASSERT_TRUE(s.tls->open());
  ASSERT_EQ(SSL_renegotiate(raw.ssl), 1);
  SSL_do_handshake(raw.ssl);
  s.take(raw.sent());
  // Our answer is a warning, not a new handshake; the old keys go on.
  EXPECT_LT(s.out.bytes.size(), 100u);
  EXPECT_TRUE(s.tls->open());
}

TEST(Tls, KeyUpdate) {
  End s(Tls::accept(*context(accepting()), false));
  Raw raw(TLS1_3_VERSION);
  raw.talk(s);
  ASSERT_TRUE(s.tls->open());
  SSL_key_update(raw.ssl, SSL_KEY_UPDATE_REQUESTED);
  SSL_write(raw.ssl, "new keys", 8);
  std::string plain;
  raw.talk(s, &plain);
  EXPECT_EQ(s.in, "new keys");
  s.send("here too");
  std::string answer = std::exchange(s.out.bytes, {});
  BIO_write(SSL_get_rbio(raw.ssl), answer.data(), static_cast<int>(answer.size()));
  raw.talk(s, &plain);
  EXPECT_EQ(plain, "here too");
}

TEST(TlsContext, SaysWhatIsWrong) {
  auto error = [](auto change) {
    TlsOptions options = accepting();
    change(options);
    auto made = TlsContext::make(options);
    return made ? std::string() : made.error();
  };
  EXPECT_EQ(error([](TlsOptions&) {}), "");
  EXPECT_EQ(error([](TlsOptions& o) { o.cert_file = "/none.crt"; }),
            "client_tls_cert_file = /none.crt: No such file or directory");
  EXPECT_EQ(error([](TlsOptions& o) { o.key_file = "/none.key"; }),
            "client_tls_key_file = /none.key: No such file or directory");
  EXPECT_EQ(error([](TlsOptions& o) { o.ca_file = "/none"; }), "client_tls_ca_file = /none: No such file or directory");
  EXPECT_EQ(error([](TlsOptions& o) { o.ca_file = o.key_file; }),
            "client_tls_ca_file = " + certificates().path("server.key") + ": holds no certificate that can be read");
  EXPECT_NE(error([](TlsOptions& o) { o.cert_file = o.key_file; }), "");
  EXPECT_NE(error([](TlsOptions& o) { o.cert_file = "/tmp"; }), "");
  EXPECT_NE(error([](TlsOptions& o) { o.key_file = certificates().path("plain.key"); }).find("does not belong to"),
            std::string::npos);
  EXPECT_EQ(error([](TlsOptions& o) { o.suites = "unknown"; }),
            "failed to set the TLSv1.3 cipher suites: client_tls13_ciphers = unknown");
  EXPECT_EQ(error([](TlsOptions& o) { o.ciphers = "unknown"; }), "failed to set ciphers: client_tls_ciphers = unknown");
  for (const char* good : {"tlsv1.0", "tlsv1", "all", "secure", "default", "TLSv1.2,tlsv1.3", "tlsv1.2:tlsv1.3",
                           "all,!tlsv1.0", "!tlsv1.3", "tlsv1.0, tlsv1.3", ""})
    EXPECT_EQ(error([&](TlsOptions& o) { o.protocols = good; }), "") << good;
  for (const char* bad : {"sslv3", "secure,", "!all", "tls", ",", "secure,foo"}) {
    if (std::string_view(bad) == "secure,") continue;  // a comma at the end ends the list
    EXPECT_EQ(error([&](TlsOptions& o) { o.protocols = bad; }), std::string("invalid client_tls_protocols: ") + bad);
  }
  for (const char* good : {"auto", "none", "P-256", "prime256v1", "secp384r1", "X25519"})
    EXPECT_EQ(error([&](TlsOptions& o) { o.curve = good; }), "") << good;
  EXPECT_EQ(error([](TlsOptions& o) { o.curve = "round"; }), "client_tls_ecdhcurve = round: no such curve");
  EXPECT_EQ(error([](TlsOptions& o) { o.dheparams = "none"; }), "");
  EXPECT_EQ(error([](TlsOptions& o) { o.dheparams = "x"; }), "client_tls_dheparams = x: expected auto or none");
}

TEST(TlsContext, KnowsWhetherAnythingChanged) {
  auto same = [](auto change) {
    TlsOptions changed = connecting(Verify::chain);
    change(changed);
    return context(connecting(Verify::chain))->same_as(*context(changed));
  };
  EXPECT_TRUE(same([](TlsOptions&) {}));
  EXPECT_FALSE(same([](TlsOptions& o) { o.protocols = "tlsv1.3"; }));
  EXPECT_FALSE(same([](TlsOptions& o) { o.verify = Verify::name; }));
  EXPECT_FALSE(same([](TlsOptions& o) { o.ciphers = "HIGH"; }));
  Certificates other;
  // Another file of the same content is the same; the same name with another content is not.
  std::string copy = other.path("copy.crt");
  std::ofstream(copy) << std::ifstream(certificates().path("ca.crt")).rdbuf();
  EXPECT_TRUE(same([&](TlsOptions& o) { o.ca_file = copy; }));
  TlsOptions named = connecting(Verify::chain);
  named.ca_file = copy;
  auto before = context(named);
  std::ofstream(copy) << std::ifstream(other.path("ca.crt")).rdbuf();
  EXPECT_FALSE(before->same_as(*context(named)));
  ::unlink(copy.c_str());
}

// ---- on a stream

class TlsStream : public test::EngineTest {};
PGF_BOTH_ENGINES(TlsStream);

// The engine's side accepts, the test's side is a filter over the other end of the socket pair.
struct Peer {
  Peer(int fd_, std::unique_ptr<Tls> tls) : fd(fd_), end(std::move(tls)) { end.tls->start(end.out); }
  void pump() {
    std::string got = test::drain(fd);
    if (!got.empty()) end.take(got);
    std::string& out = end.out.bytes;
    ssize_t n = out.empty() ? 0 : ::send(fd, out.data(), out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) out.erase(0, static_cast<std::size_t>(n));
  }
  int fd;
  End end;
};

TEST_P(TlsStream, TalksBothWaysAndSaysGoodbye) {
  test::Pair p;
  test::Owner o;
  Stream* s = engine->adopt(p.fd[0], Kind::client, &o);
  s->resume();
  s->send(as_bytes("S"));
  s->start_tls(Tls::accept(*context(accepting()), false));
  s->send(as_bytes("waits for the handshake"));
  std::string first;
  ASSERT_TRUE(loop->until([&] { return (first += test::drain(p.peer(), 1)) == "S"; }));
  Peer peer(p.peer(), Tls::connect(*context(connecting()), "localhost", false));
  ASSERT_TRUE(loop->until([&] {
    peer.pump();
    return peer.end.in == "waits for the handshake";
  }));
  EXPECT_EQ(o.secured, 1);
  std::string big(3'000'000, 'b');
  peer.end.send(big);
  s->send(as_bytes(big));
  ASSERT_TRUE(loop->until([&] {
    peer.pump();
    return o.in.size() == big.size() && peer.end.in.size() == 23 + big.size();
  }));
  EXPECT_EQ(s->queued(), 0u);
  s->send(as_bytes("bye"));
  s->close_after_flush();
  ASSERT_TRUE(loop->until([&] {
    peer.pump();
    return peer.end.tls->state() == Tls::State::closed;
  }));
  EXPECT_TRUE(peer.end.in.ends_with("bye"));
}

TEST_P(TlsStream, ForwardsLentBuffers) {
  test::Pair in, out;
  test::Owner source, sink;
  Stream* to = engine->adopt(out.fd[0], Kind::client, &sink);
  to->resume();
  to->start_tls(Tls::accept(*context(accepting()), false));
  Peer peer(out.peer(), Tls::connect(*context(connecting()), "localhost", false));
  ASSERT_TRUE(loop->until([&] {
    peer.pump();
    return sink.secured == 1;
  }));
  Stream* from = engine->adopt(in.fd[0], Kind::server, &source);
  source.bytes = [&](Stream& s, const Received& r) {
    to->forward(r, r.bytes);
    s.arm();
  };
  from->arm();
  std::string sent;
  ASSERT_TRUE(loop->until([&] {
    if (sent.size() < 1'000'000) {
      std::string piece(20'000, static_cast<char>('a' + sent.size() / 20'000 % 26));
      ssize_t n = ::send(in.peer(), piece.data(), piece.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n > 0) sent += piece.substr(0, static_cast<std::size_t>(n));
    }
    peer.pump();
    return sent.size() >= 1'000'000 && peer.end.in.size() == sent.size();
  }));
  EXPECT_EQ(peer.end.in, sent);
}

TEST_P(TlsStream, PausedBytesAreKept) {
  test::Pair p;
  test::Owner o;
  Stream* s = engine->adopt(p.fd[0], Kind::client, &o);
  s->resume();
  s->start_tls(Tls::accept(*context(accepting()), false));
  Peer peer(p.peer(), Tls::connect(*context(connecting()), "localhost", false));
  ASSERT_TRUE(loop->until([&] {
    peer.pump();
    return o.secured == 1 && peer.end.tls->open();
  }));
  s->pause();
  peer.end.send(std::string(50'000, 'p'));
  peer.pump();
  loop->spin(20 * kMillisecond);
  EXPECT_EQ(o.in, "");
  s->resume();
  ASSERT_TRUE(loop->until([&] {
    peer.pump();
    return o.in.size() == 50'000;
  }));
}

TEST_P(TlsStream, MovesToAnotherEngine) {
  test::Pair p;
  test::Owner o;
  Stream* s = engine->adopt(p.fd[0], Kind::server, &o);
  s->start_tls(Tls::connect(*context(connecting()), "localhost", false));
  s->arm();
  Peer peer(p.peer(), Tls::accept(*context(accepting()), false));
  ASSERT_TRUE(loop->until([&] {
    peer.pump();
    return o.secured == 1 && peer.end.tls->open();
  }));
  s->detach();
  ASSERT_TRUE(loop->until([&] { return o.detached_fd >= 0; }));
  ASSERT_TRUE(o.detached_tls);
  test::Owner o2;
  auto other = make();
  Stream* s2 = other->adopt(o.detached_fd, Kind::server, &o2);
  s2->start_tls(std::move(o.detached_tls));
  EXPECT_TRUE(s2->tls()->open());
  s2->send(as_bytes("from over here"));
  s2->arm();
  test::Loop loop2(*other);
  ASSERT_TRUE(loop2.until([&] {
    peer.pump();
    if (peer.end.in == "from over here" && peer.end.tls->open() && o2.in.empty()) peer.end.send("and back");
    peer.pump();
    return o2.in == "and back";
  }));
  EXPECT_EQ(o2.secured, 0);
  other.reset();
}

TEST_P(TlsStream, AFailureIsToldOnceAndTheAlertGoesOut) {
  test::Pair p;
  test::Owner o;
  Stream* s = engine->adopt(p.fd[0], Kind::client, &o);
  s->resume();
  s->start_tls(Tls::accept(*context(accepting()), false));
  std::string error;
  o.closed = [&](Stream& stream, int) {
    error = stream.tls()->error();
    stream.send(as_bytes("not in the clear"));
    stream.close_after_flush();
  };
  test::put(p.peer(), std::string_view("\x16\x03\x01\x00\x05hello", 10));
  std::string answer;
  bool closed = false;
  ASSERT_TRUE(loop->until([&] {
    char buffer[100];
    ssize_t n = ::recv(p.peer(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (n > 0) answer.append(buffer, static_cast<std::size_t>(n));
    closed |= n == 0;
    return closed;
  }));
  EXPECT_EQ(o.closes, 1);
  EXPECT_EQ(o.close_error, EPROTO);
  EXPECT_TRUE(error.starts_with("handshake failed")) << error;
  EXPECT_EQ(answer.find("clear"), std::string::npos);
  EXPECT_EQ(answer.substr(0, 1), "\x15");  // an alert
}

TEST_P(TlsStream, HelloThatWasReadAlready) {
  test::Pair p;
  test::Owner o;
  Stream* s = engine->adopt(p.fd[0], Kind::client, &o);
  o.bytes = [&](Stream& stream, const Received& r) {
    if (!stream.tls()) return stream.start_tls(Tls::accept(*context(accepting()), true), r.bytes);
    o.in += as_text(r.bytes);
  };
  s->resume();
  Peer peer(p.peer(), Tls::connect(*context(connecting()), "localhost", true));
  bool said = false;
  ASSERT_TRUE(loop->until([&] {
    if (peer.end.tls->open() && !std::exchange(said, true)) peer.end.send("direct");
    peer.pump();
    return o.in == "direct";
  }));
}

TEST_P(TlsStream, SomebodyWhoOnlyMakesUsAnswerIsLetGo) {
  test::Pair p;
  test::Owner o;
  Stream* s = engine->adopt(p.fd[0], Kind::client, &o);
  s->resume();
  s->start_tls(Tls::accept(*context(accepting()), false));
  Raw raw(TLS1_3_VERSION);
  std::string unsent;
  ASSERT_TRUE(loop->until([&] {
    if (!SSL_is_init_finished(raw.ssl)) SSL_do_handshake(raw.ssl);
    unsent += raw.sent();
    ssize_t n = ::send(p.peer(), unsent.data(), unsent.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) unsent.erase(0, static_cast<std::size_t>(n));
    std::string got = test::drain(p.peer());
    BIO_write(SSL_get_rbio(raw.ssl), got.data(), static_cast<int>(got.size()));
    return o.secured == 1 && unsent.empty();
  }));
  s->send(as_bytes(std::string(2'000'000, 'x')));
  loop->spin(10 * kMillisecond);
  EXPECT_EQ(o.closes, 0) << "much to send is no offence";
  ASSERT_TRUE(loop->until([&] {  // OpenSSL answers one when the next comes
    SSL_key_update(raw.ssl, SSL_KEY_UPDATE_REQUESTED);
    SSL_do_handshake(raw.ssl);
    std::string request = raw.sent();
    (void)!::send(p.peer(), request.data(), request.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    return o.closes == 1;
  }));
  EXPECT_EQ(o.close_error, EPROTO);
  s->close();
}

TEST_P(TlsStream, EndWithoutGoodbye) {
  test::Pair p;
  test::Owner o;
  Stream* s = engine->adopt(p.fd[0], Kind::client, &o);
  s->resume();
  s->start_tls(Tls::accept(*context(accepting()), false));
  Peer peer(p.peer(), Tls::connect(*context(connecting()), "localhost", false));
  ASSERT_TRUE(loop->until([&] {
    peer.pump();
    return o.secured == 1 && peer.end.tls->open();
  }));
  peer.end.send("half a record");
  ASSERT_GT(::send(p.peer(), peer.end.out.bytes.data(), peer.end.out.bytes.size() - 3, MSG_NOSIGNAL), 0);
  p.close_peer();
  ASSERT_TRUE(loop->until([&] { return o.closes == 1; }));
  EXPECT_EQ(o.close_error, 0);
  EXPECT_EQ(o.in, "");
  s->close();
}

}  // namespace
}  // namespace pgf::net
