#include "admin/parse.h"

#include <strings.h>

#include <charconv>
#include <optional>

namespace pgf::admin {
namespace {

constexpr std::size_t kMaxWord = 15, kMaxArgument = 63, kMaxValue = 255;

bool same(std::string_view a, std::string_view b) {
  return a.size() == b.size() && strncasecmp(a.data(), b.data(), a.size()) == 0;
}

// Own tests instead of <cctype>: the grammar must not depend on the locale.
bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_word(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

class Scanner {
 public:
  explicit Scanner(std::string_view text) : rest_(text) {}

  bool spaces() {
    std::size_t n = 0;
    while (n < rest_.size() && is_space(rest_[n])) ++n;
    rest_.remove_prefix(n);
    return n > 0;
  }

  std::string_view word() {
    std::size_t n = 0;
    while (n < rest_.size() && is_word(rest_[n])) ++n;
    std::string_view found = rest_.substr(0, n);
    rest_.remove_prefix(n);
    return found;
  }

  bool literal(char c) {
    if (!next_is(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }

  // A text between two `quote`s, where a doubled one stands for itself. Nothing if it never ends.
  std::optional<std::string> quoted(char quote) {
    if (!literal(quote)) return {};
    std::string found;
    while (!rest_.empty()) {
      char c = rest_.front();
      rest_.remove_prefix(1);
      if (c == quote && !literal(quote)) return found;
      found += c;
    }
    return {};
  }

  // A word, or a quoted text; nothing if neither is there.
  std::optional<std::string> word_or_quoted(char quote) {
    if (next_is(quote)) return quoted(quote);
    std::string_view found = word();
    return found.empty() ? std::nullopt : std::optional<std::string>(found);
  }

  // A quoted text, or all up to the next blank or semicolon: names of hosts have dots, colons and slashes in them.
  std::optional<std::string> value() {
    for (char quote : {'\'', '"'})
      if (next_is(quote)) return quoted(quote);
    std::size_t n = 0;
    while (n < rest_.size() && !is_space(rest_[n]) && rest_[n] != ';') ++n;
    std::string found(rest_.substr(0, n));
    rest_.remove_prefix(n);
    return found;
  }

  bool next_is(char c) const { return !rest_.empty() && rest_.front() == c; }

  bool end_ahead() const { return rest_.empty() || rest_.front() == ';'; }

  // Only blanks and one semicolon may follow.
  bool end() {
    spaces();
    literal(';');
    spaces();
    return rest_.empty();
  }

 private:
  std::string_view rest_;
};

using Parsed = std::expected<Command, std::string>;

std::unexpected<std::string> invalid(std::string_view text) {
  return std::unexpected("invalid command '" + std::string(text) + "', use SHOW HELP;");
}

std::unexpected<std::string> fail(std::string_view text) { return std::unexpected(std::string(text)); }

// What follows the word SET.
Parsed parse_set(std::string_view text, const Verb& verb, Scanner scan) {
  Command command{.verb = &verb};
  if (!scan.spaces()) return invalid(text);
  command.key = scan.word();
  bool spaced = scan.spaces();
  bool assigned = scan.literal('=') || (spaced && same(scan.word(), "to") && (scan.spaces() || scan.next_is('\'')));
  scan.spaces();
  auto value = assigned ? scan.word_or_quoted('\'') : std::nullopt;
  if (command.key.empty() || !value || !scan.end()) return invalid(text);
  if (command.key.size() > kMaxArgument || value->size() > kMaxValue) return fail("bad arguments");
  command.value = std::move(*value);
  command.parameter = find_parameter(command.key);
  return command;
}

// What follows the word RECONNECT: [database] [host=name [port=number]].
Parsed parse_reconnect(std::string_view text, const Verb& verb, Scanner scan) {
  Command command{.verb = &verb};
  for (bool spaced = scan.spaces(); spaced && !scan.end_ahead();) {
    const bool is_quoted = scan.next_is('"');
    auto found = scan.word_or_quoted('"');
    if (!found || found->empty()) return invalid(text);
    spaced = scan.spaces();
    if (!is_quoted && scan.literal('=')) {
      scan.spaces();
      auto value = scan.value();
      if (!value || value->empty()) return invalid(text);
      spaced = scan.spaces();
      if (same(*found, "host") && command.host.empty()) {
        if (value->size() > kMaxValue) return fail("bad arguments");
        command.host = std::move(*value);
        continue;
      }
      const char* last = value->data() + value->size();
      auto [end, error] = std::from_chars(value->data(), last, command.port);
      if (!same(*found, "port") || command.host.empty()) return invalid(text);
      if (error != std::errc() || end != last || command.port < 1 || command.port > 65535) return fail("bad arguments");
    } else {
      if (!command.database.empty() || !command.host.empty()) return invalid(text);
      if (found->size() > kMaxArgument) return fail("bad arguments");
      command.database = std::move(*found);
    }
  }
  if (!scan.end()) return invalid(text);
  return command;
}

// `argument` is empty when none was given.
Parsed apply(std::string_view text, const Verb& verb, std::string argument) {
  Command command{.verb = &verb};
  switch (verb.argument) {
    case Argument::none:
      if (!argument.empty()) return invalid(text);
      break;
    case Argument::database:
      if (argument.empty()) command.problem = "a database is required";
      [[fallthrough]];
    case Argument::optional_database:
      command.database = std::move(argument);
      break;
    case Argument::report:
      command.help = same(argument, "HELP");
      command.view = observe::find_view(argument);
      command.parameter = find_parameter(argument);
      if (!command.help && !command.view && !command.parameter) return invalid(text);
      break;
    case Argument::client_id: {
      const char* last = argument.data() + argument.size();
      auto [end, error] = std::from_chars(argument.data(), last, command.client_id);
      if (error != std::errc() || end != last) command.problem = "invalid client pointer supplied";
      break;
    }
    case Argument::shutdown_mode:
      if (same(argument, "WAIT_FOR_SERVERS"))
        command.shutdown = ShutdownMode::wait_for_servers;
      else if (same(argument, "WAIT_FOR_CLIENTS"))
        command.shutdown = ShutdownMode::wait_for_clients;
      else if (!argument.empty())
        return invalid(text);
      break;
    case Argument::database_and_host:  // has its own grammar: parse_reconnect()
    case Argument::setting:            // parse_set()
      return invalid(text);
  }
  return command;
}

}  // namespace

bool Command::needs_admin() const {
  if (view && view->admin_only) return true;
  return verb->who == Who::admin && !parameter;
}

std::string Command::tag() const {
  std::string tag(verb->tag);
  if (verb->argument == Argument::setting && !parameter) tag += " " + key + "=" + value;
  return tag;
}

Parsed parse(std::string_view text) {
  Scanner scan(text);
  scan.spaces();
  std::string_view word = scan.word();
  if (word.empty()) return invalid(text);
  const Verb* verb = find_verb(word);
  if (verb && verb->argument == Argument::setting) return parse_set(text, *verb, scan);
  if (verb && verb->argument == Argument::database_and_host) return parse_reconnect(text, *verb, scan);

  std::string argument;
  if (scan.spaces() && !scan.end_ahead()) {
    auto found = scan.word_or_quoted('"');
    // An empty name is no name; taking it for "all databases" would make a script's mistake a global PAUSE.
    if (!found || found->empty()) return invalid(text);
    argument = std::move(*found);
  }
  if (!scan.end()) return invalid(text);
  if (word.size() > kMaxWord || argument.size() > kMaxArgument) return fail("bad arguments");
  if (!verb) return invalid(text);
  return apply(text, *verb, std::move(argument));
}

}  // namespace pgf::admin
