#pragma once
// What systemd and this program say to each other. Without systemd all of it does nothing.
#include <string>
#include <vector>

#include "base/time.h"

namespace pgf {

// Sockets that the service manager passed. To be asked once, in the process that was started (not after a fork).
std::vector<int> activation_sockets();
// sd_notify: "READY=1" and the like.
void notify_manager(const std::string& state);
// How long the manager waits for a sign of life ("WATCHDOG=1"); 0: it wants none.
Usec manager_patience();
// Is stderr the journal? Then it wants priorities, and no time stamps.
bool stderr_is_journal();

}  // namespace pgf
