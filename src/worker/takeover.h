#pragma once
// The taking side of an online restart (-R): logs in to the old process's console over the Unix socket, makes it stand
// still, and receives its sockets. Blocking, before any thread exists. If this process ends before finish(), the old
// one goes on by itself.
#include <deque>
#include <expected>
#include <string>
#include <vector>

#include "base/log.h"
#include "session/handover.h"
#include "worker/descriptors.h"

namespace pgf::worker {

class Takeover {
 public:
  explicit Takeover(Log& log) : log_(log) {}

  // False: nobody answers on that socket, there is nothing to take over. The error is final.
  std::expected<bool, std::string> begin(const std::string& socket_path);
  // What came. The descriptors (Handed::received) are the caller's from here on.
  std::vector<session::Handed> take_rows();
  // Ends the old process: its last connection is closed when this returns. Returns an error text, or empty.
  std::string finish();
  pid_t old_pid() const;  // of the process at the other end; 0 = unknown

 private:
  struct Message {
    char type;
    std::string body;
  };
  std::expected<void, std::string> send(std::string_view bytes);
  std::expected<Message, std::string> receive();
  // Runs a command. The text of an ErrorResponse is in `refused`, if that is given; else it is an error.
  std::expected<void, std::string> command(std::string_view sql, std::string* refused = nullptr);
  std::expected<void, std::string> row(std::string_view body);

  Log& log_;
  Descriptor socket_{-1};
  std::string buffer_;
  std::deque<Descriptor> arrived_;  // descriptors whose rows are not read yet
  std::vector<session::Handed> rows_;
  std::vector<Descriptor> kept_;  // Handed::received of rows_, until somebody takes them
};

}  // namespace pgf::worker
