// Rows of logits for the cross-entropy tests: the same numbers on both sides, some targets ignored, padding that must
// not be looked at.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "engine/model/batch.h"
#include "kernels/cross_entropy.h"
#include "tests/gpu/gpu_test.h"

namespace gpt2 {

struct Logits {
  Logits(int64_t rows, int vocab, int padded, float deviation = 3.0f)
      : rows(rows),
        vocab(vocab),
        padded(padded),
        values(random_values(static_cast<size_t>(rows * padded), 1, deviation)),
        targets(static_cast<size_t>(rows)) {
    const Rng rng(2);
    for (int64_t row = 0; row < rows; ++row) {
      const bool ignored = row % 3 == 2;
      targets[static_cast<size_t>(row)] =
          ignored ? kIgnoredTarget
                  : static_cast<int32_t>(rng.bits(static_cast<uint64_t>(row)) % static_cast<uint64_t>(vocab));
    }
    targets[0] = vocab - 1; // the last real column
  }

  // Padded columns hold NaN.
  std::vector<bf16> for_gpu() const {
    std::vector<float> poisoned = values;
    for (int64_t row = 0; row < rows; ++row) {
      for (int v = vocab; v < padded; ++v) poisoned[at(row, v)] = std::numeric_limits<float>::quiet_NaN();
    }
    return to_bf16(poisoned);
  }

  // Losses and gradient by the CPU.
  void expect(Cpu& cpu, std::vector<float>& losses, std::vector<float>& gradient) const {
    losses.assign(static_cast<size_t>(rows), 0.0f);
    gradient = values;
    cross_entropy(cpu, CrossEntropy<float>{gradient.data(), losses.data(), targets.data(), rows, vocab, padded, true});
  }

  size_t at(int64_t row, int column) const { return static_cast<size_t>(row * padded + column); }
  std::string name() const {
    return std::to_string(rows) + " rows, " + std::to_string(vocab) + " of " + std::to_string(padded);
  }

  int64_t rows;
  int vocab, padded;
  std::vector<float> values;
  std::vector<int32_t> targets;
};

} // namespace gpt2
