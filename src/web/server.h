#pragma once
// A small HTTP server in one thread of its own: GET and HEAD, one answer per connection, which may be a stream. Slow or
// hostile clients cost it a descriptor for a few seconds, and the workers nothing.
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "web/request.h"

namespace pgf::web {

struct Response {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body = {};
  std::string headers = {};  // more of them, each with \r\n
  // A stream: `body`, then what this returns, once now and after each Refresh; empty = nothing new.
  std::function<std::string()> next = {};
};

using Make = std::function<Response()>;                       // called in the server's thread
using Answer = std::function<void(Make)>;                     // any thread, at most once
using Handler = std::function<void(const Request&, Answer)>;  // in the server's thread; must not block
using Renew = std::function<void()>;                          // called in the server's thread
// Makes anew what the streams draw from: called in the server's thread once a second, not before the last one is done,
// while there is a stream. Done: when what it was given has been called, by any thread, and with it the Renew.
using Refresh = std::function<void(std::function<void(Renew)>)>;

class Server {
 public:
  static constexpr int kMaxConnections = 64;  // then the oldest that has asked for nothing goes, else the new one
  static constexpr int kMaxStreams = 16;      // of them

  // Listening, nonblocking sockets, which it closes at its end.
  Server(std::vector<int> listeners, Handler handler, Refresh refresh, Log& log);
  ~Server();  // closes everything; answers that come later go nowhere
  Server(const Server&) = delete;

 private:
  struct Inbox;
  struct Connection;
  void run();
  void accept_all(int listener);
  void on_readable(Connection& c);
  void send(Connection& c, Response response);
  void on_writable(Connection& c);
  void feed(Connection& c);
  void refresh_if_due();

  std::vector<int> listeners_;
  Handler handler_;
  Refresh refresh_;
  Log& log_;
  std::shared_ptr<Inbox> inbox_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::uint64_t next_id_ = 1;
  bool refreshing_ = false;
  int wait_ = 1000;  // ms, of poll
  std::chrono::steady_clock::time_point next_refresh_{};
  std::thread thread_;  // last: it uses everything above
};

}  // namespace pgf::web
