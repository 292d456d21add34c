#pragma once
// How long things took since start, on one worker: in one pool, and at one address.
#include "base/histogram.h"

namespace pgf::session {

struct Latencies {
  Histogram wait;     // of a client for a server: every assignment, most of them 0
  Histogram query;    // from a request's first byte to the last of its answers
  Histogram xact;     // from the first request of a transaction to the end of it
  Histogram login;    // of a client, from accept until it is authenticated
  Histogram connect;  // of a server, from the first SYN until it can be used

  Latencies& operator+=(const Latencies& other) {
    wait += other.wait;
    query += other.query;
    xact += other.xact;
    login += other.login;
    connect += other.connect;
    return *this;
  }
};

struct HostTimes {
  Histogram query, connect;
};

}  // namespace pgf::session
