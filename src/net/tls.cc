#include "net/tls.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace pgf::net {
namespace {

template <auto free>
struct Free {
  template <class T>
  void operator()(T* p) const {
    free(p);
  }
};
template <class T, auto free>
using Owned = std::unique_ptr<T, Free<free>>;
using Bio = Owned<BIO, BIO_free>;
using Certificate = Owned<X509, X509_free>;

constexpr std::uint8_t kAlpn[] = "\x0apostgresql";  // a length and the name
constexpr unsigned kAlpnSize = sizeof kAlpn - 1;

bool same_word(std::string_view a, std::string_view b) {
  auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](char x, char y) { return lower(x) == lower(y); });
}

// The last error that OpenSSL noted, in words: those before it are what its parts said.
std::string reason() {
  unsigned long code = ERR_peek_last_error();
  if (ERR_SYSTEM_ERROR(code)) return std::strerror(ERR_GET_REASON(code));
  const char* text = code ? ERR_reason_error_string(code) : nullptr;
  return text ? text : fmt::format("error {:#x}", code);
}

using Outcome = std::expected<void, std::string>;
std::unexpected<std::string> failed(std::string text) { return std::unexpected(std::move(text)); }

std::expected<std::string, std::string> read_file(const std::string& path) {
  Owned<std::FILE, std::fclose> file{std::fopen(path.c_str(), "re")};
  if (!file) return failed(std::strerror(errno));
  std::string text;
  char piece[4096];
  while (std::size_t n = std::fread(piece, 1, sizeof piece, file.get())) text.append(piece, n);
  OPENSSL_cleanse(piece, sizeof piece);
  if (std::ferror(file.get())) return failed(std::strerror(errno));
  return text;
}

// Builds one context. Every step returns what is wrong.
class Builder {
 public:
  Builder(SSL_CTX* context, const TlsOptions& options) : context_(context), o_(options) {}

  Outcome build() {
    for (auto step : {&Builder::protocols, &Builder::ciphers, &Builder::key_exchange, &Builder::authority,
                      &Builder::certificate, &Builder::habits})
      if (Outcome done = (this->*step)(); !done) return done;
    return {};
  }
  // Of everything that makes a difference: settings and file contents.
  std::string digest() {
    std::array<unsigned char, 32> sum;
    EVP_Digest(seen_.data(), seen_.size(), sum.data(), nullptr, EVP_sha256(), nullptr);
    OPENSSL_cleanse(seen_.data(), seen_.size());
    return {sum.begin(), sum.end()};
  }

 private:
  void note(std::string_view text) {
    seen_ += std::to_string(text.size());
    seen_ += ':';
    seen_ += text;
  }
  // The system's authorities, by their age: an update of them makes a difference.
  void note_system(const char* variable, const char* usual) {
    const char* given = std::getenv(variable);
    struct stat st {};
    if (::stat(given ? given : usual, &st) == 0)
      note(fmt::format("{}.{} {}", st.st_mtim.tv_sec, st.st_mtim.tv_nsec, st.st_size));
  }
  std::unexpected<std::string> wrong(std::string_view key, std::string_view value, std::string_view why) const {
    return failed(fmt::format("{}_{} = {}: {}", o_.prefix, key, value, why));
  }

  Outcome protocols() {
    note(o_.protocols);
    struct Version {
      std::string_view word;
      unsigned bits;
    };
    constexpr unsigned kAll = 15;
    static constexpr Version kWords[] = {{"tlsv1.0", 1}, {"tlsv1.1", 2}, {"tlsv1.2", 4}, {"tlsv1.3", 8},
                                         {"tlsv1", 15},  {"all", 15},    {"secure", 12}, {"default", 12}};
    static constexpr int kNumbers[] = {TLS1_VERSION, TLS1_1_VERSION, TLS1_2_VERSION, TLS1_3_VERSION};
    static constexpr std::uint64_t kOff[] = {SSL_OP_NO_TLSv1, SSL_OP_NO_TLSv1_1, SSL_OP_NO_TLSv1_2, SSL_OP_NO_TLSv1_3};
    unsigned wanted = 0;
    std::string_view list = o_.protocols;
    while (!list.empty()) {
      std::size_t end = list.find_first_of(",:");
      std::string_view word = list.substr(0, end);
      list.remove_prefix(end == list.npos ? list.size() : end + 1);
      while (word.starts_with(' ')) word.remove_prefix(1);
      while (word.ends_with(' ')) word.remove_suffix(1);
      bool take_away = word.starts_with('!');
      if (take_away) word.remove_prefix(1);
      unsigned bits = 0;
      for (const Version& v : kWords)
        if (same_word(v.word, word)) bits = v.bits;
      if (!bits) return failed(fmt::format("invalid {}_protocols: {}", o_.prefix, o_.protocols));
      if (take_away)
        wanted = (wanted ? wanted : kAll) & ~bits;
      else
        wanted |= bits;
    }
    if (o_.protocols.empty()) wanted = kAll;
    if (!wanted) return failed(fmt::format("invalid {}_protocols: {}", o_.prefix, o_.protocols));
    int lowest = 0, highest = 0;
    for (int i = 0; i < 4; ++i) {
      if (!(wanted >> i & 1)) {
        SSL_CTX_set_options(context_, kOff[i]);
        continue;
      }
      if (!lowest) lowest = kNumbers[i];
      highest = kNumbers[i];
    }
    SSL_CTX_set_min_proto_version(context_, lowest);
    SSL_CTX_set_max_proto_version(context_, highest);
    return {};
  }

  Outcome ciphers() {
    note(o_.ciphers);
    note(o_.suites);
    bool own = o_.ciphers.empty();
    for (std::string_view word : {"default", "secure", "normal", "fast"}) own |= same_word(o_.ciphers, word);
    if (!own && SSL_CTX_set_cipher_list(context_, o_.ciphers.c_str()) != 1)
      return failed("failed to set ciphers: " + o_.prefix + "_ciphers = " + o_.ciphers);
    if (!o_.suites.empty() && SSL_CTX_set_ciphersuites(context_, o_.suites.c_str()) != 1) {
      std::string key = o_.prefix.substr(0, o_.prefix.find('_')) + "_tls13_ciphers";
      return failed("failed to set the TLSv1.3 cipher suites: " + key + " = " + o_.suites);
    }
    return {};
  }

  Outcome key_exchange() {
    if (o_.side == TlsOptions::Side::connect) return {};
    note(o_.dheparams);
    note(o_.curve);
    if (same_word(o_.dheparams, "auto"))
      SSL_CTX_set_dh_auto(context_, 1);
    else if (!o_.dheparams.empty() && !same_word(o_.dheparams, "none"))
      return wrong("dheparams", o_.dheparams, "expected auto or none");
    bool own = o_.curve.empty() || same_word(o_.curve, "auto") || same_word(o_.curve, "none");
    if (!own && SSL_CTX_set1_groups_list(context_, o_.curve.c_str()) != 1)
      return wrong("ecdhcurve", o_.curve, "no such curve");
    return {};
  }

  Outcome authority() {
    using Verify = TlsOptions::Verify;
    note(std::to_string(static_cast<int>(o_.verify)));
    int mode = o_.verify == Verify::none ? SSL_VERIFY_NONE : SSL_VERIFY_PEER;
    if (o_.verify >= Verify::chain) mode |= SSL_VERIFY_FAIL_IF_NO_PEER_CERT;
    SSL_CTX_set_verify(context_, mode, nullptr);
    if (o_.ca_file.empty()) {
      if (o_.verify == Verify::none) return {};
      SSL_CTX_set_default_verify_paths(context_);
      note_system(X509_get_default_cert_file_env(), X509_get_default_cert_file());
      note_system(X509_get_default_cert_dir_env(), X509_get_default_cert_dir());
      return {};
    }
    auto text = read_file(o_.ca_file);
    if (!text) return wrong("ca_file", o_.ca_file, text.error());
    note(*text);
    Bio bio(BIO_new_mem_buf(text->data(), static_cast<int>(text->size())));
    int count = 0;
    while (Certificate cert{PEM_read_bio_X509_AUX(bio.get(), nullptr, nullptr, nullptr)}) {
      ++count;
      X509_STORE_add_cert(SSL_CTX_get_cert_store(context_), cert.get());
      if (o_.side == TlsOptions::Side::accept) SSL_CTX_add_client_CA(context_, cert.get());
    }
    if (count == 0) return wrong("ca_file", o_.ca_file, "holds no certificate that can be read");
    ERR_clear_error();  // the end of the file is one, too
    return {};
  }

  Outcome certificate() {
    if (o_.cert_file.empty() && o_.key_file.empty()) return {};
    if (o_.cert_file.empty() || o_.key_file.empty())
      return failed(fmt::format("{0}_key_file and {0}_cert_file must both be set, or none", o_.prefix));
    auto text = read_file(o_.cert_file);
    if (!text) return wrong("cert_file", o_.cert_file, text.error());
    note(*text);
    Bio bio(BIO_new_mem_buf(text->data(), static_cast<int>(text->size())));
    Certificate own{PEM_read_bio_X509_AUX(bio.get(), nullptr, nullptr, nullptr)};
    if (!own || SSL_CTX_use_certificate(context_, own.get()) != 1) return wrong("cert_file", o_.cert_file, reason());
    while (X509* next = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr))
      SSL_CTX_add0_chain_cert(context_, next);
    ERR_clear_error();

    text = read_file(o_.key_file);
    if (!text) return wrong("key_file", o_.key_file, text.error());
    note(*text);
    bio.reset(BIO_new_mem_buf(text->data(), static_cast<int>(text->size())));
    auto nobody = [](char*, int, int, void*) { return -1; };  // OpenSSL's own would ask at the terminal
    Owned<EVP_PKEY, EVP_PKEY_free> key{PEM_read_bio_PrivateKey(bio.get(), nullptr, nobody, nullptr)};
    OPENSSL_cleanse(text->data(), text->size());
    if (!key) return wrong("key_file", o_.key_file, reason());
    if (SSL_CTX_use_PrivateKey(context_, key.get()) != 1 || SSL_CTX_check_private_key(context_) != 1)
      return wrong("key_file", o_.key_file, "does not belong to " + o_.cert_file + ": " + reason());
    return {};
  }

  Outcome habits() {
    // Nothing is resumed: PostgreSQL does not either, and a ticket nobody wants costs memory and bytes. Renegotiation
    // would let the other side make work out of nothing.
    SSL_CTX_set_options(
        context_, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_num_tickets(context_, 0);
    SSL_CTX_set_session_cache_mode(context_, SSL_SESS_CACHE_OFF);
    // An idle connection keeps no buffer of 16 kB.
    SSL_CTX_set_mode(context_, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_AUTO_RETRY | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_max_send_fragment(context_, Tls::kMaxRecord);
    return {};
  }

  SSL_CTX* context_;
  const TlsOptions& o_;
  std::string seen_;
};

}  // namespace

struct TlsHooks {
  static Tls& of(const SSL* ssl) { return *static_cast<Tls*>(SSL_get_ex_data(ssl, 0)); }
  static Tls& of(BIO* bio) { return *static_cast<Tls*>(BIO_get_data(bio)); }

  // The BIO has no memory: it reads from what was just received and writes to what is sent next.
  static int read(BIO* bio, char* data, int size) {
    Tls& t = of(bio);
    BIO_clear_retry_flags(bio);
    if (t.in_.empty()) {
      BIO_set_retry_read(bio);
      return -1;
    }
    std::size_t n = std::min(t.in_.size(), static_cast<std::size_t>(size));
    std::memcpy(data, t.in_.data(), n);
    t.in_ = t.in_.subspan(n);
    return static_cast<int>(n);
  }
  static int write(BIO* bio, const char* data, int size) {
    BIO_clear_retry_flags(bio);
    Tls& t = of(bio);
    if (t.out_) t.out_->put({reinterpret_cast<const std::uint8_t*>(data), static_cast<std::size_t>(size)});
    return size;
  }
  static long control(BIO*, int what, long, void*) { return what == BIO_CTRL_FLUSH; }
  static BIO_METHOD* method() {
    static BIO_METHOD* const made = [] {
      BIO_METHOD* m = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "pgflotilla");
      BIO_meth_set_read(m, read);
      BIO_meth_set_write(m, write);
      BIO_meth_set_ctrl(m, control);
      BIO_meth_set_create(m, [](BIO* bio) {
        BIO_set_init(bio, 1);
        return 1;
      });
      return m;
    }();
    return made;
  }

  // Direct TLS came without a word of PostgreSQL's protocol: only ALPN tells that it was meant for us.
  static int hello(SSL* ssl, int* alert, void*) {
    const unsigned char* list;
    std::size_t size;
    if (!of(ssl).direct_ ||
        SSL_client_hello_get0_ext(ssl, TLSEXT_TYPE_application_layer_protocol_negotiation, &list, &size) == 1)
      return SSL_CLIENT_HELLO_SUCCESS;
    *alert = SSL_AD_NO_APPLICATION_PROTOCOL;
    of(ssl).error_ = "direct TLS without the ALPN protocol \"postgresql\"";
    return SSL_CLIENT_HELLO_ERROR;
  }
  static int select(SSL*, const unsigned char** out, unsigned char* size, const unsigned char* theirs,
                    unsigned theirs_size, void*) {
    unsigned char* chosen;
    if (SSL_select_next_proto(&chosen, size, kAlpn, kAlpnSize, theirs, theirs_size) != OPENSSL_NPN_NEGOTIATED)
      return SSL_TLSEXT_ERR_ALERT_FATAL;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
  }

  static int verify(int good, X509_STORE_CTX* store) {
    if (!good || X509_STORE_CTX_get_error_depth(store) != 0) return good;
    auto* ssl = static_cast<SSL*>(X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()));
    Tls& t = of(ssl);
    if (!t.check_name_ || made_for(X509_STORE_CTX_get_current_cert(store), t.host_)) return 1;
    X509_STORE_CTX_set_error(store, X509_V_ERR_HOSTNAME_MISMATCH);
    t.error_ = fmt::format("name \"{}\" is not in the server's certificate", t.host_);
    return 0;
  }

  static std::string common_name(X509* cert) {
    X509_NAME* subject = X509_get_subject_name(cert);
    int at = subject ? X509_NAME_get_index_by_NID(subject, NID_commonName, -1) : -1;
    return at < 0 ? "" : text(X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)));
  }
  static std::string text(const ASN1_STRING* string) {
    unsigned char* utf8 = nullptr;
    int size = ASN1_STRING_to_UTF8(&utf8, string);
    if (size < 0) return {};
    std::string result(reinterpret_cast<char*>(utf8), static_cast<std::size_t>(size));
    OPENSSL_free(utf8);
    return result;
  }
  static bool is_address(const std::string& host) {
    Owned<ASN1_OCTET_STRING, ASN1_OCTET_STRING_free> address{a2i_IPADDRESS(host.c_str())};
    return address != nullptr;
  }
  // As PgBouncer: alternative names first, then the common name; no wildcard stands for an address.
  static bool made_for(X509* cert, const std::string& host) {
    if (is_address(host)) return X509_check_ip_asc(cert, host.c_str(), 0) == 1 || common_name(cert) == host;
    return X509_check_host(cert, host.c_str(), host.size(),
                           X509_CHECK_FLAG_ALWAYS_CHECK_SUBJECT | X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS, nullptr) == 1;
  }
};

std::expected<std::shared_ptr<const TlsContext>, std::string> TlsContext::make(const TlsOptions& options) {
  ERR_clear_error();
  std::shared_ptr<TlsContext> made(new TlsContext);
  bool accepts = options.side == TlsOptions::Side::accept;
  made->context_ = SSL_CTX_new(accepts ? TLS_server_method() : TLS_client_method());
  if (!made->context_) return failed(reason());
  Builder builder(made->context_, options);
  Outcome built = builder.build();
  made->digest_ = builder.digest();
  ERR_clear_error();
  if (!built) return failed(built.error());
  made->verify_ = options.verify;
  if (accepts) {
    SSL_CTX_set_client_hello_cb(made->context_, TlsHooks::hello, nullptr);
    SSL_CTX_set_alpn_select_cb(made->context_, TlsHooks::select, nullptr);
  }
  return made;
}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

std::unique_ptr<Tls> Tls::accept(const TlsContext& context, bool direct) {
  std::unique_ptr<Tls> tls(new Tls(context, {}, direct));
  SSL_set_accept_state(tls->ssl_);
  return tls;
}

std::unique_ptr<Tls> Tls::connect(const TlsContext& context, const std::string& host, bool direct) {
  std::unique_ptr<Tls> tls(new Tls(context, host, direct));
  SSL_set_connect_state(tls->ssl_);
  tls->check_name_ = context.verify_ == TlsOptions::Verify::name;
  if (tls->check_name_) SSL_set_verify(tls->ssl_, SSL_get_verify_mode(tls->ssl_), TlsHooks::verify);
  if (!host.empty() && !TlsHooks::is_address(host)) SSL_set_tlsext_host_name(tls->ssl_, host.c_str());
  if (direct) SSL_set_alpn_protos(tls->ssl_, kAlpn, kAlpnSize);
  return tls;
}

std::unique_ptr<Tls> Tls::anybody(const TlsContext& context) {
  std::unique_ptr<Tls> tls = connect(context, "", false);
  tls->check_name_ = false;
  SSL_set_verify(tls->ssl_, SSL_VERIFY_NONE, nullptr);
  return tls;
}

Tls::Tls(const TlsContext& context, std::string host, bool direct)
    : ssl_(SSL_new(context.context_)), direct_(direct), host_(std::move(host)) {
  BIO* bio = BIO_new(TlsHooks::method());
  BIO_set_data(bio, this);
  SSL_set_bio(ssl_, bio, bio);
  SSL_set_ex_data(ssl_, 0, this);
}

Tls::~Tls() { SSL_free(ssl_); }

void Tls::start(Out& out) {
  if (SSL_is_server(ssl_)) return;
  out_ = &out;
  handshake();
  out_ = nullptr;
}

void Tls::handshake() {
  ERR_clear_error();
  int result = SSL_do_handshake(ssl_);
  if (result != 1) {
    if (SSL_get_error(ssl_, result) != SSL_ERROR_WANT_READ) fail("handshake failed");
    return;
  }
  const unsigned char* protocol;
  unsigned size = 0;
  if (direct_) SSL_get0_alpn_selected(ssl_, &protocol, &size);
  if (direct_ && size == 0) {
    error_ = "the server did not choose the ALPN protocol \"postgresql\"";
    return fail("handshake failed");
  }
  state_ = State::open;
  host_.clear();
  host_.shrink_to_fit();
}

// What a hook wrote into error_ says more than OpenSSL's code for it.
void Tls::fail(const char* what) {
  state_ = State::failed;
  std::string why = error_;
  if (why.empty()) {
    why = reason();
    long verdict = SSL_get_verify_result(ssl_);
    if (ERR_GET_REASON(ERR_peek_last_error()) == SSL_R_CERTIFICATE_VERIFY_FAILED)
      why += fmt::format(" ({})", X509_verify_cert_error_string(verdict));
  } else if (ERR_GET_REASON(ERR_peek_last_error()) == SSL_R_CERTIFICATE_VERIFY_FAILED) {
    why = "certificate verify failed: " + why;
  }
  error_ = fmt::format("{}: {}", what, why);
  ERR_clear_error();
}

std::size_t Tls::read(Bytes cipher, std::span<std::uint8_t> plain, Out& out) {
  in_ = cipher;
  out_ = &out;
  if (state_ == State::handshake) handshake();
  std::size_t size = 0;
  while (state_ == State::open && size < plain.size()) {
    ERR_clear_error();
    std::size_t n = 0;
    int result = SSL_read_ex(ssl_, plain.data() + size, plain.size() - size, &n);
    size += n;
    if (result == 1) continue;
    int why = SSL_get_error(ssl_, result);
    if (why == SSL_ERROR_WANT_READ) break;
    if (why == SSL_ERROR_ZERO_RETURN)
      state_ = State::closed;
    else
      fail("reading failed");
  }
  in_ = {};
  out_ = nullptr;
  return size;
}

void Tls::write(Bytes plain, Out& out) {
  if (state_ != State::open && state_ != State::closed) return;
  out_ = &out;
  while (!plain.empty()) {
    ERR_clear_error();
    std::size_t n = 0;
    if (SSL_write_ex(ssl_, plain.data(), plain.size(), &n) != 1) {
      fail("writing failed");
      break;
    }
    plain = plain.subspan(n);
  }
  out_ = nullptr;
}

void Tls::close(Out& out) {
  if (state_ != State::open && state_ != State::closed) return;
  out_ = &out;
  ERR_clear_error();
  SSL_shutdown(ssl_);
  ERR_clear_error();
  out_ = nullptr;
}

std::string Tls::info() const {
  std::string text = fmt::format("{}/{}", SSL_get_version(ssl_), SSL_get_cipher_name(ssl_));
  int group = SSL_get_negotiated_group(const_cast<SSL*>(ssl_));
  const char* name = group > 0 && !(group & TLSEXT_nid_unknown) ? OBJ_nid2sn(group) : nullptr;
  if (name) text += fmt::format("/ECDH={}", name);
  return text;
}

std::string Tls::channel_binding() const {
  X509* cert = SSL_is_server(ssl_) ? SSL_get_certificate(ssl_) : SSL_get0_peer_certificate(ssl_);
  int hash = NID_undef;
  if (!cert || X509_get_signature_info(cert, &hash, nullptr, nullptr, nullptr) != 1) return {};
  if (hash == NID_md5 || hash == NID_sha1) hash = NID_sha256;
  const EVP_MD* kind = hash == NID_undef ? nullptr : EVP_get_digestbynid(hash);
  std::array<unsigned char, EVP_MAX_MD_SIZE> sum;
  unsigned size = 0;
  if (!kind || X509_digest(cert, kind, sum.data(), &size) != 1) return {};
  return {sum.begin(), sum.begin() + size};
}

bool Tls::has_peer_certificate() const { return SSL_get0_peer_certificate(ssl_) != nullptr; }

bool Tls::peer_is(std::string_view name) const {
  X509* cert = SSL_get0_peer_certificate(ssl_);
  if (!cert || name.empty()) return false;
  if (TlsHooks::common_name(cert) == name) return true;
  auto* names = static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(cert, NID_subject_alt_name, nullptr, nullptr));
  bool found = false;
  for (int i = 0; i < sk_GENERAL_NAME_num(names); ++i) {
    const GENERAL_NAME* each = sk_GENERAL_NAME_value(names, i);
    found |= each->type == GEN_DNS && TlsHooks::text(each->d.dNSName) == name;
  }
  GENERAL_NAMES_free(names);
  return found;
}

}  // namespace pgf::net
