#pragma once
// A small client of the console: one connection, one question at a time.
#include <poll.h>

#include <expected>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "net/tls.h"
#include "top/target.h"

namespace pgf::top {

struct Table {
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;  // NULL is empty

  // Of a row, by the column's name; empty if there is no such column: another version may have others.
  const std::string& at(const std::vector<std::string>& row, std::string_view column) const;
  double number(const std::vector<std::string>& row, std::string_view column) const;
};

class Console {
 public:
  // Waits until the descriptor is ready for `events`. False: nobody wants to wait any more.
  using Wait = std::function<bool(int fd, short events)>;

  explicit Console(Wait wait) : wait_(std::move(wait)) {}
  ~Console() { close(); }
  Console(const Console&) = delete;

  std::expected<void, std::string> open(const Target& target);  // connects and logs in
  std::expected<Table, std::string> show(std::string_view what);
  bool is_open() const { return fd_ >= 0; }
  void close();

 private:
  struct Message {
    char type;
    std::string body;
  };
  std::expected<void, std::string> connect(const Target& target);
  std::expected<void, std::string> secure(const Target& target);
  std::expected<void, std::string> log_in(const Target& target);
  std::expected<void, std::string> send(std::string_view bytes);
  std::expected<void, std::string> send_raw(std::string_view bytes);
  std::expected<void, std::string> receive();  // more into buffer_
  std::expected<Message, std::string> message();

  Wait wait_;
  int fd_ = -1;
  std::shared_ptr<const net::TlsContext> context_;
  std::unique_ptr<net::Tls> tls_;
  std::string buffer_;
};

}  // namespace pgf::top
