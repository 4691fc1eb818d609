#include <bit>

#include "engine/base/rng.h"
#include "engine/data/loader.h"

namespace gpt2 {

namespace {

constexpr int kRounds = 6;

} // namespace

// The domain is the smallest 2^(2h) >= size: below 4 * size, so that a cycle walk takes under 4 steps on average.
Permutation::Permutation(uint64_t size, uint64_t seed) : size_(size), seed_(mix64(seed)) {
  const int bits = std::bit_width(size > 1 ? size - 1 : 1);
  half_bits_ = (bits + 1) / 2;
}

uint64_t Permutation::operator()(uint64_t index) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  // A Feistel network permutes the domain; walking its cycle until the index is below `size` permutes [0, size).
  do {
    uint64_t left = index >> half_bits_;
    uint64_t right = index & mask;
    for (int round = 0; round < kRounds; ++round) {
      const uint64_t next = left ^ (mix64(right ^ mix64(seed_ + round)) & mask);
      left = right;
      right = next;
    }
    index = left << half_bits_ | right;
  } while (index >= size_);
  return index;
}

} // namespace gpt2
