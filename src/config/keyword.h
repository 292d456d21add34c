#pragma once
// The keywords of the enums, in the spelling that SHOW CONFIG uses.
#include <array>
#include <optional>
#include <span>
#include <string_view>

#include "config/settings.h"
#include "config/value.h"

namespace pgf::config {

template <class E>
struct Word {
  std::string_view text;
  E value;
};

inline constexpr std::array<Word<PoolMode>, 3> kPoolModes{
    {{"session", PoolMode::session}, {"transaction", PoolMode::transaction}, {"statement", PoolMode::statement}}};
inline constexpr std::array<Word<AuthType>, 10> kAuthTypes{{{"any", AuthType::any},
                                                            {"trust", AuthType::trust},
                                                            {"plain", AuthType::plain},
                                                            {"md5", AuthType::md5},
                                                            {"cert", AuthType::cert},
                                                            {"hba", AuthType::hba},
                                                            {"ldap", AuthType::ldap},
                                                            {"pam", AuthType::pam},
                                                            {"scram-sha-256", AuthType::scram_sha_256},
                                                            {"peer", AuthType::peer}}};
inline constexpr std::array<Word<SslMode>, 6> kSslModes{{{"disable", SslMode::disable},
                                                         {"allow", SslMode::allow},
                                                         {"prefer", SslMode::prefer},
                                                         {"require", SslMode::require},
                                                         {"verify-ca", SslMode::verify_ca},
                                                         {"verify-full", SslMode::verify_full}}};
inline constexpr std::array<Word<SslNegotiation>, 2> kSslNegotiations{
    {{"postgres", SslNegotiation::postgres}, {"direct", SslNegotiation::direct}}};
inline constexpr std::array<Word<LoadBalance>, 4> kLoadBalances{{{"disable", LoadBalance::disable},
                                                                 {"round-robin", LoadBalance::round_robin},
                                                                 {"random", LoadBalance::random},
                                                                 {"least-conn", LoadBalance::least_conn}}};
inline constexpr std::array<Word<TargetSession>, 6> kTargetSessions{
    {{"any", TargetSession::any},
     {"read-write", TargetSession::read_write},
     {"read-only", TargetSession::read_only},
     {"primary", TargetSession::primary},
     {"standby", TargetSession::standby},
     {"prefer-standby", TargetSession::prefer_standby}}};
inline constexpr std::array<Word<IoEngine>, 3> kIoEngines{
    {{"auto", IoEngine::auto_}, {"io_uring", IoEngine::io_uring}, {"epoll", IoEngine::epoll}}};
inline constexpr std::array<Word<Placement>, 4> kPlacements{{{"adaptive", Placement::adaptive},
                                                             {"spread", Placement::spread},
                                                             {"kernel", Placement::kernel},
                                                             {"shuffle", Placement::shuffle}}};
inline constexpr std::array<Word<Budget>, 2> kBudgets{{{"process", Budget::process}, {"fleet", Budget::fleet}}};
inline constexpr std::array<Word<LogFormat>, 2> kLogFormats{
    {{"pgbouncer", LogFormat::pgbouncer}, {"json", LogFormat::json}}};

constexpr std::span<const Word<PoolMode>> words(PoolMode) { return kPoolModes; }
constexpr std::span<const Word<AuthType>> words(AuthType) { return kAuthTypes; }
constexpr std::span<const Word<SslMode>> words(SslMode) { return kSslModes; }
constexpr std::span<const Word<SslNegotiation>> words(SslNegotiation) { return kSslNegotiations; }
constexpr std::span<const Word<LoadBalance>> words(LoadBalance) { return kLoadBalances; }
constexpr std::span<const Word<TargetSession>> words(TargetSession) { return kTargetSessions; }
constexpr std::span<const Word<IoEngine>> words(IoEngine) { return kIoEngines; }
constexpr std::span<const Word<Placement>> words(Placement) { return kPlacements; }
constexpr std::span<const Word<Budget>> words(Budget) { return kBudgets; }
constexpr std::span<const Word<LogFormat>> words(LogFormat) { return kLogFormats; }

template <class E>
std::optional<E> parse_keyword(std::string_view text) {
  for (const auto& word : words(E{}))
    if (equals_ignoring_case(word.text, text)) return word.value;
  return std::nullopt;
}

template <class E>
std::string_view keyword_of(E value) {
  for (const auto& word : words(E{}))
    if (word.value == value) return word.text;
  return {};
}

}  // namespace pgf::config
