// The CPU engine's memory: flat parameter buffers, one allocation for all activations and their gradients, KV caches.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "engine/model/model.h"
#include "engine/ranks/communicator.h"
#include "kernels/decode.h"

namespace gpt2 {

// Zeroed floats that start on a 256-byte boundary.
class CpuBuffer {
 public:
  CpuBuffer() = default;
  explicit CpuBuffer(int64_t count); // throws Error(device) if out of memory

  float* data() const { return data_.get(); }
  int64_t count() const { return count_; }
  void zero();
  std::span<float> span() const { return {data_.get(), static_cast<size_t>(count_)}; }

 private:
  struct Free {
    void operator()(float* data) const { std::free(data); }
  };
  std::unique_ptr<float[], Free> data_;
  int64_t count_ = 0;
};

// All-gathers buckets of a flat buffer from the ranks' equal slices.
void gather_buckets(Communicator& communicator, std::span<const Bucket> buckets, const CpuBuffer& flat);

// rows = B T, the largest micro-batch
struct CpuBlockActivations {
  float* x;                   // (rows, C) residual stream on entry
  float *ln1_mean, *ln1_rstd; // (rows)
  float* h1;                  // (rows, C) LayerNorm's output: input of the QKV GEMM
  float* qkv;                 // (rows, 3, NH, HS)
  float* attention_stats;     // (B, NH, T)
  float* attention;           // (rows, C)
  float* attention_kept;      // (rows, C) input of the projection: quantized in FP8, otherwise attention itself
  float* middle;              // (rows, C) residual stream after attention
  float *ln2_mean, *ln2_rstd; // (rows)
  float* h2;                  // (rows, C)
  float* pre;                 // (rows, 4C) before the GELU
  float* gelu;                // (rows, 4C)
};

struct CpuActivations {
  std::vector<CpuBlockActivations> blocks;
  float* last;                // (rows, C) residual stream after the last block
  float *lnf_mean, *lnf_rstd; // (rows)
  float* h;                   // (rows, C) input of the LM head
  float* branch;              // (rows, C) a block's branch, not yet added to the residual stream
  float* logits;              // (kHeadChunk, Vp) of one chunk of rows, then their gradient
  float* losses;              // (rows)

  float* dresidual; // (rows, C)
  float* dnarrow;   // (rows, C) gradient of a LayerNorm's output or of attention's
  float* dwide;     // (rows, 4C) gradient of the GELU's input or of QKV
  float* quantized; // (rows, 4C) one FP8 operand; null without FP8

  static constexpr int64_t kHeadChunk = 256; // rows of logits at a time: 51 MB

  explicit CpuActivations(const ModelOptions& options);
  static int64_t bytes_for(const ModelOptions& options); // without allocating

 private:
  CpuActivations() = default;
  CpuBuffer memory_;
};

// The KV cache of all blocks: 8 bytes per channel, block and position; 75 MB per row of 1,024 positions at 124M.
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
