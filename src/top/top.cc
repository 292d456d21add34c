#include "top/top.h"

#include <errno.h>
#include <fmt/format.h>
#include <getopt.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>

#include "config/value.h"
#include "net/engine.h"
#include "top/frame.h"

namespace pgf::top {
namespace {

constexpr const char* kUsage =
    "Usage: pgflotilla top [OPTION]... [CONNECTION STRING | CONFIG.INI]\n"
    "Shows what a running pgflotilla does, through its console.\n"
    "\n"
    "  -1, --once           print one picture and end\n"
    "  -v, --view=NAME      pools (the default), clients, workers or hosts\n"
    "  -d, --delay=SECONDS  between two pictures, and what rates are taken over (1)\n"
    "  -h, --help           print this and end\n"
    "\n"
    "The connection string is host=... port=... user=... password=... sslmode=..., or postgresql://user@host:port;\n"
    "PGHOST, PGPORT, PGUSER, PGPASSWORD, PGSSLMODE and PGSSLROOTCERT count as well. Nothing said: port 6432 in /tmp.\n"
    "Keys: p c w h or tab change the view, < > what it is sorted by, r the direction, arrows and pages scroll, q "
    "ends.\n";

constexpr int kPatience = 10'000;  // milliseconds until a pooler that says nothing has had its time

std::string clock_text() {
  time_t now = time(nullptr);
  tm local;
  localtime_r(&now, &local);
  char text[16];
  strftime(text, sizeof text, "%H:%M:%S", &local);
  return text;
}

void print(std::string_view text) {
  while (!text.empty()) {
    ssize_t n = ::write(STDOUT_FILENO, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
}

// The terminal as a picture: other screen, no echo, no cursor. As it was before when this ends.
class Screen {
 public:
  Screen() {
    tcgetattr(STDIN_FILENO, &before_);
    termios raw = before_;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    raw.c_cc[VMIN] = 0;
    raw.c_cc[VTIME] = 0;
    raw.c_cc[VSUSP] = _POSIX_VDISABLE;
    tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    print("\x1b[?1049h\x1b[?25l");
  }
  ~Screen() {
    print("\x1b[?25h\x1b[?1049l");
    tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

 private:
  termios before_{};
};

Look terminal_size() {
  winsize size{};
  Look look;
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) {
    look.width = size.ws_col;
    look.height = size.ws_row;
  }
  return look;
}

struct Asked {
  Target target;
  View view = View::pools;
  Usec delay = kSecond;
  bool once = false;
};

class Program {
 public:
  explicit Program(Asked asked)
      : asked_(std::move(asked)), console_([this](int fd, short events) { return wait(fd, events); }) {
    show(asked_.view);
  }

  int once() {
    for (int i = 0; i < 2; ++i) {  // rates need two looks
      if (i > 0) ::usleep(static_cast<useconds_t>(asked_.delay));
      if (std::string error = look(); !error.empty()) {
        std::fprintf(stderr, "pgflotilla top: %s\n", harmless(error, 1000).c_str());
        return 1;
      }
    }
    Look look;
    look.styled = false;
    look.height = 0;
    look.width = 200;
    for (const std::string& line : picture(look)) print(line + "\n");
    return 0;
  }

  int interactive() {
    sigset_t signals;
    sigemptyset(&signals);
    for (int n : {SIGINT, SIGTERM, SIGHUP, SIGWINCH}) sigaddset(&signals, n);
    sigprocmask(SIG_BLOCK, &signals, nullptr);
    signals_ = signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
    Screen screen;
    while (!over_) {
      again_ = false;
      notice_ = look();
      paint();
      const Usec next = net::monotonic_now() + asked_.delay;
      while (!over_ && !again_) {
        const Usec left = next - net::monotonic_now();
        if (left <= 0) break;
        pollfd fds[] = {{STDIN_FILENO, POLLIN, 0}, {signals_, POLLIN, 0}};
        if (::poll(fds, 2, static_cast<int>(left / 1000) + 1) > 0) heed(fds[0].revents, fds[1].revents);
      }
    }
    ::close(signals_);
    return 0;
  }

 private:
  // What the console waits with: keys and signals count meanwhile.
  bool wait(int fd, short events) {
    const Usec end = net::monotonic_now() + kPatience * kMillisecond;
    for (;;) {
      pollfd fds[] = {{fd, events, 0}, {STDIN_FILENO, POLLIN, 0}, {signals_, POLLIN, 0}};
      const Usec left = end - net::monotonic_now();
      if (left <= 0 || over_) return false;
      if (::poll(fds, signals_ >= 0 ? 3 : 1, static_cast<int>(left / 1000) + 1) < 0 && errno != EINTR) return false;
      if (fds[0].revents) return true;
      if (signals_ >= 0 && (fds[1].revents || fds[2].revents)) heed(fds[1].revents, fds[2].revents);
    }
  }

  // Asks for everything that is shown; the error, or nothing.
  std::string look() {
    if (!console_.is_open())
      if (auto opened = console_.open(asked_.target); !opened) return opened.error();
    Sample sample;
    sample.at = net::monotonic_now();
    for (std::string_view what : wanted(asked_.view)) {
      auto table = console_.show(what);
      if (!table) {
        console_.close();
        before_.reset();
        return fmt::format("SHOW {}: {}", what, table.error());
      }
      sample.tables.emplace(what, *std::move(table));
    }
    before_ = std::exchange(now_, std::move(sample));
    return {};
  }

  std::vector<std::string> picture(Look look) {
    Picture p;
    const Sample nothing;
    const Sample& sample = now_ ? *now_ : nothing;
    const Table& version = sample.table("VERSION");
    const Target& t = asked_.target;
    p.title = fmt::format("pgflotilla top   {}   {}   {}   {}",
                          t.is_unix() ? t.socket_path() : fmt::format("{}:{}", t.host, t.port),
                          version.rows.empty() ? "" : version.rows[0][0], clock_text(),
                          kViewNames[static_cast<std::size_t>(asked_.view)]);
    p.head = head_lines(sample, before_ ? &*before_ : nullptr);
    p.view = asked_.view;
    p.order = order_;
    p.notice = notice_;
    Sheet sheet = make_sheet(asked_.view, sample, before_ ? &*before_ : nullptr);
    sort(sheet, order_);
    columns_ = sheet.columns.size();
    rows_ = sheet.rows.size();
    first_row_ = std::min(first_row_, rows_ > 0 ? rows_ - 1 : 0);
    look.first_row = first_row_;
    return draw(p, sheet, look);
  }

  void paint() {
    Look look = terminal_size();
    height_ = look.height;
    look.styled = true;
    std::string out = "\x1b[H";
    const auto lines = picture(look);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      if (i > 0) out += "\r\n";
      out += lines[i] + "\x1b[K";
    }
    print(out + "\x1b[J");
  }

  void show(View view) {
    again_ = view != asked_.view;  // its tables have to be asked for
    asked_.view = view;
    order_ = usual_order(view);
    first_row_ = 0;
  }

  void heed(short keys, short signals) {
    if (signals & POLLIN) {
      signalfd_siginfo info;
      while (::read(signals_, &info, sizeof info) == sizeof info)
        if (info.ssi_signo != SIGWINCH) over_ = true;
      if (!over_) paint();
    }
    if (!keys) return;
    char bytes[64];
    ssize_t n = ::read(STDIN_FILENO, bytes, sizeof bytes);
    if (n <= 0) over_ = true;  // the terminal is gone
    for (std::string_view text(bytes, n > 0 ? static_cast<std::size_t>(n) : 0); !text.empty();) press(text);
    if (!over_) paint();
  }

  // Takes one key from the front of `text`.
  void press(std::string_view& text) {
    const std::size_t page = height_ > 6 ? height_ - 6 : 1;
    static constexpr std::pair<std::string_view, char> kSequences[] = {
        {"\x1b[A", 'k'},  {"\x1b[B", 'j'}, {"\x1b[C", '>'}, {"\x1b[D", '<'}, {"\x1b[5~", 'u'},
        {"\x1b[6~", 'd'}, {"\x1bOA", 'k'}, {"\x1bOB", 'j'}, {"\x1bOC", '>'}, {"\x1bOD", '<'}};
    char key = text[0];
    std::size_t used = 1;
    for (const auto& [sequence, meaning] : kSequences)
      if (text.starts_with(sequence)) {
        key = meaning;
        used = sequence.size();
      }
    text.remove_prefix(used);
    switch (key) {
      case 'q':
        over_ = true;
        break;
      case 'p':
        return show(View::pools);
      case 'c':
        return show(View::clients);
      case 'w':
        return show(View::workers);
      case 'h':
        return show(View::hosts);
      case '\t':
        return show(static_cast<View>((static_cast<std::size_t>(asked_.view) + 1) % kViewNames.size()));
      case '>':
        if (columns_ > 0) order_.column = (order_.column + 1) % columns_;
        break;
      case '<':
        if (columns_ > 0) order_.column = (order_.column + columns_ - 1) % columns_;
        break;
      case 'r':
        order_.descending = !order_.descending;
        break;
      case 'j':
        ++first_row_;
        break;
      case 'k':
        first_row_ -= std::min<std::size_t>(first_row_, 1);
        break;
      case 'd':
        first_row_ += page;
        break;
      case 'u':
        first_row_ -= std::min(first_row_, page);
        break;
      case ' ':
        again_ = true;
        break;
      default:
        break;
    }
  }

  Asked asked_;
  Console console_;
  std::optional<Sample> now_, before_;
  Order order_;
  std::size_t first_row_ = 0, columns_ = 0, rows_ = 0, height_ = 24;
  std::string notice_;
  int signals_ = -1;
  bool over_ = false, again_ = false;
};

std::optional<View> view_of(std::string_view name) {
  for (std::size_t i = 0; i < kViewNames.size(); ++i)
    if (kViewNames[i] == name) return static_cast<View>(i);
  return std::nullopt;
}

}  // namespace

int run(int argc, char** argv, Outside outside) {
  static const option kLong[] = {{"once", no_argument, nullptr, '1'},
                                 {"view", required_argument, nullptr, 'v'},
                                 {"delay", required_argument, nullptr, 'd'},
                                 {"help", no_argument, nullptr, 'h'},
                                 {nullptr, 0, nullptr, 0}};
  Asked asked;
  auto complain = [](const std::string& text) {
    std::fprintf(stderr, "pgflotilla top: %s\n", text.c_str());
    return 1;
  };
  for (int c; (c = getopt_long(argc, argv, "1v:d:h", kLong, nullptr)) != -1;) {
    if (c == '1') {
      asked.once = true;
    } else if (c == 'v') {
      auto view = view_of(optarg);
      if (!view) return complain(fmt::format("there is no view {}: pools, clients, workers, hosts", optarg));
      asked.view = *view;
    } else if (c == 'd') {
      auto delay = config::parse_seconds(optarg);
      if (!delay || *delay < kSecond / 10 || *delay > 3600 * kSecond) return complain("delay: 0.1 to 3600 seconds");
      asked.delay = *delay;
    } else {
      std::fputs(kUsage, c == 'h' ? stdout : stderr);
      return c == 'h' ? 0 : 1;
    }
  }
  if (optind + 1 < argc) return complain("one connection string or ini is enough");
  auto target = parse_target(optind < argc ? argv[optind] : "", outside);
  if (!target) return complain(target.error());
  asked.target = *std::move(target);
  if (!asked.once && (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)))
    return complain("this is no terminal; --once prints one picture");
  Program program(asked);
  return asked.once ? program.once() : program.interactive();
}

}  // namespace pgf::top
