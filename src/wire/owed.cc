#include "wire/owed.h"

#include <algorithm>

namespace pgf::wire {

void Owed::grow() {
  std::vector<Entry> bigger(std::max<std::size_t>(8, ring_.size() * 2));
  std::size_t n = size();
  for (std::size_t i = 0; i < n; ++i) bigger[i] = std::move(ring_[(head_ + i) & mask_]);
  ring_ = std::move(bigger);
  mask_ = ring_.size() - 1;
  head_ = 0;
  tail_ = n;
}

bool Owed::leave_copy() {
  std::vector<Entry> keep;
  if (!empty() && (front().ask == Ask::query || front().ask == Ask::function_call))
    keep.push_back(pop());
  else if (!empty() && front().ask == Ask::execute)
    drop_front();
  while (!empty() && front().ask == Ask::sync) drop_front();
  bool ended = !empty() && front().ask == Ask::copy_end;
  if (ended) drop_front();
  if (keep.empty()) return ended;
  while (!empty()) keep.push_back(pop());
  for (Entry& e : keep) push(e.ask, e.give, std::move(e.statement), e.name);
  return ended;
}

}  // namespace pgf::wire
