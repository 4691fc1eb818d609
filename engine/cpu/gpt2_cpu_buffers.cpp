#include "engine/cpu/gpt2_cpu_buffers.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/model/arena.h"

namespace gpt2 {
namespace {

constexpr int64_t kAlignFloats = 64; // 256 bytes

void lay_out(CpuActivations& a, Arena& arena, const ModelOptions& options) {
  const auto take = [&](int64_t count) { return arena.take<float>(count, "activations"); };
  const int64_t rows = static_cast<int64_t>(options.batch_size) * options.seq_len, C = options.config.channels;
  const bool fp8 = options.precision == Precision::fp8;
  const bool train = options.purpose == Purpose::training;
  const size_t layers = static_cast<size_t>(options.config.layers);
  a.blocks.resize(train ? layers : 1); // inference: all blocks share one set
  for (CpuBlockActivations& block : a.blocks) {
    block.x = take(rows * C);
    block.ln1_mean = take(rows);
    block.ln1_rstd = take(rows);
    block.h1 = take(rows * C);
    block.qkv = take(rows * 3 * C);
    block.attention_stats = take(rows * options.config.heads);
    block.attention = take(rows * C);
    block.attention_kept = fp8 ? take(rows * C) : block.attention;
    block.middle = take(rows * C);
    block.ln2_mean = take(rows);
    block.ln2_rstd = take(rows);
    block.h2 = take(rows * C);
    block.pre = take(rows * 4 * C);
    block.gelu = take(rows * 4 * C);
  }
  a.blocks.resize(layers, a.blocks.front());
  a.last = take(rows * C);
  a.lnf_mean = take(rows);
  a.lnf_rstd = take(rows);
  a.h = take(rows * C);
  a.branch = take(rows * C);
  a.logits = take(std::min(rows, CpuActivations::kHeadChunk) * options.config.padded_vocab);
  a.losses = take(rows);
  a.dresidual = train ? take(rows * C) : nullptr;
  a.dnarrow = train ? take(rows * C) : nullptr;
  a.dwide = train ? take(rows * 4 * C) : nullptr;
  a.quantized = fp8 ? take(rows * 4 * C) : nullptr;
}

} // namespace

CpuBuffer::CpuBuffer(int64_t count) : count_((count + kAlignFloats - 1) / kAlignFloats * kAlignFloats) {
  if (count == 0) return;
  const size_t bytes = static_cast<size_t>(count_) * sizeof(float);
  float* data = static_cast<float*>(std::aligned_alloc(kAlignFloats * sizeof(float), bytes));
  if (!data) {
    throw Error(ExitCode::device, "out of memory: " + std::to_string(bytes >> 20) + " MiB more are not available",
                "lower --batch_size or --seq_len, or choose a smaller --model");
  }
  data_.reset(data);
  zero();
}

void CpuBuffer::zero() {
  float* const data = data_.get();
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < count_; ++i) data[i] = 0.0f;
}

void gather_buckets(Communicator& communicator, std::span<const Bucket> buckets, const CpuBuffer& flat) {
  for (const Bucket& bucket : buckets) {
    const int64_t part = bucket.count / communicator.ranks();
    communicator.all_gather(flat.data() + bucket.offset, part * static_cast<int64_t>(sizeof(float)));
  }
}

int64_t CpuActivations::bytes_for(const ModelOptions& options) {
  CpuActivations nowhere;
  Arena count(nullptr);
  lay_out(nowhere, count, options);
  return static_cast<int64_t>(count.size());
}

CpuActivations::CpuActivations(const ModelOptions& options) {
  memory_ = CpuBuffer(bytes_for(options) / static_cast<int64_t>(sizeof(float)));
  Arena arena(reinterpret_cast<std::byte*>(memory_.data()));
  lay_out(*this, arena, options);
}

} // namespace gpt2
