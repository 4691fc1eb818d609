// Byte-pair merges, applied in order of rank. In GPT-2's numbering merge r makes token 256 + r, so the merged id also
// gives the rank.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

namespace gpt2 {

class MergeTable {
 public:
  static constexpr uint16_t kNone = 0xFFFF;

  // pairs[r] = left << 16 | right, by rank; both are bytes or tokens of an earlier merge.
  explicit MergeTable(std::span<const uint32_t> pairs);

  // The token that left and right merge into, or kNone.
  uint16_t find(uint16_t left, uint16_t right) const {
    const uint32_t pair = static_cast<uint32_t>(left) << 16 | right;
    for (uint32_t i = slot(pair);; i = (i + 1) & kMask) {
      if (slots_[i].pair == pair) return slots_[i].merged;
      if (slots_[i].merged == kNone) return kNone;
    }
  }

  // Merges in place until no pair is left; returns the new length. Throws Stopped soon after `stop` is set.
  size_t merge(std::span<uint16_t> ids, const std::atomic<bool>* stop = nullptr) const;

  // merge() picks one by length; same result. By scan: O(n^2), fast for words. By rank, with a list of positions per
  // rank: O(n log n), for input like a page of dashes.
  size_t merge_by_scan(std::span<uint16_t> ids) const;
  size_t merge_by_rank(std::span<uint16_t> ids, const std::atomic<bool>* stop = nullptr) const;

 private:
  static constexpr int kBits = 17; // 131,072 slots of 8 bytes, 38% full
  static constexpr uint32_t kMask = (1u << kBits) - 1;
  struct Slot {
    uint32_t pair = 0;
    uint16_t merged = kNone;
  };
  static uint32_t slot(uint32_t pair) { return pair * 0x9E3779B1u >> (32 - kBits); }

  std::vector<uint32_t> pairs_; // by rank
  std::vector<Slot> slots_;
};

} // namespace gpt2
