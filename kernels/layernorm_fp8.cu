// LayerNorm into FP8. Its backward is in layernorm_backward.cu, with BF16's.
#include "kernels/layernorm_fp8.h"

#include <cuda_bf16.h>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/profile.h"
#include "kernels/cuda/require.h"
#include "kernels/device/fp8.cuh"
#include "kernels/device/layernorm_row.cuh"

namespace gpt2 {

namespace {

// ---- forward: a warp takes a few rows, one after the other, each in its registers ----

constexpr int kTransposeRows = 16; // rows a thread gathers before it writes 16 bytes of each of its columns

// Codes of 16 rows on their way to the transpose. Each thread reads back only what it wrote itself.
struct TransposeStage {
  uint8_t* codes; // shared: (kTransposeRows, columns)
  int columns;

  __device__ void put(int row, int column, uint2 code) {
    *reinterpret_cast<uint2*>(codes + row * columns + column) = code;
  }

  // The 16 rows of columns [column, column + 8) to out + j * rows, where out is the place of (column, first row).
  __device__ void write(uint8_t* out, int column, int64_t rows) const {
    uint2 upper[8], lower[8];
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      upper[r] = *reinterpret_cast<const uint2*>(codes + r * columns + column);
      lower[r] = *reinterpret_cast<const uint2*>(codes + (r + 8) * columns + column);
    }
    transpose_8x8(upper);
    transpose_8x8(lower);
#pragma unroll
    for (int j = 0; j < 8; ++j)
      *reinterpret_cast<uint4*>(out + j * rows) = make_uint4(upper[j].x, upper[j].y, lower[j].x, lower[j].y);
  }
};

constexpr int kPlainRows = 4; // rows a warp takes where there is no transpose

constexpr int kForwardWarps = 4;

template <int Vectors, bool Transpose>
__global__ void __launch_bounds__(kForwardWarps* kWarp) layernorm_forward_fp8_kernel(LayerNormForwardFp8 p) {
  extern __shared__ __align__(16) uint8_t stages[]; // Transpose: (warps, kTransposeRows, C)
  constexpr int kRowsPerWarp = Transpose ? kTransposeRows : kPlainRows;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int vectors = p.C / kVector;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kForwardWarps + warp) * kRowsPerWarp;
  TransposeStage stage{stages + static_cast<size_t>(warp) * kTransposeRows * p.C, p.C};
  Fp8Quantizer quantizer(p.out);

  const int64_t last = min(first + kRowsPerWarp, p.rows);
  LayerNormLoads<Vectors> next = load_row<Vectors>(p, min(first, p.rows - 1));
  for (int64_t row = first; row < last; ++row) {
    const LayerNormLoads<Vectors> loads = next;
    if (row + 1 < last) next = load_row<Vectors>(p, row + 1); // on its way while this one is worked on
    const LayerNormRow<Vectors> r = layernorm_row<Vectors>(p, row, loads);
#pragma unroll
    for (int i = 0; i < Vectors; ++i) {
      const int column = i * kWarp + lane;
      if (column >= vectors) continue;
      const uint2 codes =
          quantizer(layernorm_affine(r.x[i], r.mean, r.rstd, load8(p.weight, column), load8(p.bias, column)));
      reinterpret_cast<uint2*>(p.out.data)[row * vectors + column] = codes;
      if (Transpose) stage.put(static_cast<int>(row - first), column * kVector, codes);
    }
  }
  if (Transpose && first < p.rows) {
    for (int column = lane; column < vectors; column += kWarp)
      stage.write(p.out.transposed + static_cast<int64_t>(column) * kVector * p.rows + first, column * kVector, p.rows);
  }
  quantizer.commit(p.out);
}

// ---- launchers ----

template <int Vectors>
void launch_forward(Cuda& cuda, const LayerNormForwardFp8& p) {
  const auto blocks =
      static_cast<unsigned>(ceil_div(p.rows, kForwardWarps * (p.out.transposed ? kTransposeRows : kPlainRows)));
  if (!p.out.transposed) {
    layernorm_forward_fp8_kernel<Vectors, false><<<blocks, kForwardWarps * kWarp, 0, cuda.stream>>>(p);
    return;
  }
  const size_t shared = static_cast<size_t>(kForwardWarps) * kTransposeRows * p.C; // 49 kB at C = 768
  if (shared > static_cast<size_t>(cuda.device->shared_memory_per_block))
    throw Error(ExitCode::usage, "FP8 with " + std::to_string(p.C) + " channels is not supported on this GPU",
                "choose fewer channels, or --precision bf16");
  CUDA_CHECK(cudaFuncSetAttribute(layernorm_forward_fp8_kernel<Vectors, true>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
  layernorm_forward_fp8_kernel<Vectors, true><<<blocks, kForwardWarps * kWarp, shared, cuda.stream>>>(p);
}

} // namespace

void layernorm_forward_fp8(Cuda& cuda, const LayerNormForwardFp8& p) {
  const double bytes = (p.branch ? 7.0 : 3.0) + (p.out.transposed ? 1.0 : 0.0);
  const Range range(cuda, "layernorm_forward_fp8", bytes * static_cast<double>(p.rows) * p.C);
  using Launch = void (*)(Cuda&, const LayerNormForwardFp8&);
  constexpr Launch launch[] = {launch_forward<1>, launch_forward<2>, launch_forward<3>, launch_forward<4>,
                               launch_forward<5>, launch_forward<6>, launch_forward<7>, launch_forward<8>};
  const int64_t vectors = ceil_div(p.C, kVector * kWarp);
  static_assert(std::size(launch) * kVector * kWarp == kMostFp8Channels);
  const Requirements require("layernorm_forward_fp8");
  require(p.rows % 16 == 0, "rows is a multiple of 16");
  require(p.C % 16 == 0, "C is a multiple of 16");
  require(p.C <= kMostFp8Channels, "C is at most 2048");
  launch[vectors - 1](cuda, p);
  CUDA_CHECK_LAUNCH("layernorm_forward_fp8");
}

} // namespace gpt2
