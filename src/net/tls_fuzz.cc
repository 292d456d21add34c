// Our filter around OpenSSL. First byte: whom the input plays. 0: a client that begins with it; 1: a server; 2, 3: one
// of them whose handshake was good, and what comes then; 4: options of a context, a line each. However the bytes are
// cut, the filter comes to the same state. (OpenSSL itself is Debian's: what is looked for here is what we make of it.)
#include "base/fuzz_kit.h"
#include "net/tls.h"

#include <openssl/pem.h>
#include <openssl/x509.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace pgf;
using net::Tls;
using net::TlsContext;
using net::TlsOptions;

struct Made {
  std::string key, certificate;
  std::shared_ptr<const TlsContext> accept, connect;
  Made() {
    std::string folder = "/tmp/pgf-fuzz-XXXXXX";
    must(::mkdtemp(folder.data()) != nullptr);
    key = folder + "/key", certificate = folder + "/certificate";
    EVP_PKEY* k = EVP_EC_gen("P-256");
    X509* x = X509_new();
    ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
    X509_gmtime_adj(X509_getm_notBefore(x), -3600);
    X509_gmtime_adj(X509_getm_notAfter(x), 3600L * 24 * 365);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>("fuzz"), -1, -1, 0);
    X509_set_issuer_name(x, X509_get_subject_name(x));
    X509_set_pubkey(x, k);
    X509_sign(x, k, EVP_sha256());
    FILE* f = std::fopen(key.c_str(), "w");
    PEM_write_PrivateKey(f, k, nullptr, nullptr, 0, nullptr, nullptr);
    std::fclose(f);
    f = std::fopen(certificate.c_str(), "w");
    PEM_write_X509(f, x);
    std::fclose(f);
    X509_free(x);
    EVP_PKEY_free(k);
    accept = *TlsContext::make(
        {.side = TlsOptions::Side::accept, .prefix = "client_tls", .key_file = key, .cert_file = certificate});
    connect = *TlsContext::make({.side = TlsOptions::Side::connect, .prefix = "server_tls"});
  }
  ~Made() {
    ::unlink(key.c_str());
    ::unlink(certificate.c_str());
    ::rmdir(key.substr(0, key.rfind('/')).c_str());
  }
};

struct Collect final : Tls::Out {
  std::string bytes;
  void put(Bytes cipher) override { bytes += as_text(cipher); }
  std::string take() { return std::exchange(bytes, {}); }
};

// What came through in the clear.
std::string feed(Tls& tls, Bytes bytes, Collect& out, std::size_t piece) {
  std::string plain;
  while (!bytes.empty() && tls.state() != Tls::State::failed) {
    const Bytes part = bytes.first(std::min(piece, bytes.size()));
    std::vector<std::uint8_t> room(Tls::kRoom + part.size());
    const std::size_t n = tls.read(part, room, out);
    must(n <= room.size());
    plain += as_text(Bytes(room).first(n));
    bytes = bytes.subspan(part.size());
  }
  return plain;
}

void options(const Made& made, std::string_view text) {
  std::vector<std::string> lines(6);
  for (std::string& line : lines) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  TlsOptions o{
      .side = TlsOptions::Side::accept, .prefix = "client_tls", .key_file = made.key, .cert_file = made.certificate};
  o.protocols = lines[0], o.ciphers = lines[1], o.suites = lines[2], o.dheparams = lines[3], o.curve = lines[4];
  auto context = TlsContext::make(o);
  must(context || context.error().find("client_tls") != std::string::npos);
  if (!context) return;
  auto again = TlsContext::make(o);
  must(again && (*again)->same_as(**context));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Made made;
  if (size < 2) return 0;
  const int role = data[0] % 5;
  const bool direct = data[0] & 128;
  const std::size_t piece = 1 + data[1];
  const Bytes bytes{data + 2, size - 2};
  if (role == 4) return options(made, as_text(bytes)), 0;

  Tls::State states[2];
  std::string plain[2];
  for (int run = 0; run < 2; ++run) {
    Collect out, back;
    const bool server = role % 2 == 0;  // which side is ours
    auto ours = server ? Tls::accept(*made.accept, direct) : Tls::connect(*made.connect, "localhost", direct);
    ours->start(out);
    if (role >= 2) {
      auto theirs = server ? Tls::connect(*made.connect, "localhost", direct) : Tls::accept(*made.accept, direct);
      theirs->start(back);
      for (int i = 0; i < 4; ++i) {
        const std::string there = back.take();
        (void)feed(*ours, as_bytes(there), out, 1 << 16);
        const std::string here = out.take();
        (void)feed(*theirs, as_bytes(here), back, 1 << 16);
      }
      must(ours->open() && theirs->open() && !ours->info().empty());
      // Something true before what may not be.
      theirs->write(as_bytes("hello"), back);
      const std::string there = back.take();
      plain[run] = feed(*ours, as_bytes(there), out, run ? piece : 1 << 16);
      must(plain[run] == "hello");
    }
    plain[run] += feed(*ours, bytes, out, run ? piece : 1 << 16);
    states[run] = ours->state();
    must((ours->state() == Tls::State::failed) == !ours->error().empty());
    if (ours->open()) ours->write(as_bytes("bye"), out);
    if (ours->state() != Tls::State::failed) ours->close(out);
  }
  must(states[0] == states[1] && plain[0] == plain[1]);
  return 0;
}
