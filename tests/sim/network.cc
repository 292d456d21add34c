#include "network.h"

#include <algorithm>

namespace pgf::sim {

// ---- End

bool End::open() const { return link->open[side]; }
bool End::broken() const { return link->reset[side]; }
bool End::lost() const { return broken() && link->from[1 - side].bytes.empty(); }

std::size_t End::room() const {
  const Link::Direction& d = link->from[side];
  return d.bytes.size() >= link->window ? 0 : link->window - d.bytes.size();
}

std::size_t End::send(Bytes bytes) const {
  if (!open() || broken() || link->state != Link::State::established) return 0;
  const std::size_t n = std::min(bytes.size(), room());
  if (!link->open[1 - side]) {  // it comes back as a reset
    link->reset[side] = true;
    return n;
  }
  link->from[side].bytes.append(as_text(bytes.first(n)));
  return n;
}

Bytes End::arrived() const {
  const Link::Direction& d = link->from[1 - side];
  return as_bytes(std::string_view(d.bytes).substr(0, d.arrived));
}

void End::consume(std::size_t n) const {
  Link::Direction& d = link->from[1 - side];
  d.bytes.erase(0, n);
  d.arrived -= n;
}

bool End::eof() const {
  const Link::Direction& d = link->from[1 - side];
  return d.fin_arrived && d.bytes.empty();
}

void End::close() const {
  if (!open()) return;
  link->open[side] = false;
  link->from[side].fin = true;
  Link::Direction& unread = link->from[1 - side];
  if (!unread.bytes.empty() && link->open[1 - side]) {
    unread.bytes.clear();
    unread.arrived = 0;
    link->reset[1 - side] = true;  // what had arrived there is still to be read
  }
}

void End::reset() const {
  if (!open()) return;
  link->open[side] = false;
  Link::Direction& mine = link->from[side];
  mine.bytes.resize(mine.arrived);
  link->from[1 - side].bytes.clear();
  link->from[1 - side].arrived = 0;
  link->reset[1 - side] = true;
}

// ---- Network

Link& Network::make() {
  links_.push_back(std::make_unique<Link>());
  Link& link = *links_.back();
  link.number = next_number_++;
  link.window = window;
  return link;
}

End Network::call(int address) {
  Link& link = make();
  link.state = Link::State::connecting;
  link.address = address;
  return {&link, 0};
}

int Network::make_socket() {
  if (no_more_sockets && random_.one_in(20)) {
    errno = EMFILE;
    return -1;
  }
  return give_fd({&make(), 0});
}

void Network::connect(int fd, int address) {
  Link& link = *end_of(fd).link;
  link.state = Link::State::connecting;
  link.address = address;
}

End Network::end_of(int fd) const {
  auto it = fds_.find(fd);
  return it == fds_.end() ? End{} : it->second;
}

int Network::give_fd(End end) {
  const int fd = next_fd_++;
  fds_[fd] = end;
  end.link->fd[end.side] = fd;
  return fd;
}

void Network::close_fd(int fd) {
  End end = end_of(fd);
  if (!end) throw Violation(fmt::format("descriptor {} is closed twice", fd));
  fds_.erase(fd);
  end.link->fd[end.side] = -1;
  end.close();
  if (end.link->state != Link::State::established) end.link->open[1] = false;
}

void Network::events(std::vector<Event>& into) {
  std::erase_if(links_, [](const auto& link) { return link->over() && link->fd[0] < 0 && link->fd[1] < 0; });
  for (const auto& link : links_) {
    if (link->state == Link::State::connecting && link->open[0]) {
      auto hole = holes_.find(link->address);
      if (hole == holes_.end() || !hole->second) into.push_back({link.get(), -1});
      continue;
    }
    if (link->state != Link::State::established) continue;
    for (int side : {0, 1}) {
      const Link::Direction& d = link->from[side];
      if (!link->open[1 - side] || d.held_until > now_) continue;
      if (d.on_way() > 0 || (d.fin && !d.fin_arrived)) into.push_back({link.get(), side});
    }
  }
}

void Network::happen(const Event& event) {
  Link& link = *event.link;
  if (event.side < 0) {
    auto answer = answers_.find(link.address);
    if (answer == answers_.end()) {
      trace_.note("refused", link.number);
      link.state = Link::State::refused;
      link.open[1] = false;
      return;
    }
    trace_.note("connected", link.number, static_cast<std::uint64_t>(link.address));
    link.state = Link::State::established;
    return answer->second({&link, 1});
  }
  Link::Direction& d = link.from[event.side];
  if (d.on_way() > 0) {
    const std::size_t n = random_.part(d.on_way());
    d.arrived += n;
    trace_.note(event.side == 0 ? "arrived >" : "arrived <", link.number, n);
    if (longest_hold > 0 && random_.one_in(40))
      d.held_until = now_ + static_cast<Usec>(random_.between(1, longest_hold));
    return;
  }
  trace_.note(event.side == 0 ? "fin >" : "fin <", link.number);
  d.fin_arrived = true;
}

Usec Network::next_time() const {
  Usec next = -1;
  for (const auto& link : links_)
    for (int side : {0, 1}) {
      const Link::Direction& d = link->from[side];
      if (!link->open[1 - side] || d.held_until <= now_ || (d.on_way() == 0 && !(d.fin && !d.fin_arrived))) continue;
      if (next < 0 || d.held_until < next) next = d.held_until;
    }
  return next;
}

bool Network::break_something(bool only_silence) {
  std::vector<Link*> may;
  for (const auto& link : links_)
    if (link->state == Link::State::established && link->open[0] && link->open[1]) may.push_back(link.get());
  if (may.empty()) return false;
  Link& link = *may[random_.below(may.size())];
  if (only_silence || random_.one_in(2)) {
    const Usec until =
        now_ + static_cast<Usec>(random_.between(kMillisecond, random_.one_in(4) ? 20 * kSecond : kSecond));
    const int side = static_cast<int>(random_.below(2));
    link.from[side].held_until = until;
    trace_.note("silence", link.number, static_cast<std::uint64_t>(side), static_cast<std::uint64_t>(until));
    return true;
  }
  trace_.note("cut", link.number);
  link.faulty = true;
  for (int side : {0, 1}) {
    Link::Direction& d = link.from[side];
    d.bytes.resize(d.arrived);
    link.reset[side] = true;
  }
  return true;
}

void Network::heal() {
  for (const auto& link : links_)
    for (Link::Direction& d : link->from) d.held_until = 0;
  no_more_sockets = false;
  holes_.clear();
}

}  // namespace pgf::sim
