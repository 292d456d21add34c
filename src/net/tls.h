#pragma once
// TLS as a filter over bytes: what the other side sent goes in, what it is to get comes out. It knows no socket, so it
// is the same on both engines and moves with its connection. The only pair of files that knows OpenSSL's SSL.
#include <cstdint>
#include <expected>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/bytes.h"

struct ssl_st;
struct ssl_ctx_st;
struct x509_store_ctx_st;

namespace pgf::net {

struct TlsOptions {
  enum class Side { accept, connect };
  enum class Verify {
    none,      // connect: whoever answers
    if_given,  // accept: a certificate is asked for; one that is shown must be good
    chain,     // there must be one, signed by the CA
    name,      // connect: and made for the host that was dialled (accept: as chain)
  };
  Side side = Side::accept;
  Verify verify = Verify::none;
  std::string prefix;                   // "client_tls" or "server_tls": how errors name the settings
  std::string key_file{}, cert_file{};  // empty: no certificate of our own (connect only)
  std::string ca_file{};                // empty: the system's
  std::string protocols = "secure";     // tlsv1.0, …, tlsv1, all, secure, default; `!` takes away
  std::string ciphers = "default";      // OpenSSL's list, up to TLS 1.2; default, secure, normal, fast: the library's
  std::string suites{};                 // TLS 1.3; empty: the library's
  std::string dheparams = "auto";       // auto, none
  std::string curve = "auto";           // auto, none (the library's), or a name
};

// What all connections of one side share: certificates, key, rules. Immutable; any thread.
class TlsContext {
 public:
  // Reads the files. The error names the setting and what is wrong with it.
  static std::expected<std::shared_ptr<const TlsContext>, std::string> make(const TlsOptions& options);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  // The same rules and the same contents of the files?
  bool same_as(const TlsContext& other) const { return digest_ == other.digest_; }

 private:
  friend class Tls;
  TlsContext() = default;
  ssl_ctx_st* context_ = nullptr;
  std::string digest_;
  TlsOptions::Verify verify_ = TlsOptions::Verify::none;
};

// One connection's filter.
class Tls {
 public:
  // Takes what is to be sent to the other side.
  class Out {
   public:
    virtual void put(Bytes cipher) = 0;

   protected:
    ~Out() = default;
  };

  // direct: there was no SSLRequest, so the ALPN protocol "postgresql" is demanded (PostgreSQL 17's rule).
  static std::unique_ptr<Tls> accept(const TlsContext& context, bool direct);
  // host: what was dialled, a name or an address; verified if the context says so.
  static std::unique_ptr<Tls> connect(const TlsContext& context, const std::string& host, bool direct);
  // Only to see whether somebody answers: any certificate will do, and nothing is said inside.
  static std::unique_ptr<Tls> anybody(const TlsContext& context);
  ~Tls();
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;

  enum class State : std::uint8_t {
    handshake,
    open,
    closed,  // the other side said goodbye; nothing more comes in
    failed,  // see error(); nothing more in either direction
  };
  State state() const { return state_; }
  bool open() const { return state_ == State::open; }
  const std::string& error() const { return error_; }

  void start(Out& out);  // connect: says hello
  // Uses up all of `cipher`; returns how much plaintext lies in `plain` now, which must have room for
  // kRoom + cipher.size(). May change the state, and may have to say something to the other side.
  std::size_t read(Bytes cipher, std::span<std::uint8_t> plain, Out& out);
  // Only while open, or after the other side's goodbye.
  void write(Bytes plain, Out& out);
  void close(Out& out);  // says goodbye

  // "TLSv1.3/TLS_AES_256_GCM_SHA384/ECDH=X25519", as PgBouncer shows it. Valid once open.
  std::string info() const;
  // RFC 5929's tls-server-end-point: the hash of the server's certificate. Empty if its signature names no hash.
  std::string channel_binding() const;
  // Did the other side show a (then: verified) certificate?
  bool has_peer_certificate() const;
  // Is one of its names (common name, DNS names) exactly this one?
  bool peer_is(std::string_view name) const;

  // A record can be held back inside until its last byte is there.
  static constexpr std::size_t kRoom = 16 * 1024 + 1024;
  // PostgreSQL's size of a record. libpq before 2025 (and drivers like it) asks the socket whether there is more, while
  // the rest of a larger record waits inside OpenSSL.
  static constexpr std::size_t kMaxRecord = 8192;

 private:
  friend struct TlsHooks;  // OpenSSL's callbacks
  Tls(const TlsContext& context, std::string host, bool direct);
  void handshake();
  void fail(const char* what);

  ssl_st* ssl_;
  State state_ = State::handshake;
  const bool direct_;
  bool check_name_ = false;
  std::string host_;  // until the handshake is over
  std::string error_;
  Bytes in_;  // during a call
  Out* out_ = nullptr;
};

}  // namespace pgf::net
