#pragma once
// What the program serves over HTTP: one row per path in pages.cc.
#include "web/server.h"
#include "worker/fleet.h"

namespace pgf::worker {

// `fleet` must outlive the server that asks. The control thread makes the answers.
struct Pages {
  web::Handler handler;
  web::Refresh refresh;
};
Pages pages(Fleet& fleet);

}  // namespace pgf::worker
