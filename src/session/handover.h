#pragma once
// A socket on its way from an old process to the one that takes over (-R, docs/operations.md). The columns are those of
// PgBouncer's SHOW FDS; `state` is what else a pgflotilla wants to know of another one, and only SHOW TAKEOVER has it.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "session/env.h"

namespace pgf::session {

struct Handed {
  enum class Task { pooler, client, server, pool } task = Task::client;  // pool: no socket, what servers say at login
  int fd = -1;                                                           // the number that it has in the old process
  int received = -1;                                                     // ... and in the new one
  std::optional<std::string> user, database;
  std::string addr;
  int port = 0;
  std::uint64_t cancel = 0;
  int link = 0;  // the partner's descriptor in the old process; 0: none
  std::optional<std::string> client_encoding, std_strings, datestyle, timezone, password, scram_client_key,
      scram_server_key;
  std::string state;
  bool needs_state = false;  // without `state` it would wait for an answer for ever: not for PgBouncer's format
};

// Statements of a process that says nothing about its numbers are thought to stay below this.
inline constexpr std::uint64_t kFirstStatement = 1'000'000;

// Fields of Handed::state, one after the other.
class Pack {
 public:
  Pack& number(std::uint64_t value);
  Pack& text(std::string_view value);
  Pack& params(const wire::ParamNames& names, const wire::ParamSet& set);
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};
class Unpack {
 public:
  explicit Unpack(std::string_view in) : in_(in) {}
  std::uint64_t number();
  std::string_view text();
  void params(const wire::ParamNames& names, wire::ParamSet& set);
  bool failed() const { return failed_; }

 private:
  std::string_view in_;
  bool failed_ = false;
};

// What servers of a pool say at login, for clients that log in before the new process has asked one itself.
std::vector<Handed> hand_over_pools(const Shared& shared);
void take_over_pool(Shared& shared, const Handed& pool);
// SCRAM pass-through keys and secrets that auth_query found, which a row of a client or a server may bring.
void take_over_keys(Shared& shared, const config::Config& config, const Handed& row);

// One worker's share: makes its clients and servers, and links them. Sockets that fit nothing are closed.
void take_over(Env& env, std::vector<Handed>& rows);

}  // namespace pgf::session
