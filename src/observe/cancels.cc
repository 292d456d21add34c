#include "observe/cancels.h"

#include <algorithm>

namespace pgf::observe {

std::size_t cancel_outcome(std::string_view reason) {
  struct Row {
    std::string_view reason, outcome;
  };
  static constexpr Row kRows[] = {{"successfully sent cancel request", "sent"},
                                  {"cancelled a queued client", "queued"},
                                  {"cancel request for idle client", "idle"},
                                  {"cancel request for a server that is not at work", "idle"},
                                  {"not sending cancel request for client that is now idle", "idle"},
                                  {"cancel request for console client", "console"},
                                  {"failed cancel request", "unknown"},
                                  {"could not find peer to forward request to", "unknown"},
                                  {"failed to forward cancel request because its TTL was exhausted", "unknown"},
                                  {"cancel_wait_timeout", "timeout"}};
  const Row* row = std::ranges::find(kRows, reason, &Row::reason);
  std::string_view outcome = row == std::end(kRows) ? "failed" : row->outcome;
  return static_cast<std::size_t>(std::ranges::find(kCancelOutcomes, outcome) - std::begin(kCancelOutcomes));
}

}  // namespace pgf::observe
