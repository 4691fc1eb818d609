// One micro-batch of tokens, from the loader to a model.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/ignored_target.h"

namespace gpt2 {

struct Batch {
  int batch_size = 0;               // B, sequences
  int seq_len = 0;                  // T
  std::span<const int32_t> inputs;  // (B, T)
  std::span<const int32_t> targets; // (B, T), kIgnoredTarget: excluded from the loss

  int64_t tokens() const { return static_cast<int64_t>(batch_size) * seq_len; }
};

// Kernels index tables with tokens unchecked, so check here. Throws Error(data) for a token outside the vocabulary,
// std::invalid_argument for a shape that exceeds the model's.
struct ModelOptions;
void check_batch(const Batch& batch, const ModelOptions& options);

} // namespace gpt2
