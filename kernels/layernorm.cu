// LayerNorm fused with the residual add: 8 bytes per element. Its backward is in layernorm_backward.cu.
#include "kernels/layernorm.h"

#include <cuda_bf16.h>

#include "kernels/cuda_backend.h"
#include "kernels/profile.h"
#include "kernels/vector.cuh"

namespace gpt2 {

namespace {

// A warp per row, the row in registers.
constexpr int kForwardWarps = 4;

template <int Vectors> // 16-byte vectors per lane: ceil(C / 256)
__global__ void __launch_bounds__(kForwardWarps* kWarp) layernorm_forward_kernel(LayerNormForward<bf16> p) {
  const int lane = threadIdx.x % kWarp;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kForwardWarps + threadIdx.x / kWarp;
  if (row >= p.rows) return;
  const int vectors = p.C / kVector;
  const int64_t base = row * vectors;

  uint4 stream[Vectors], added[Vectors]; // all loads are on their way before the first store
#pragma unroll
  for (int i = 0; i < Vectors; ++i) {
    const int column = i * kWarp + lane;
    stream[i] = column < vectors ? load_raw(p.residual_in, base + column) : uint4{};
    added[i] = p.branch && column < vectors ? load_raw_streaming(p.branch, base + column) : uint4{};
  }
  Float8 x[Vectors];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < Vectors; ++i) {
    const int column = i * kWarp + lane;
    x[i] = unpack(stream[i]);
    if (p.branch && column < vectors) {
      const Float8 branch = unpack(added[i]);
#pragma unroll
      for (int k = 0; k < kVector; ++k) x[i].v[k] += branch.v[k];
      // The stream is BF16: normalise what backward will read, not what the add gave.
      const uint4 rounded = pack(x[i]);
      reinterpret_cast<uint4*>(p.residual_out)[base + column] = rounded;
      x[i] = unpack(rounded);
    }
#pragma unroll
    for (int k = 0; k < kVector; ++k) sum += x[i].v[k];
  }
  const float mean = warp_sum(sum) / static_cast<float>(p.C);

  float square = 0;
#pragma unroll
  for (int i = 0; i < Vectors; ++i) {
    if (i * kWarp + lane >= vectors) continue;
#pragma unroll
    for (int k = 0; k < kVector; ++k) square += (x[i].v[k] - mean) * (x[i].v[k] - mean);
  }
  const float rstd = rsqrtf(warp_sum(square) / static_cast<float>(p.C) + kLayerNormEpsilon);

#pragma unroll
  for (int i = 0; i < Vectors; ++i) {
    const int column = i * kWarp + lane;
    if (column >= vectors) continue;
    const Float8 weight = load8(p.weight, column), bias = load8(p.bias, column);
    Float8 out;
#pragma unroll
    for (int k = 0; k < kVector; ++k) out.v[k] = (x[i].v[k] - mean) * rstd * weight.v[k] + bias.v[k];
    store8(p.out, base + column, out);
  }
  if (lane == 0) {
    p.mean[row] = mean;
    p.rstd[row] = rstd;
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
  if (p.C % kVector != 0 || vectors > 16)
    throw Error(ExitCode::usage, "LayerNorm over " + std::to_string(p.C) + " channels is not supported on the GPU",
                "choose channels as a multiple of 8, at most 4096");
  launch[vectors <= 8 ? vectors - 1 : (vectors <= 12 ? 8 : 9)](cuda, p);
  CUDA_CHECK_LAUNCH("layernorm_forward");
}

} // namespace gpt2
