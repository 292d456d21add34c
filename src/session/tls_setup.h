#pragma once
// The TLS settings as sessions use them: the modes and one context per side. Immutable; a new one comes with RELOAD and
// is used by connections that begin afterwards.
#include <expected>
#include <memory>
#include <string>

#include "config/config.h"
#include "net/tls.h"

namespace pgf::session {

struct TlsSetup {
  config::SslMode client_mode = config::SslMode::disable, server_mode = config::SslMode::disable;
  std::shared_ptr<const net::TlsContext> client, server;  // null when disabled

  // Must connections to servers be replaced when `next` follows?
  bool same_for_servers(const TlsSetup& next) const;
};

// Reads the certificates. The error is a log line. What has not changed since `before` is used again: a context with
// the system's authorities takes 0.8 MB, and lives as long as the last connection that began with it.
std::expected<std::shared_ptr<const TlsSetup>, std::string> make_tls_setup(const config::Config& config,
                                                                           const TlsSetup* before = nullptr);

}  // namespace pgf::session
