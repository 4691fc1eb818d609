// The KV cache of all blocks: 8 bytes per channel, block and position; 75 MB per row of 1,024 positions at 124M.
#pragma once

#include "engine/cpu/gpt2_cpu_buffers.h"
#include "kernels/decode.h"

namespace gpt2 {

class KeyValueCacheCpu {
 public:
  KeyValueCacheCpu(const GPT2Config& config, int rows, int positions)
      : half_(int64_t{rows} * positions * config.channels), positions_(positions), memory_(config.layers * 2 * half_) {}

  KvCache<float> block(int layer) const {
    float* const keys = memory_.data() + layer * 2 * half_;
    return {.keys = keys, .values = keys + half_, .positions = positions_};
  }

 private:
  const int64_t half_; // floats of one block's keys
  const int positions_;
  CpuBuffer memory_; // (layers, 2, rows, NH, positions, HS)
};

} // namespace gpt2
