// LayerNorm into FP8, and its backward with all that the products around it read.
#include "kernels/layernorm_fp8.h"

#include <cuda_bf16.h>

#include "kernels/cuda_backend.h"
#include "kernels/fp8_tile.cuh"
#include "kernels/layernorm_backward.cuh"
#include "kernels/profile.h"

namespace gpt2 {

namespace {

__device__ inline Float8 normalise(const Float8& x, float mean, float rstd, const Float8& weight, const Float8& bias) {
  Float8 out;
#pragma unroll
  for (int k = 0; k < kVector; ++k) out.v[k] = (x.v[k] - mean) * rstd * weight.v[k] + bias.v[k];
  return out;
}

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

  for (int64_t row = first; row < min(first + kRowsPerWarp, p.rows); ++row) {
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
        const uint4 rounded = pack(x[i]); // the stream is BF16: normalise what backward will read
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
      const uint2 codes = quantizer(normalise(x[i], mean, rstd, load8(p.weight, column), load8(p.bias, column)));
      reinterpret_cast<uint2*>(p.out.data)[base + column] = codes;
      if (Transpose) stage.put(static_cast<int>(row - first), column * kVector, codes);
    }
    if (lane == 0) {
      p.mean[row] = mean;
      p.rstd[row] = rstd;
    }
  }
  if (Transpose && first < p.rows) {
    for (int column = lane; column < vectors; column += kWarp)
      stage.write(p.out.transposed + static_cast<int64_t>(column) * kVector * p.rows + first, column * kVector, p.rows);
  }
  quantizer.commit(p.out.meter);
}

// ---- backward, by tiles, once the row sums are known ----

struct BackwardWork {
  const bf16 *dout, *x, *dresidual, *weight, *bias; // dresidual may be null
  const float *mean, *rstd;
  const LayerNormRowSums* sums;
  int vectors; // per row

  struct Raw {
    uint4 dout, x, dresidual;
  };
  static constexpr int kRowsAtOnce = 4;
  __device__ Raw load(int64_t row, int col) const {
    const int64_t i = row * vectors + col / kVector;
    return {load_raw_streaming(dout, i), load_raw_streaming(x, i),
            dresidual ? load_raw_streaming(dresidual, i) : uint4{}};
  }
  __device__ void values(const Raw& raw, int64_t row, int col, Float8& main, Float8& second) const {
    const float row_mean = mean[row], row_rstd = rstd[row];
    const LayerNormRowSums of_row = sums[row];
    const Float8 of_weight = load8(weight, col / kVector), of_dout = unpack(raw.dout), of_x = unpack(raw.x);
    main = unpack(raw.dresidual);
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      const float norm = (of_x.v[k] - row_mean) * row_rstd;
      main.v[k] += (of_dout.v[k] * of_weight.v[k] - of_row.mean_dnorm - norm * of_row.mean_dnorm_norm) * row_rstd;
    }
    second = normalise(of_x, row_mean, row_rstd, of_weight, load8(bias, col / kVector));
  }
};

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
  if (vectors > 8)
    throw Error(ExitCode::usage, "FP8 with " + std::to_string(p.C) + " channels is not supported",
                "choose at most 2048 channels, or --precision bf16");
  launch[vectors - 1](cuda, p);
  CUDA_CHECK_LAUNCH("layernorm_forward_fp8");
}

void layernorm_backward_fp8(Cuda& cuda, const LayerNormBackwardFp8& p) {
  const double bytes =
      10.0 + (p.dresidual_fp8.data ? 2.0 : 0.0) + (p.out.transposed ? 1.0 : 0.0) + (p.dresidual_in ? 2.0 : 0.0);
  const Range range(cuda, "layernorm_backward_fp8", bytes * static_cast<double>(p.rows) * p.C);
  // The sums: 4 bytes per element. Scratch: row sums, then partial sums, which are added before the tiles use their
  // place.
  const size_t row_sums = static_cast<size_t>(p.rows) * sizeof(LayerNormRowSums) / sizeof(float);
  float* const scratch = cuda.scratch<float>(row_sums + layernorm_backward_partials(cuda, p.C));
  auto* const sums = reinterpret_cast<LayerNormRowSums*>(scratch);
  LayerNormBackward<bf16> for_sums{.dresidual = nullptr,
                                   .dweight = p.dweight,
                                   .dbias = p.dbias,
                                   .dbranch_bias = nullptr,
                                   .dout = p.dout,
                                   .x = p.x,
                                   .weight = p.weight,
                                   .mean = p.mean,
                                   .rstd = p.rstd,
                                   .rows = p.rows,
                                   .C = p.C,
                                   .accumulate = false};
  if (p.meter_only) for_sums.dweight = for_sums.dbias = nullptr;
  layernorm_backward_sums(cuda, for_sums, sums, scratch + row_sums);

  const BackwardWork work{p.dout, p.x, p.dresidual_in, p.weight, p.bias, p.mean, p.rstd, sums, p.C / kVector};
  Fp8Sink main = p.dresidual_fp8;
  if (!main.data) main.silent = true; // the first block's gradient goes to the embedding, in BF16 only
  launch_fp8_tiles(cuda, work,
                   {.main = main,
                    .second = p.out,
                    .plain = p.dresidual_out,
                    .dbias = p.dbranch_bias,
                    .partials = scratch + row_sums,
                    .rows = p.rows,
                    .cols = p.C,
                    .meter_only = p.meter_only},
                   "layernorm_backward_fp8");
}

} // namespace gpt2
