#include "session/tls_setup.h"

#include <fmt/format.h>

namespace pgf::session {

using config::SslMode;
using net::TlsOptions;

bool TlsSetup::same_for_servers(const TlsSetup& next) const {
  if (server_mode != next.server_mode) return false;
  return server ? next.server && server->same_as(*next.server) : !next.server;
}

static std::expected<void, std::string> check(const config::Config& config) {
  const config::Settings& s = config.settings;
  auto wrong = [](std::string_view text) { return std::unexpected(std::string(text)); };
  if (s.client_tls_sslmode != SslMode::disable && (s.client_tls_key_file.empty() || s.client_tls_cert_file.empty()))
    return wrong("To allow TLS connections from clients, client_tls_key_file and client_tls_cert_file must be set.");
  if (s.auth_type == config::AuthType::cert) {
    if (s.client_tls_sslmode != SslMode::verify_full)
      return wrong("auth_type=cert requires client_tls_sslmode=SSLMODE_VERIFY_FULL");
    if (s.client_tls_ca_file.empty()) return wrong("auth_type=cert requires client_tls_ca_file");
  } else if (s.client_tls_sslmode == SslMode::verify_full && s.client_tls_ca_file.empty()) {
    return wrong("client_tls_sslmode requires client_tls_ca_file");
  }
  if (s.server_tls_sslmode == SslMode::disable) {
    auto direct = [](const config::Database& db) { return db.sslnegotiation == config::SslNegotiation::direct; };
    for (const auto& [name, db] : config.databases)
      if (direct(db)) return wrong(fmt::format("database {}: sslnegotiation=direct requires server_tls_sslmode", name));
    if (config.wildcard && direct(*config.wildcard))
      return wrong("database *: sslnegotiation=direct requires server_tls_sslmode");
  }
  return {};
}

std::expected<std::shared_ptr<const TlsSetup>, std::string> make_tls_setup(const config::Config& config,
                                                                           const TlsSetup* before) {
  const config::Settings& s = config.settings;
  if (auto checked = check(config); !checked) return std::unexpected(checked.error());
  auto setup = std::make_shared<TlsSetup>();
  setup->client_mode = s.client_tls_sslmode;
  setup->server_mode = s.server_tls_sslmode;
  auto make = [](std::shared_ptr<const net::TlsContext>& context, const TlsOptions& options) {
    auto made = net::TlsContext::make(options);
    if (made) context = *std::move(made);
    return made ? std::string() : fmt::format("TLS setup failed: {}", made.error());
  };
  if (setup->client_mode != SslMode::disable) {
    std::string error =
        make(setup->client, {.side = TlsOptions::Side::accept,
                             .verify = s.client_tls_sslmode >= SslMode::verify_ca ? TlsOptions::Verify::chain
                                                                                  : TlsOptions::Verify::if_given,
                             .prefix = "client_tls",
                             .key_file = s.client_tls_key_file,
                             .cert_file = s.client_tls_cert_file,
                             .ca_file = s.client_tls_ca_file,
                             .protocols = s.client_tls_protocols,
                             .ciphers = s.client_tls_ciphers,
                             .suites = s.client_tls13_ciphers,
                             .dheparams = s.client_tls_dheparams,
                             .curve = s.client_tls_ecdhcurve});
    if (!error.empty()) return std::unexpected(error);
  }
  if (setup->server_mode != SslMode::disable) {
    std::string error =
        make(setup->server, {.side = TlsOptions::Side::connect,
                             .verify = s.server_tls_sslmode == SslMode::verify_full ? TlsOptions::Verify::name
                                       : s.server_tls_sslmode == SslMode::verify_ca ? TlsOptions::Verify::chain
                                                                                    : TlsOptions::Verify::none,
                             .prefix = "server_tls",
                             .key_file = s.server_tls_key_file,
                             .cert_file = s.server_tls_cert_file,
                             .ca_file = s.server_tls_ca_file,
                             .protocols = s.server_tls_protocols,
                             .ciphers = s.server_tls_ciphers,
                             .suites = s.server_tls13_ciphers});
    if (!error.empty()) return std::unexpected(error);
  }
  for (auto context : {&TlsSetup::client, &TlsSetup::server})
    if (before && before->*context && (*setup).*context && (before->*context)->same_as(*((*setup).*context)))
      (*setup).*context = before->*context;
  return setup;
}

}  // namespace pgf::session
