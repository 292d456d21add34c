#pragma once
// A small HTTP server in one thread of its own: GET and HEAD, one answer per connection. Slow or hostile clients cost
// it a descriptor for a few seconds, and the workers nothing.
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
  std::string body;
};

using Make = std::function<Response()>;                       // called in the server's thread
using Answer = std::function<void(Make)>;                     // any thread, at most once
using Handler = std::function<void(const Request&, Answer)>;  // in the server's thread; must not block

class Server {
 public:
  static constexpr int kMaxConnections = 64;  // then the oldest that has asked for nothing goes, else the new one

  // Listening, nonblocking sockets, which it closes at its end.
  Server(std::vector<int> listeners, Handler handler, Log& log);
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

  std::vector<int> listeners_;
  Handler handler_;
  Log& log_;
  std::shared_ptr<Inbox> inbox_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::uint64_t next_id_ = 1;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace pgf::web
