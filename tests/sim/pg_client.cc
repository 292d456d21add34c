#include "pg_client.h"

#include <fmt/format.h>

#include <algorithm>

#include "wire/read.h"
#include "wire/startup.h"
#include "wire/write.h"

namespace pgf::sim {

// Statements that anybody may prepare under any name. The text tells the number of rows and their width.
static constexpr std::uint64_t kTexts = 12;
static std::string text_of(std::uint64_t id) { return fmt::format("prep {} {} {}", id, id % 4, id * 7); }

// What the pooler says to those who break the protocol. Nobody here does.
static constexpr std::string_view kNever[] = {"unknown pkt",    "bad packet header",
                                              "broken ",        "prepared statement did",
                                              "bad pkt header", "invalid server parameter"};

static int any_pooler(Random& random, const ClientRules& rules) {
  return rules.first_pooler + static_cast<int>(rules.poolers > 1 ? random.below(rules.poolers) : 0);
}

PgClient::PgClient(Network& network, Random& random, Trace& trace, ClientRules& rules, std::uint64_t number)
    : network_(network),
      random_(random),
      trace_(trace),
      rules_(rules),
      number_(number),
      database_(random.pick(rules.databases)),
      user_(random.pick(rules.users)),
      talk_(network.call(any_pooler(random, rules))),
      left_(random.between(1, rules.requests)) {
  std::vector<std::pair<std::string, std::string>> params{{"user", user_}, {"database", database_}};
  auto want = [&](std::size_t i, std::string value) {
    params.emplace_back(kTracked[i], value);
    wanted_[i] = canonical(static_cast<int>(i), value);
  };
  if (!random.one_in(4)) want(4, fmt::format("app{}", random.below(4)));
  if (random.one_in(3)) want(2, random.one_in(2) ? "Europe/Berlin" : "Asia/Tokyo");
  if (random.one_in(4)) want(0, random.one_in(2) ? "ISO" : "German");
  talk_.out = wire::startup_message(wire::protocol(0), params);
  trace_.note("client comes", number_, talk_.end().link->number);
}

bool PgClient::ready() const {
  if (cancel_.alive() && (cancel_.readable() || cancel_.writable())) return true;
  if (phase_ == Phase::over) return false;
  if (!talk_.alive()) return true;
  if (talk_.end().link->state == Link::State::refused) return true;
  if (talk_.writable()) return true;
  const Usec now = network_.now();
  if (talk_.readable() && read_after_ <= now) return true;
  if (phase_ == Phase::ready && think_until_ <= now && talk_.out.empty() && !fatal_ && requests_.size() < 3)
    return true;
  return phase_ == Phase::leaving && talk_.out.empty();
}

Usec PgClient::next_time() const {
  if (phase_ == Phase::over) return -1;
  const Usec now = network_.now();
  Usec next = -1;
  auto note = [&](Usec t) {
    if (t > now && (next < 0 || t < next)) next = t;
  };
  if (phase_ == Phase::ready) note(think_until_);
  if (talk_.readable()) note(read_after_);
  return next;
}

void PgClient::step() {
  if (cancel_.alive() && random_.one_in(2)) {
    if (cancel_.writable()) return cancel_.write(random_);
    if (cancel_.readable()) {
      if (!cancel_.ended()) {  // who is slow, or one too many, may be told so
        if (rules_.calm) throw Violation("a cancel request is answered");
        return cancel_.read(random_);
      }
      // A peer that had it passed on may still have it when its sender was told good-bye.
      sloppy_ |= cancel_.end().link->faulty || !cancel_.out.empty() || rules_.poolers > 1;
      cancel_.close();
      --cancels_open_;
      return;
    }
  }
  if (phase_ == Phase::over) return;
  if (talk_.end().link->state == Link::State::refused) return go();
  if (talk_.writable() && random_.one_in(2)) return talk_.write(random_);
  if (talk_.readable() && read_after_ <= network_.now()) {
    if (talk_.ended()) {
      const bool excused = fatal_ || phase_ == Phase::leaving || talk_.end().link->faulty || rules_.may_be_dropped ||
                           (!rules_.calm && (talk_.has_rest() || talk_.end().broken()));
      if (!excused) wrong("the connection ends without a word");
      return go();
    }
    talk_.read(random_);
    while (auto m = talk_.next()) {
      trace_.note("client hears", number_, static_cast<unsigned char>(m->type), m->body.size());
      if (phase_ == Phase::login)
        hear_login(m->type, m->body);
      else
        hear(m->type, m->body);
    }
    if (random_.one_in(30)) read_after_ = network_.now() + static_cast<Usec>(random_.below(500'000));
    return;
  }
  if (talk_.writable()) return talk_.write(random_);
  if (phase_ == Phase::leaving && talk_.out.empty()) return go();
  if (phase_ == Phase::ready && think_until_ <= network_.now() && talk_.out.empty() && !fatal_ && requests_.size() < 3)
    think();
}

void PgClient::go() {
  trace_.note("client goes", number_);
  talk_.close();
  phase_ = Phase::over;
}

void PgClient::wrong(std::string_view what) const {
  throw Violation(fmt::format("client {}: {}; {}", number_, what, story()));
}

std::string PgClient::story() const {
  return fmt::format(
      "link {}, {}/{}, phase {}, {} requests open, the first with {} steps left, status {}, last words \"{}\"",
      talk_.end().link ? talk_.end().link->number : 0, user_, database_, static_cast<int>(phase_), requests_.size(),
      requests_.empty() ? 0 : requests_.front().steps.size(), status_, last_words_);
}

// ---- asking

void PgClient::think() {
  auto pause = [&] {
    think_until_ = network_.now() + static_cast<Usec>(random_.below(static_cast<std::size_t>(rules_.longest_thought)));
  };
  pause();
  if (!requests_.empty()) {
    if (random_.one_in(12)) return ask_for_cancel();
    if (rules_.leaves_rudely && random_.one_in(40)) return leave();
    if (!random_.one_in(4) || left_ == 0 || plan_ == '?') return;  // mostly one waits for the answer
  } else {
    plan_ = status_;
    if (cancels_open_ == 0 && !sloppy_) cancel_possible_ = false;
    if (random_.one_in(60)) return ask_for_cancel();
    if (left_ == 0 && (status_ == 'I' || random_.one_in(4))) return leave();
  }
  if (left_ > 0) --left_;
  ask();
}

void PgClient::leave() {
  trace_.note("client leaves", number_);
  const bool in_the_middle = !requests_.empty();
  if (rules_.leaves_rudely && random_.one_in(3)) {
    if (!in_the_middle && random_.one_in(2)) {  // half a message
      std::string half;
      wire::query(half, fmt::format("rows {} {} 1 200", number_, ++serial_));
      half.resize(random_.between(1, half.size() - 1));
      talk_.out += half;
      talk_.write(random_);
    }
    if (random_.one_in(2)) talk_.reset();
    return go();
  }
  if (!random_.one_in(5)) wire::terminate(talk_.out);
  phase_ = Phase::leaving;
}

void PgClient::ask_for_cancel() {
  if (cancel_.alive() || key_.empty()) return;
  trace_.note("client cancels", number_);
  cancel_ = Talk(network_.call(any_pooler(random_, rules_)));
  cancel_.out = wire::cancel_request(as_bytes(key_));
  ++cancels_open_;
  cancel_possible_ = true;
}

void PgClient::ask() {
  if (random_.one_in(2))
    simple_request();
  else
    extended_request();
}

PgClient::Step PgClient::statement(std::string& sql, bool in_batch) {
  Step step{.kind = Kind::rows, .serial = ++serial_};
  const std::string who = fmt::format(" {} {}", number_, step.serial);
  if (plan_ != 'I' && (random_.one_in(3) || left_ == 0)) {
    step.kind = plan_ == 'T' && !random_.one_in(4) ? Kind::commit : Kind::rollback;
    sql += (step.kind == Kind::commit ? "commit" : "rollback") + who;
    plan_ = 'I';
    return step;
  }
  const std::size_t kind = random_.below(100);
  if (kind < 12 && plan_ == 'I' && !rules_.statement_mode) {
    step.kind = Kind::begin;
    sql += "begin" + who;
    plan_ = 'T';
  } else if (kind < 30) {
    step.kind = Kind::write;
    sql += "write" + who;
  } else if (kind < 38) {
    step.kind = Kind::set;
    static constexpr std::pair<int, std::string_view> kValues[] = {
        {0, "ISO"},  {0, "German"}, {1, "UTF8"},   {1, "LATIN1"}, {2, "UTC"}, {2, "Asia/Tokyo"},
        {4, "app1"}, {4, "app2"},   {4, "app\"7"}, {3, "off"},    {3, "on"}};
    auto [parameter, value] = random_.pick(kValues);
    step.name = kTracked[static_cast<std::size_t>(parameter)];
    step.value = canonical(parameter, value);
    sql += fmt::format("set{} {} {}", who, step.name, value);
  } else if (kind < 43) {
    step.kind = Kind::fail;
    sql += "fail" + who;
    if (plan_ == 'T') plan_ = 'E';
  } else if (kind < 46 && !in_batch) {
    step.kind = Kind::copy_in;
    sql += "copyin" + who;
    plan_ = '?';  // its data comes when it is asked for, and nothing before
  } else if (kind < 49) {
    step.kind = Kind::copy_out;
    step.rows = random_.below(5);
    sql += fmt::format("copyout{} {} {}", who, step.rows, random_.below(50));
  } else {
    step.rows = random_.below(4);
    std::size_t width = random_.below(60);
    if (rules_.big_answers && random_.one_in(12)) {
      step.rows = random_.between(1, 6);
      width = random_.between(5'000, 60'000);
    }
    sql += fmt::format("rows{} {} {}", who, step.rows, width);
  }
  return step;
}

void PgClient::simple_request() {
  requests_.push_back({.simple = true});
  Request& r = requests_.back();
  unnamed_.reset();
  std::string sql;
  if (rules_.named_statements && !rules_.session_mode && requests_.size() == 1 && random_.one_in(25) &&
      status_ == 'I') {
    sql = "DEALLOCATE ALL";
    r.steps.push_back({.kind = Kind::forget_all});
    for (auto& [name, id] : names_) unclear_.insert(name);
    names_.clear();
    plan_ = '?';  // nothing else until this is answered
  } else {
    const std::size_t count = random_.one_in(4) ? random_.between(2, 3) : 1;
    for (std::size_t i = 0; i < count && (r.steps.empty() || r.steps.back().kind != Kind::copy_in); ++i) {
      if (i > 0) sql += ';';
      r.steps.push_back(statement(sql, count > 1));
      r.steps.back().described = r.steps.back().kind != Kind::rows;
    }
  }
  trace_.text("client asks", number_, sql);
  wire::query(talk_.out, sql);
}

void PgClient::message(char type, std::string_view body) { wire::message(talk_.out, type, body); }

void PgClient::parse(Request& r, std::string_view name, std::string_view sql) {
  std::string body(name);
  body.append(1, '\0').append(sql).append(1, '\0').append(2, '\0');
  message('P', body);
  r.steps.push_back({.kind = Kind::parse, .name = std::string(name)});
}

void PgClient::bind(Request& r, std::string_view name, std::uint64_t serial) {
  std::string body;
  body.append(1, '\0').append(name).append(1, '\0').append(2, '\0').append("\0\2", 2);
  for (std::uint64_t n : {number_, serial}) {
    const std::string value = fmt::format("{}", n);
    body.append(3, '\0').append(1, static_cast<char>(value.size())).append(value);
  }
  body.append(2, '\0');
  message('B', body);
  r.steps.push_back({.kind = Kind::bind});
}

void PgClient::extended_request() {
  requests_.push_back({.simple = false});
  Request& r = requests_.back();
  const std::size_t count = random_.one_in(3) ? random_.between(2, 4) : 1;
  for (std::size_t i = 0; i < count; ++i) {
    std::string name;
    Step run{.kind = Kind::rows, .prepared = true};
    const std::size_t way = random_.below(rules_.named_statements ? 4 : 2);
    if (way == 0 && unnamed_ && *unnamed_ != 0 && requests_.size() == 1) {  // the one from before
      run.id = *unnamed_;
    } else if (way < 2) {
      if (random_.one_in(3)) {
        run.id = random_.between(1, kTexts);
        unnamed_ = run.id;
        parse(r, "", text_of(run.id));
      } else {
        std::string sql;
        run = statement(sql, true);
        parse(r, "", sql);
        unnamed_ = 0;  // it has its serial in it: not to be run again
        trace_.text("client parses", number_, sql);
      }
    } else {
      name = fmt::format("s{}", random_.below(4));
      if (unclear_.contains(name)) continue;
      auto known = names_.find(name);
      if (known != names_.end() && random_.one_in(4)) {
        message('C', "S" + name + std::string(1, '\0'));
        r.steps.push_back({.kind = Kind::close, .id = known->second, .name = name});
        names_.erase(known);
        unclear_.insert(name);
        continue;
      }
      if (known != names_.end()) {
        run.id = known->second;
      } else {
        run.id = random_.between(1, kTexts);
        parse(r, name, text_of(run.id));
        r.steps.back().id = run.id;
        unclear_.insert(name);
      }
    }
    if (run.prepared) {
      run.serial = ++serial_;
      run.rows = run.id % 4;
    }
    if (random_.one_in(6) && run.kind == Kind::rows) {
      message('D', "S" + name + std::string(1, '\0'));
      r.steps.push_back({.kind = Kind::describe_statement, .id = run.id});
    }
    bind(r, name, run.serial);
    if (random_.one_in(3)) {
      message('D', std::string("P\0", 2));
      r.steps.push_back({.kind = Kind::describe_portal, .id = run.kind == Kind::rows ? run.id : ~std::uint64_t{0}});
    }
    message('E', std::string(5, '\0'));
    if (random_.one_in(10)) message('H', "");
    trace_.note("client runs", number_, run.serial, run.id);
    r.steps.push_back(std::move(run));
  }
  message('S', "");
  r.steps.push_back({.kind = Kind::sync});
}

// ---- being answered

void PgClient::hear_login(char type, Bytes body) {
  switch (type) {
    case 'R':
      return;
    case 'S':
      return parameter(body);
    case 'K':
      key_.assign(as_text(body));
      return;
    case 'E':
      return error(body);
    case 'N':
      return;
    case 'Z':
      for (std::size_t i = 0; i < view_.size(); ++i)
        if (!wanted_[i].empty() && canonical(static_cast<int>(i), view_[i]) != wanted_[i])
          wrong(fmt::format("asked for {} and was given {}", wanted_[i], view_[i]));
      phase_ = Phase::ready;
      return;
    default:
      wrong(fmt::format("hears '{}' while logging in", type));
  }
}

void PgClient::parameter(Bytes body) {
  auto status = wire::read_parameter_status(body);
  if (!status) wrong("a broken ParameterStatus");
  if (int i = tracked(status->name); i >= 0) view_[static_cast<std::size_t>(i)] = status->value;
}

PgClient::Step& PgClient::front(char type) {
  if (requests_.empty()) wrong(fmt::format("hears '{}' without having asked", type));
  Request& r = requests_.front();
  if (r.steps.empty() || r.failed) wrong(fmt::format("hears '{}', and all is answered", type));
  return r.steps.front();
}

void PgClient::hear(char type, Bytes body) {
  if (fatal_) wrong(fmt::format("hears '{}' after the last word: {}", type, wire::read_error(body).message));
  auto expect = [&](bool right) {
    if (!right) wrong(fmt::format("hears '{}' instead of the answer to {}", type, static_cast<int>(front(type).kind)));
  };
  switch (type) {
    case 'N':
      return;
    case 'S':
      return parameter(body);
    case 'E':
      return error(body);
    case 'Z':
      return ready_for_query(static_cast<char>(body[0]));
    case '1':
    case '2':
    case '3': {
      Step& step = front(type);
      expect(step.kind == (type == '1' ? Kind::parse : type == '2' ? Kind::bind : Kind::close));
      return finish(step);
    }
    case 't':
      return expect(front(type).kind == Kind::describe_statement);
    case 'T': {
      Step& step = front(type);
      if (step.kind == Kind::rows) {
        expect(!step.described);
        step.described = true;
        return;
      }
      expect(step.kind == Kind::describe_statement || step.kind == Kind::describe_portal);
      const std::string name = step.id ? fmt::format("{}", step.id) : "r";
      if (as_text(body).substr(2, name.size() + 1) != name + std::string(1, '\0'))
        wrong(fmt::format("statement {} is described as \"{}\"", name, as_text(body).substr(2, 10)));
      return finish(step);
    }
    case 'n':
      expect(front(type).kind == Kind::describe_portal && front(type).id == ~std::uint64_t{0});
      return finish(front(type));
    case 'D':
      return row(body, front(type));
    case 'G': {
      expect(front(type).kind == Kind::copy_in);
      for (std::size_t i = random_.below(4); i > 0; --i)
        message('d', fmt::format("{} {} {}", number_, i, std::string(random_.below(200), '.')));
      if (random_.one_in(5)) {
        front(type).kind = Kind::fail;
        message('f', std::string("no\0", 3));
      } else {
        message('c', "");
      }
      return;
    }
    case 'H':
    case 'c':
      return expect(front(type).kind == Kind::copy_out);
    case 'd': {
      Step& step = front(type);
      expect(step.kind == Kind::copy_out);
      auto w = words(as_text(body));
      if (w.size() < 3 || sim::number(w[0]) != number_ || sim::number(w[1]) != step.serial ||
          sim::number(w[2]) != step.seen++)
        wrong(fmt::format("gets \"{}\" of a COPY", as_text(body).substr(0, 40)));
      return;
    }
    case 'C': {
      Step& step = front(type);
      std::string_view tag = as_text(body);
      tag = tag.substr(0, tag.find('\0'));
      if (step.kind == Kind::forget_all) {
        expect(tag == "DEALLOCATE ALL");
        return finish(step);
      }
      expect(step.kind <= Kind::copy_out && step.kind != Kind::fail);
      if (sim::number(words(tag).back()) != step.serial)
        wrong(fmt::format("{} is told to be done: \"{}\"", step.serial, tag));
      const bool all = (step.kind != Kind::rows && step.kind != Kind::copy_out) || step.seen == step.rows;
      if (!all) wrong(fmt::format("gets {} rows of {}", step.seen, step.rows));
      return finish(step);
    }
    default:
      wrong(fmt::format("hears '{}'", type));
  }
}

void PgClient::row(Bytes body, Step& step) {
  if (step.kind != Kind::rows || !step.described) wrong("gets a row that it did not ask for");
  std::string_view text = as_text(body).substr(6);
  auto w = words(text.substr(0, text.find('#')));
  text = text.substr(text.find('#') + 1);
  if (w.size() != 4 || sim::number(w[0]) != number_ || sim::number(w[1]) != step.serial ||
      sim::number(w[2]) != step.seen || sim::number(w[3]) != step.id)
    wrong(fmt::format("gets \"{}\" as row {} of {}", as_text(body).substr(6, 30), step.seen, step.serial));
  ++step.seen;
  Params mine;
  for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = canonical(static_cast<int>(i), view_[i]);
  if (text.substr(0, text.find('#')) != digest(mine))
    wrong(fmt::format("has {} in force and runs with {}", digest(mine), text.substr(0, text.find('#'))));
}

// A step is answered, and well.
void PgClient::finish(Step& step) {
  if (status_ == 'E' && step.kind < Kind::parse && step.kind != Kind::commit && step.kind != Kind::rollback)
    wrong("runs a statement in a transaction that has failed");
  Request& r = requests_.front();
  switch (step.kind) {
    case Kind::begin:
      status_ = 'T';
      break;
    case Kind::commit:
    case Kind::rollback:
      if (step.kind == Kind::commit && status_ != 'E')
        for (std::uint64_t serial : written_)
          if (!ledger_->committed(number_, serial)) wrong(fmt::format("lost change {}", serial));
      written_.clear();
      status_ = 'I';
      break;
    case Kind::write:
      written_.insert(step.serial);
      break;
    case Kind::set:
      if (canonical(tracked(step.name), view_[static_cast<std::size_t>(tracked(step.name))]) != step.value)
        wrong(fmt::format("set {} to {} and has {}", step.name, step.value,
                          view_[static_cast<std::size_t>(tracked(step.name))]));
      break;
    case Kind::parse:
      if (!step.name.empty()) {
        names_[step.name] = step.id;
        unclear_.erase(step.name);
      }
      break;
    case Kind::close:
      unclear_.erase(step.name);
      break;
    case Kind::forget_all:
      unclear_.clear();
      break;
    default:
      break;
  }
  ++rules_.answered;
  r.steps.pop_front();
}

void PgClient::error(Bytes body) {
  const wire::ErrorFields e = wire::read_error(body);
  last_words_ = fmt::format("{} {} {}", e.severity, e.sqlstate, e.message);
  trace_.text("client is told", number_, last_words_);
  const bool cancelled = e.message == "canceling statement due to user request";
  if (e.message.starts_with('#')) {
    const std::uint64_t whose = sim::number(e.message.substr(1));
    if (whose != 0 && whose != number_) wrong("hears of somebody else's error");
  }
  if (e.severity == "FATAL") {
    if (fatal_) wrong("two last words");
    fatal_ = true;
    ++rules_.refused;
    for (std::string_view never : kNever)
      if (e.message.starts_with(never)) wrong("is refused for nothing");
    if (rules_.calm) wrong("is refused, and nothing was wrong");
    return;
  }
  if (phase_ == Phase::login) wrong("an error that is not the last word, while logging in");
  if (requests_.empty()) wrong("an error without a question");
  Request& r = requests_.front();
  if (r.failed || r.steps.empty()) wrong("an error, and all is answered");
  const Step& step = r.steps.front();
  const bool may_cancel = cancel_possible_ && e.sqlstate == "57014";
  if (step.kind == Kind::sync && !may_cancel) wrong("an error for a Sync");
  if (step.kind != Kind::fail && status_ != 'E' && !may_cancel) wrong("an error out of nothing");
  if (!e.message.starts_with('#') && !(cancelled && may_cancel)) wrong("an error of unknown origin");
  // Behind it all is skipped, up to the end of the request. The last ones first: one may have undone another.
  for (auto s = r.steps.rbegin(); s != r.steps.rend(); ++s) {
    if (s->kind == Kind::parse && !s->name.empty()) unclear_.erase(s->name);
    if (s->kind == Kind::parse && s->name.empty()) unnamed_.reset();
    if (s->kind == Kind::close) {
      unclear_.erase(s->name);
      names_[s->name] = s->id;
    }
  }
  r.steps.clear();
  r.failed = true;
  if (status_ == 'T')
    status_ = 'E';
  else if (status_ == 'I')
    written_.clear();
}

void PgClient::ready_for_query(char status) {
  if (requests_.empty()) wrong("ReadyForQuery without a question");
  Request& r = requests_.front();
  if (!r.failed) {
    if (r.simple ? !r.steps.empty() : r.steps.size() != 1 || r.steps.front().kind != Kind::sync)
      wrong("ReadyForQuery, and answers are missing");
  }
  if (status != status_) wrong(fmt::format("is told to be in state {}", status));
  if (status == 'I') {
    for (std::uint64_t serial : written_)
      if (!ledger_->committed(number_, serial)) wrong(fmt::format("lost change {}", serial));
    written_.clear();
  }
  requests_.pop_front();
  ++rules_.answered;
}

}  // namespace pgf::sim
