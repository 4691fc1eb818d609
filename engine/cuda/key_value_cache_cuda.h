// The KV cache of all blocks on a GPU: 4 bytes per channel, block and position; 38 MB per row of 1,024 positions at
// 124M. One spare row: rows of a step without a token write there.
#pragma once

#include <cuda_bf16.h>

#include "engine/model/config.h"
#include "kernels/cuda/memory.h"
#include "kernels/decode.h"

namespace gpt2 {

class KeyValueCacheCuda {
 public:
  KeyValueCacheCuda(const GPT2Config& config, int rows, int positions)
      : half_(int64_t{rows + 1} * positions * config.channels),
        positions_(positions),
        memory_(static_cast<size_t>(config.layers * 2 * half_) * sizeof(bf16)) {}

  KvCache<bf16> block(int layer) const {
    bf16* const keys = reinterpret_cast<bf16*>(memory_.data()) + layer * 2 * half_;
    return {.keys = keys, .values = keys + half_, .positions = positions_};
  }

 private:
  const int64_t half_; // elements of one block's keys
  const int positions_;
  DeviceMemory memory_; // (layers, 2, rows + 1, NH, positions, HS)
};

} // namespace gpt2
