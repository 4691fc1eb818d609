// LayerNorm fused with the residual add: 8 bytes per element. Its backward is in layernorm_backward.cu.
#include "kernels/layernorm.h"

#include <cuda_bf16.h>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/profile.h"
#include "kernels/cuda/require.h"
#include "kernels/device/layernorm_row.cuh"

namespace gpt2 {

namespace {

// A warp per row.
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
void launch_forward(Cuda& cuda, const LayerNormForward<bf16>& p) {
  const auto blocks = static_cast<unsigned>(ceil_div(p.rows, kForwardWarps));
  layernorm_forward_kernel<Vectors><<<blocks, kForwardWarps * kWarp, 0, cuda.stream>>>(p);
}

} // namespace

void layernorm_forward(Cuda& cuda, const LayerNormForward<bf16>& p) {
  const Range range(cuda, "layernorm_forward", (p.branch ? 8.0 : 4.0) * static_cast<double>(p.rows) * p.C);
  using Launch = void (*)(Cuda&, const LayerNormForward<bf16>&);
  constexpr Launch launch[] = {launch_forward<1>,  launch_forward<2>, launch_forward<3>, launch_forward<4>,
                               launch_forward<5>,  launch_forward<6>, launch_forward<7>, launch_forward<8>,
                               launch_forward<12>, launch_forward<16>};
  const int64_t vectors = ceil_div(p.C, kVector * kWarp);
  static_assert(16 * kVector * kWarp == kMostGpuChannels);
  const Requirements require("layernorm_forward");
  require(p.C % kVector == 0, "C is a multiple of 8");
  require(p.C <= kMostGpuChannels, "C is at most 4096");
  launch[vectors <= 8 ? vectors - 1 : (vectors <= 12 ? 8 : 9)](cuda, p);
  CUDA_CHECK_LAUNCH("layernorm_forward");
}

} // namespace gpt2
