#pragma once
// What the program does with its operating system before and after the threads run.
#include <expected>
#include <string>
#include <vector>

#include "base/log.h"
#include "config/config.h"

namespace pgf {

bool read_file(const std::string& path, std::string& text, std::string& error);
// All return an error text, or empty.
std::string become_user(const std::string& name);
std::string daemonize();
std::string check_pidfile(const std::string& path, Log& log);
std::string write_pidfile(const std::string& path);
void remove_pidfile(const std::string& path);
// The cores that affinity and the cgroup's CPU quota allow, at least 1.
int usable_cores();
long expected_descriptors(const config::Config& config);
// Built with a sanitizer that reports leaks at exit: then every destructor has to run.
bool leak_checked();

std::string unix_socket_path(const config::Settings& settings);

// Sockets for metrics_listen; none if it is empty. With so_reuseport another process may have it at the same time.
std::expected<std::vector<int>, std::string> open_metrics(const config::Settings& settings);

// The listening sockets: per worker one for each TCP address, and one Unix socket for all.
class Listeners {
 public:
  ~Listeners();
  std::string open(const config::Settings& settings, int workers, Log& log);
  // Sockets that listen already, from the process before us or from the service manager, dealt out to the workers.
  struct Given {
    int fd;
    bool is_unix;
  };
  void adopt(const std::vector<Given>& given, int workers);
  // The file of the Unix socket is removed at the end of the program.
  void own_socket_file(std::string path) { socket_file_ = std::move(path); }
  const std::vector<std::vector<int>>& tcp() const { return tcp_; }
  const std::vector<int>& local() const { return local_; }
  // At the end of the program: the port is free from here on, whatever the kernel still holds of our rings.
  void stop();

 private:
  std::vector<std::vector<int>> tcp_;
  std::vector<int> local_;
  std::string socket_file_;
};

}  // namespace pgf
