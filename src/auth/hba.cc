#include "auth/hba.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "auth/ip_literal.h"

namespace pgf::auth {
namespace {

// An @file may name others; those that name each other must end somewhere. Per line of rules.
constexpr int kMaxIncludes = 100;

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

enum class Token { word, quoted, comma, bad, end };

// The tokens of one line.
class Line {
 public:
  explicit Line(std::string_view text) : rest_(text) { next(); }

  Token kind() const { return kind_; }
  const std::string& text() const { return text_; }
  std::string_view rest() const { return rest_; }  // behind the present token
  bool at_end() const { return kind_ == Token::end; }
  bool is_name() const { return kind_ == Token::word || kind_ == Token::quoted; }
  bool is(std::string_view keyword) const { return kind_ == Token::word && text_ == keyword; }
  bool take(std::string_view keyword) {
    if (!is(keyword)) return false;
    next();
    return true;
  }
  bool take_comma() {
    if (kind_ != Token::comma) return false;
    next();
    return true;
  }

  void next() {
    text_.clear();
    while (!rest_.empty() && is_space(rest_[0])) rest_.remove_prefix(1);
    if (rest_.empty() || rest_[0] == '#') {
      kind_ = Token::end;
    } else if (rest_[0] == ',') {
      rest_.remove_prefix(1);
      kind_ = Token::comma;
    } else if (rest_[0] == '"') {
      quoted();
    } else {
      std::size_t length = 0;
      while (length < rest_.size() && !is_space(rest_[length]) && !std::string_view(",#\"").contains(rest_[length]))
        ++length;
      text_ = rest_.substr(0, length);
      rest_.remove_prefix(length);
      kind_ = text_.contains('\0') ? Token::bad : Token::word;
    }
  }

 private:
  void quoted() {
    for (std::size_t i = 1; i < rest_.size(); ++i) {
      if (rest_[i] == '"') {
        if (i + 1 == rest_.size() || rest_[i + 1] != '"') {
          rest_.remove_prefix(i + 1);
          kind_ = Token::quoted;
          return;
        }
        ++i;
      }
      text_ += rest_[i];
    }
    kind_ = Token::bad;  // it does not end on this line
  }

  std::string_view rest_;
  std::string text_;
  Token kind_ = Token::end;
};

template <class F>
void each_line(std::string_view text, F&& f) {
  for (int number = 1; !text.empty(); ++number) {
    std::size_t end = std::min(text.find('\n'), text.size());
    f(number, text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

std::string beside(const std::string& path, const std::string& name) {
  if (name.starts_with('/')) return name;
  std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? name : path.substr(0, slash + 1) + name;
}

constexpr std::pair<std::string_view, HbaMethod> kMethods[] = {
    {"trust", HbaMethod::trust}, {"reject", HbaMethod::reject},
    {"md5", HbaMethod::md5},     {"password", HbaMethod::password},
    {"peer", HbaMethod::peer},   {"cert", HbaMethod::cert},
    {"ldap", HbaMethod::ldap},   {"scram-sha-256", HbaMethod::scram_sha_256},
};
constexpr std::pair<std::string_view, HbaRule::Type> kTypes[] = {
    {"local", HbaRule::Type::local},
    {"host", HbaRule::Type::host},
    {"hostssl", HbaRule::Type::hostssl},
    {"hostnossl", HbaRule::Type::hostnossl},
};

// Reads the words of a file of rules; fails with the reason in `why_`.
class Parser {
 public:
  Parser(const std::string& path, const IdentMaps& maps, const ReadFile& read)
      : path_(path), maps_(maps), read_(read) {}

  std::optional<HbaRule> rule(Line& line, int number) {
    HbaRule rule;
    rule.line = number;
    why_.clear();
    includes_ = 0;
    auto type = std::ranges::find_if(kTypes, [&](const auto& t) { return line.is(t.first); });
    if (type == std::end(kTypes)) return fail("unknown type");
    rule.type = type->second;
    line.next();
    if (!names(rule.databases, line, path_) || !names(rule.users, line, path_)) return fail("bad name");
    if (rule.type != HbaRule::Type::local && !address(rule.address, line)) return std::nullopt;
    auto method = std::ranges::find_if(kMethods, [&](const auto& m) { return line.is(m.first); });
    if (method == std::end(kMethods)) return fail("unsupported method");
    rule.method = method->second;
    if (rule.method == HbaMethod::ldap) {
      rule.options = line.rest();
      return rule;
    }
    line.next();
    if (!map(rule, line)) return std::nullopt;
    if (!line.at_end()) return fail("unsupported parameters");
    return rule;
  }

  const std::string& why() const { return why_; }
  // A base with bits outside of its mask: understood, and never true.
  static bool is_odd(const HbaAddress& a) {
    for (std::size_t i = 0; i < a.size; ++i)
      if (a.base[i] & ~a.mask[i]) return true;
    return false;
  }

 private:
  std::nullopt_t fail(std::string why) {
    if (why_.empty()) why_ = std::move(why);
    return std::nullopt;
  }
  bool no(std::string why) {
    fail(std::move(why));
    return false;
  }

  bool names(HbaNames& out, Line& line, const std::string& path) {
    do {
      if (!name(out, line, path)) return false;
    } while (line.take_comma());
    return true;
  }

  bool name(HbaNames& out, Line& line, const std::string& path) {
    if (line.take("all")) return out.all = true;
    if (line.take("sameuser")) return out.same_user = true;
    if (line.take("replication")) return out.replication = true;
    if (line.is("samerole") || line.is("samegroup")) return no(line.text() + " is not supported");
    if (!line.is_name()) return false;
    if (line.kind() == Token::word && line.text().starts_with('+')) return no("groups are not supported");
    if (line.kind() == Token::word && line.text().starts_with('@')) {
      if (!include(out, beside(path, line.text().substr(1)))) return false;
    } else {
      out.names.insert(line.text());
    }
    line.next();
    return true;
  }

  // Names on lines of their own, or with commas or blanks between them.
  bool include(HbaNames& out, const std::string& path) {
    if (++includes_ > kMaxIncludes) return no("too many files name each other: " + path);
    auto text = read_(path);
    if (!text) return no("could not read " + path);
    bool good = true;
    each_line(*text, [&](int, std::string_view content) {
      Line line(content);
      while (good && !line.at_end())
        if (!line.take_comma()) good = name(out, line, path);
    });
    return good;
  }

  bool address(HbaAddress& out, Line& line) {
    if (line.take("all")) return true;
    if (line.kind() != Token::word) return no("did not find address");
    std::string text = line.text();
    line.next();
    std::size_t slash = text.find('/');
    out.size = parse_ip_literal(text.substr(0, slash), out.base);
    if (!out.size) return no("failed to parse address - " + text);
    if (slash != std::string::npos) {
      if (!parse_mask_bits(text.substr(slash + 1), out.size, out.mask)) return no("invalid mask");
      return true;
    }
    if (line.kind() != Token::word) return no("did not find mask");
    if (parse_ip_literal(line.text(), out.mask) != out.size) return no("failed to parse mask: " + line.text());
    line.next();
    return true;
  }

  bool map(HbaRule& rule, Line& line) {
    if (line.kind() != Token::word) return true;
    if (!line.text().starts_with("map=")) return no("unsupported parameters");
    rule.map_name = line.text().substr(4);
    auto found = maps_.find(rule.map_name);
    if (found == maps_.end()) return no(fmt::format("ident map {} is not in the ident file", rule.map_name));
    rule.map = found->second;
    line.next();
    return true;
  }

  const std::string& path_;
  const IdentMaps& maps_;
  const ReadFile& read_;
  std::string why_;
  int includes_ = 0;
};

}  // namespace

HbaParsed parse_hba(std::string_view text, const std::string& path, const IdentMaps& maps, const ReadFile& read) {
  HbaParsed result;
  Parser parser(path, maps, read);
  each_line(text, [&](int number, std::string_view content) {
    Line line(content);
    if (line.at_end()) return;
    auto rule = parser.rule(line, number);
    if (!rule) {
      result.broken = true;
      result.warnings.push_back(fmt::format("hba line {}: {}", number, parser.why()));
      result.warnings.push_back(fmt::format("could not parse hba config line {}", number));
      return;
    }
    if (Parser::is_odd(rule->address))
      result.warnings.push_back(
          fmt::format("address does not match mask in {} line #{}: nobody is matched", path, number));
    result.hba.rules.push_back(*std::move(rule));
  });
  return result;
}

IdentParsed parse_ident(std::string_view text) {
  IdentParsed result;
  each_line(text, [&](int number, std::string_view content) {
    Line line(content);
    if (line.at_end()) return;
    IdentMapping mapping;
    std::string map;
    bool good = line.kind() == Token::word;
    if (good) {
      map = line.text();
      line.next();
      good = line.is_name();
    }
    if (good) {
      mapping.system_user = line.text();
      line.next();
      good = line.is_name();
    }
    if (good) {
      if (!line.is("all")) mapping.user = line.text();
      line.next();
      good = line.at_end();
    }
    if (!good) {
      result.broken = true;
      result.warnings.push_back(fmt::format("could not parse ident config line {}", number));
      return;
    }
    auto& slot = result.maps[map];
    if (!slot) slot = std::make_shared<IdentMap>();
    slot->push_back(std::move(mapping));
  });
  return result;
}

bool HbaAddress::match(Bytes address) const {
  if (size == 0) return true;
  if (address.size() != size) return false;
  for (std::size_t i = 0; i < size; ++i)
    if ((address[i] & mask[i]) != base[i]) return false;
  return true;
}

bool HbaRule::match(const HbaRequest& r) const {
  if (r.local != (type == Type::local)) return false;
  if (type == Type::hostssl && !r.tls) return false;
  if (type == Type::hostnossl && r.tls) return false;
  if (!r.local && !address.match(r.address)) return false;
  // "all" is not meant for whoever wants to copy the whole cluster.
  if (r.physical_replication ? !databases.replication : !databases.match(r.database, r.user)) return false;
  return users.match(r.user, r.database);
}

const HbaRule* Hba::match(const HbaRequest& request) const {
  auto found = std::ranges::find_if(rules, [&](const HbaRule& rule) { return rule.match(request); });
  return found == rules.end() ? nullptr : &*found;
}

}  // namespace pgf::auth
