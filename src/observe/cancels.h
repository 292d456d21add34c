#pragma once
// How cancel requests end, in few words: what Env::cancel_done is told, for counting.
#include <array>
#include <cstdint>
#include <string_view>

namespace pgf::observe {

inline constexpr std::string_view kCancelOutcomes[] = {
    "sent",     // to the server, or to a peer
    "queued",   // its query had not been sent yet, and was taken out of the queue
    "idle",     // its client ran nothing, or nothing any more
    "console",  // of an admin console
    "unknown",  // nobody has this key
    "timeout",  // cancel_wait_timeout
    "failed"    // the server or the peer could not be reached
};
using CancelCounts = std::array<std::uint64_t, std::size(kCancelOutcomes)>;

std::size_t cancel_outcome(std::string_view reason);  // of kCancelOutcomes

}  // namespace pgf::observe
