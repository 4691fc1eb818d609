// Where each activation stands in the one allocation.
#include "engine/cpu/gpt2_cpu_buffers.h"

#include <algorithm>

#include "engine/base/error.h"

namespace gpt2 {
namespace {

constexpr int64_t kAlignFloats = 64; // 256 bytes

// Hands out pieces of a buffer; without a buffer it only counts them.
class Carver {
 public:
  explicit Carver(float* base) : base_(base) {}

  float* take(int64_t count) {
    float* piece = base_ ? base_ + used_ : nullptr;
    used_ += (count + kAlignFloats - 1) / kAlignFloats * kAlignFloats;
    return piece;
  }
  int64_t used() const { return used_; }

 private:
  float* base_;
  int64_t used_ = 0;
};

void lay_out(CpuActivations& a, Carver carve, const ModelOptions& options, int64_t* used) {
  const int64_t rows = static_cast<int64_t>(options.batch_size) * options.seq_len, C = options.config.channels;
  const bool fp8 = options.precision == Precision::fp8;
  const bool train = options.purpose == Purpose::training;
  const size_t layers = static_cast<size_t>(options.config.layers);
  a.blocks.resize(train ? layers : 1); // nothing is kept for a backward pass: all blocks share one set
  for (CpuBlockActivations& block : a.blocks) {
    block.x = carve.take(rows * C);
    block.ln1_mean = carve.take(rows);
    block.ln1_rstd = carve.take(rows);
    block.h1 = carve.take(rows * C);
    block.qkv = carve.take(rows * 3 * C);
    block.attention_stats = carve.take(rows * options.config.heads);
    block.attention = carve.take(rows * C);
    block.attention_kept = fp8 ? carve.take(rows * C) : block.attention;
    block.middle = carve.take(rows * C);
    block.ln2_mean = carve.take(rows);
    block.ln2_rstd = carve.take(rows);
    block.h2 = carve.take(rows * C);
    block.pre = carve.take(rows * 4 * C);
    block.gelu = carve.take(rows * 4 * C);
  }
  a.blocks.resize(layers, a.blocks.front());
  a.last = carve.take(rows * C);
  a.lnf_mean = carve.take(rows);
  a.lnf_rstd = carve.take(rows);
  a.h = carve.take(rows * C);
  a.branch = carve.take(rows * C);
  a.logits = carve.take(std::min(rows, CpuActivations::kHeadChunk) * options.config.padded_vocab);
  a.losses = carve.take(rows);
  a.dresidual = train ? carve.take(rows * C) : nullptr;
  a.dnarrow = train ? carve.take(rows * C) : nullptr;
  a.dwide = train ? carve.take(rows * 4 * C) : nullptr;
  a.quantized = fp8 ? carve.take(rows * 4 * C) : nullptr;
  *used = carve.used();
}

} // namespace

CpuBuffer::CpuBuffer(int64_t count) : count_((count + kAlignFloats - 1) / kAlignFloats * kAlignFloats) {
  const size_t bytes = static_cast<size_t>(count_) * sizeof(float);
  float* data = static_cast<float*>(std::aligned_alloc(kAlignFloats * sizeof(float), bytes));
  if (!data) {
    throw Error(ExitCode::device, "out of memory: " + std::to_string(bytes >> 20) + " MiB more are not to be had",
                "lower --batch_size or --seq_len, or choose a smaller --model");
  }
  data_.reset(data);
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < count_; ++i) data[i] = 0.0f;
}

CpuActivations::CpuActivations(const ModelOptions& options) {
  int64_t count = 0;
  lay_out(*this, Carver(nullptr), options, &count);
  memory_ = CpuBuffer(count);
  lay_out(*this, Carver(memory_.data()), options, &count);
}

} // namespace gpt2
