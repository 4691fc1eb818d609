// LayerNorm fused with the residual add: 8 bytes per element. Its backward is in layernorm_backward.cu.
#include "kernels/layernorm.h"

#include <cuda_bf16.h>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/profile.h"
#include "kernels/cuda/require.h"
#include "kernels/device/layernorm_affine.cuh"

namespace gpt2 {

namespace {

template <int Vectors> // 16-byte vectors per lane: ceil(C / 256); lane l holds vectors l, l + 32, ...
struct LayerNormRow {
  Float8 x[Vectors];
  float mean, rstd;
};

// Loads of a row in flight.
template <int Vectors>
struct LayerNormLoads {
  uint4 stream[Vectors], added[Vectors];
};

template <int Vectors>
__device__ LayerNormLoads<Vectors> load_row(const LayerNormForward<bf16>& p, int64_t row) {
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

// Adds the branch; writes the sum and the statistics of the row.
template <int Vectors>
__device__ LayerNormRow<Vectors> layernorm_row(const LayerNormForward<bf16>& p, int64_t row,
                                               const LayerNormLoads<Vectors>& loads) {
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
      x += unpack(loads.added[i]);
      const uint4 rounded = pack(x); // normalize the rounded BF16 sum, which the backward pass reads
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

// One warp per row.
constexpr int kForwardWarps = 4;

template <int Vectors>
__global__ void __launch_bounds__(kForwardWarps* kWarp) layernorm_forward_kernel(LayerNormForward<bf16> p) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kForwardWarps + threadIdx.x / kWarp;
  if (row >= p.rows) return;
  const LayerNormRow<Vectors> r = layernorm_row<Vectors>(p, row, load_row<Vectors>(p, row));
  const int vectors = p.C / kVector;
#pragma unroll
  for (int i = 0; i < Vectors; ++i) {
    const int column = i * kWarp + threadIdx.x % kWarp;
    if (column >= vectors) continue;
    store8(p.out, row * vectors + column,
           layernorm_affine(r.x[i], r.mean, r.rstd, load8(p.weight, column), load8(p.bias, column)));
  }
}

template <int Vectors>
void launch_forward(CudaStream& cuda, const LayerNormForward<bf16>& p) {
  const unsigned blocks = grid_size(p.rows, kForwardWarps);
  layernorm_forward_kernel<Vectors><<<blocks, kForwardWarps * kWarp, 0, cuda.stream>>>(p);
}

} // namespace

void layernorm_forward(CudaStream& cuda, const LayerNormForward<bf16>& p) {
  const NvtxRange range(cuda, "layernorm_forward", (p.branch ? 8.0 : 4.0) * static_cast<double>(p.rows) * p.C);
  using Launch = void (*)(CudaStream&, const LayerNormForward<bf16>&);
  constexpr Launch launch[] = {launch_forward<1>,  launch_forward<2>, launch_forward<3>, launch_forward<4>,
                               launch_forward<5>,  launch_forward<6>, launch_forward<7>, launch_forward<8>,
                               launch_forward<12>, launch_forward<16>};
  const int64_t vectors = ceil_div(p.C, kVector * kWarp);
  static_assert(16 * kVector * kWarp == kMaxGpuChannels);
  const Requirements require("layernorm_forward");
  require(p.C % kVector == 0, "C is a multiple of 8");
  require(p.C <= kMaxGpuChannels, "C is at most 4096");
  launch[vectors <= 8 ? vectors - 1 : (vectors <= 12 ? 8 : 9)](cuda, p);
  CUDA_CHECK_LAUNCH("layernorm_forward");
}

} // namespace gpt2
