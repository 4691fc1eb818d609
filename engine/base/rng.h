// Counter-based random numbers: a pure function of (seed, stream, index), the same on every machine and in any order.
#pragma once

#include <cmath>
#include <cstdint>

#include "engine/base/host_device.h"

namespace gpt2 {

// splitmix64's finaliser: a bijection on 64 bits whose output passes BigCrush.
constexpr uint64_t mix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

class Rng {
 public:
  explicit constexpr Rng(uint64_t seed, uint64_t stream = 0) : key_(mix64(seed ^ mix64(stream))) {}

  constexpr uint64_t bits(uint64_t index) const { return mix64(key_ ^ mix64(index)); }

  // Uniform in [0, 1), 53 bits.
  constexpr double uniform(uint64_t index) const { return static_cast<double>(bits(index) >> 11) * 0x1.0p-53; }

  // Standard normal by Box-Muller: two draws per index, one of the pair is used.
  GPT2_HOST_DEVICE double normal(uint64_t index) const {
    const double u = 1.0 - uniform(2 * index); // (0, 1]: log is finite
    const double v = uniform(2 * index + 1);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
  }

 private:
  uint64_t key_;
};

} // namespace gpt2
