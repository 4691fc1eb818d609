// A row of LayerNorm in the registers of one warp: what the BF16 and the FP8 forward share, and the formula that FP8's
// backward repeats bit for bit.
#pragma once

#include "kernels/device/vector.cuh"
#include "kernels/layernorm.h"

namespace gpt2 {

__device__ inline Float8 layernorm_affine(const Float8& x, float mean, float rstd, const Float8& weight,
                                          const Float8& bias) {
  Float8 out;
#pragma unroll
  for (int k = 0; k < kVector; ++k) out.v[k] = (x.v[k] - mean) * rstd * weight.v[k] + bias.v[k];
  return out;
}

template <int Vectors> // 16-byte vectors per lane: ceil(C / 256); lane l holds vectors l, l + 32, ...
struct LayerNormRow {
  Float8 x[Vectors];
  float mean, rstd;
};

// A row on its way from memory.
template <int Vectors>
struct LayerNormLoads {
  uint4 stream[Vectors], added[Vectors];
};

// Forward is LayerNormForward<bf16> or LayerNormForwardFp8: the same fields but for the output.
template <int Vectors, class Forward>
__device__ LayerNormLoads<Vectors> load_row(const Forward& p, int64_t row) {
  const int vectors = p.C / kVector;
  LayerNormLoads<Vectors> loads;
#pragma unroll
  for (int i = 0; i < Vectors; ++i) {
    const int column = i * kWarp + threadIdx.x % kWarp;
    loads.stream[i] = column < vectors ? load_raw(p.residual_in, row * vectors + column) : uint4{};
    loads.added[i] = p.branch && column < vectors ? load_raw_streaming(p.branch, row * vectors + column) : uint4{};
  }
  return loads;
}

// Adds the branch, writes the sum and the statistics of a row.
template <int Vectors, class Forward>
__device__ LayerNormRow<Vectors> layernorm_row(const Forward& p, int64_t row, const LayerNormLoads<Vectors>& loads) {
  const int lane = threadIdx.x % kWarp, vectors = p.C / kVector;
  const int64_t base = row * vectors;
  LayerNormRow<Vectors> result;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < Vectors; ++i) {
    const int column = i * kWarp + lane;
    Float8& x = result.x[i];
    x = unpack(loads.stream[i]);
    if (p.branch && column < vectors) {
      const Float8 branch = unpack(loads.added[i]);
#pragma unroll
      for (int k = 0; k < kVector; ++k) x.v[k] += branch.v[k];
      const uint4 rounded = pack(x); // the stream is BF16: normalise what backward will read, not what the add gave
      reinterpret_cast<uint4*>(p.residual_out)[base + column] = rounded;
      x = unpack(rounded);
    }
#pragma unroll
    for (int k = 0; k < kVector; ++k) sum += x.v[k];
  }
  const float channels = static_cast<float>(p.C);
  result.mean = warp_sum(sum) / channels;
  float square = 0;
#pragma unroll
  for (int i = 0; i < Vectors; ++i) {
    if (i * kWarp + lane >= vectors) continue;
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      const float deviation = result.x[i].v[k] - result.mean;
      square += deviation * deviation;
    }
  }
  result.rstd = rsqrtf(warp_sum(square) / channels + kLayerNormEpsilon);
  if (lane == 0) {
    p.mean[row] = result.mean;
    p.rstd[row] = result.rstd;
  }
  return result;
}

} // namespace gpt2
