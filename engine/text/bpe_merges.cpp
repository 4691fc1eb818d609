#include "engine/text/bpe_merges.h"

#include <algorithm>
#include <array>
#include <map>

#include "engine/system/stopped.h"

namespace gpt2 {
namespace {
constexpr size_t kScanLimit = 64;
constexpr size_t kStopInterval = 1 << 16; // merges, a few milliseconds
} // namespace

MergeTable::MergeTable(std::span<const uint32_t> pairs)
    : pairs_(pairs.begin(), pairs.end()), slots_(size_t{1} << kBits) {
  for (size_t rank = 0; rank < pairs.size(); rank++) {
    uint32_t i = slot(pairs[rank]);
    while (slots_[i].merged != kNone) i = (i + 1) & kMask;
    slots_[i] = {pairs[rank], static_cast<uint16_t>(256 + rank)};
  }
}

size_t MergeTable::merge(std::span<uint16_t> ids, const std::atomic<bool>* stop) const {
  return ids.size() <= kScanLimit ? merge_by_scan(ids) : merge_by_rank(ids, stop);
}

size_t MergeTable::merge_by_scan(std::span<uint16_t> ids) const {
  size_t size = ids.size();
  if (size < 2) return size;
  std::array<uint16_t, kScanLimit> small;
  std::vector<uint16_t> large(size > kScanLimit ? size : 0);
  uint16_t* merged = large.empty() ? small.data() : large.data(); // merged[i]: token of ids[i], ids[i+1]
  for (size_t i = 0; i + 1 < size; i++) merged[i] = find(ids[i], ids[i + 1]);

  while (size > 1) {
    const size_t at = std::min_element(merged, merged + size - 1) - merged;
    if (merged[at] == kNone) break;
    ids[at] = merged[at];
    std::copy(ids.begin() + at + 2, ids.begin() + size, ids.begin() + at + 1);
    std::copy(merged + at + 1, merged + size - 1, merged + at);
    size--;
    if (at > 0) merged[at - 1] = find(ids[at - 1], ids[at]);
    if (at + 1 < size) merged[at] = find(ids[at], ids[at + 1]);
  }
  return size;
}

size_t MergeTable::merge_by_rank(std::span<uint16_t> ids, const std::atomic<bool>* stop) const {
  const auto size = static_cast<uint32_t>(ids.size());
  // Linked list over ids: next[i] and previous[i] skip merged-away entries, whose id is kNone.
  std::vector<uint32_t> next(size), previous(size);
  std::map<uint16_t, std::vector<uint32_t>> waiting; // merged id (= rank) -> positions of its left token
  const auto propose = [&](uint32_t at) {
    if (next[at] == size) return;
    const uint16_t merged = find(ids[at], ids[next[at]]);
    if (merged != kNone) waiting[merged].push_back(at);
  };
  for (uint32_t i = 0; i < size; i++) next[i] = i + 1, previous[i] = i - 1;
  for (uint32_t i = 0; i < size; i++) propose(i);

  // A pair proposed here contains the merged token and so has a higher rank: each rank is processed once.
  while (!waiting.empty()) {
    const auto lowest = waiting.extract(waiting.begin());
    const uint16_t merged = lowest.key();
    const auto left = static_cast<uint16_t>(pairs_[merged - 256u] >> 16),
               right = static_cast<uint16_t>(pairs_[merged - 256u]);
    std::vector<uint32_t>& places = lowest.mapped();
    if (!std::ranges::is_sorted(places)) std::ranges::sort(places); // leftmost first where two overlap
    for (size_t i = 0; i < places.size(); i++) {
      if (i % kStopInterval == 0 && stop && *stop) throw Stopped{};
      const uint32_t at = places[i];
      // Stale: one side has changed since the proposal.
      if (ids[at] != left || next[at] == size || ids[next[at]] != right) continue;
      ids[at] = merged;
      ids[next[at]] = kNone;
      next[at] = next[next[at]];
      if (next[at] < size) previous[next[at]] = at;
      propose(at);
      if (at > 0) propose(previous[at]);
    }
  }

  size_t kept = 0;
  for (uint32_t i = 0; i < size; i = next[i]) ids[kept++] = ids[i];
  return kept;
}

} // namespace gpt2
