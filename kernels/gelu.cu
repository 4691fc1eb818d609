// GELU, its gradient, and column sums. Forward 4 bytes per element, backward 6; the bias gradient comes along free.
#include "kernels/gelu.h"

#include <cuda_bf16.h>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/profile.h"
#include "kernels/device/column_sum.cuh"
#include "kernels/device/gelu_math.cuh"
#include "kernels/device/vector.cuh"
#include "kernels/matmul.h"

namespace gpt2 {

namespace {

__global__ void gelu_forward_kernel(bf16* out, const bf16* in, int64_t vectors) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= vectors) return;
  Float8 x = load8(in, i);
#pragma unroll
  for (int k = 0; k < kVector; ++k) x.v[k] = gelu(x.v[k], gelu_sigmoid(x.v[k]));
  store8(out, i, x);
}

// A block owns 256 columns (32 lanes of 8) and a slice of the rows; 8 warps take rows in turn.
constexpr int kWarps = 8;
constexpr int kColumns = kWarp * kVector;
constexpr int kUnroll = 4;

// WithGelu: din = dout * gelu'(in). Without: column sums of dout alone. partials: (gridDim.y, cols), or null.
template <bool WithGelu>
__global__ void __launch_bounds__(kWarps* kWarp) column_kernel(GeluBackward<bf16> p, float* partials) {
  __shared__ float sums[kWarps][kColumns];
  const int lane = threadIdx.x, warp = threadIdx.y;
  const int vectors = p.cols / kVector;
  const int column = blockIdx.x * kWarp + lane; // in vectors
  const bool active = column < vectors;
  const int64_t slice = ceil_div(p.rows, gridDim.y);
  const int64_t last = min(p.rows, (blockIdx.y + 1) * slice);

  Float8 sum{};
  for (int64_t first = blockIdx.y * slice + warp; first < last; first += kWarps * kUnroll) {
    uint4 dout[kUnroll], in[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t row = first + u * kWarps;
      const bool valid = active && row < last;
      dout[u] = valid ? load_raw(p.dout, row * vectors + column) : uint4{};
      if (WithGelu) in[u] = valid ? load_raw_streaming(p.in, row * vectors + column) : uint4{};
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t row = first + u * kWarps;
      Float8 gradient = unpack(dout[u]);
      if (WithGelu) {
        const Float8 x = unpack(in[u]);
#pragma unroll
        for (int k = 0; k < kVector; ++k) gradient.v[k] *= gelu_gradient(x.v[k], gelu_sigmoid(x.v[k]));
        if (active && row < last) store8(p.din, row * vectors + column, gradient);
      }
#pragma unroll
      for (int k = 0; k < kVector; ++k) sum.v[k] += gradient.v[k];
    }
  }
  if (!partials) return;
#pragma unroll
  for (int k = 0; k < kVector; ++k) sums[warp][lane * kVector + k] = sum.v[k];
  __syncthreads();
  const int own = warp * kWarp + lane; // 256 threads, 256 columns
  const int64_t target = static_cast<int64_t>(blockIdx.x) * kColumns + own;
  if (target >= p.cols) return;
  float total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total += sums[w][own];
  partials[static_cast<int64_t>(blockIdx.y) * p.cols + target] = total;
}

template <bool WithGelu>
void launch_columns(Cuda& cuda, const GeluBackward<bf16>& p, const char* name) {
  const auto strips = static_cast<unsigned>(ceil_div(p.cols, kColumns));
  int resident = 0;
  CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, column_kernel<WithGelu>, kWarps * kWarp, 0));
  // One wave, rounded down: a second one would run nearly empty. No slice is shorter than one unrolled round.
  const int64_t wanted = static_cast<int64_t>(cuda.multiprocessors) * max(resident, 1) / strips;
  const auto slices = static_cast<unsigned>(max(int64_t{1}, min(wanted, ceil_div(p.rows, kWarps * kUnroll))));
  float* const partials = p.dbias ? cuda.scratch<float>(static_cast<size_t>(slices) * p.cols) : nullptr;
  column_kernel<WithGelu><<<dim3(strips, slices), dim3(kWarp, kWarps), 0, cuda.stream>>>(p, partials);
  CUDA_CHECK_LAUNCH(name);
  if (p.dbias) add_column_partials(cuda, {{p.dbias}, 1, partials, static_cast<int>(slices), p.cols});
}

} // namespace

void gelu_forward(Cuda& cuda, const GeluForward<bf16>& p) {
  const Range range(cuda, "gelu_forward", 4.0 * static_cast<double>(p.rows) * p.cols);
  constexpr int kThreads = 256;
  const int64_t vectors = p.rows * p.cols / kVector;
  gelu_forward_kernel<<<static_cast<unsigned>(ceil_div(vectors, kThreads)), kThreads, 0, cuda.stream>>>(p.out, p.in,
                                                                                                        vectors);
  CUDA_CHECK_LAUNCH("gelu_forward");
}

void gelu_backward(Cuda& cuda, const GeluBackward<bf16>& p) {
  const Range range(cuda, "gelu_backward", 6.0 * static_cast<double>(p.rows) * p.cols);
  launch_columns<true>(cuda, p, "gelu_backward");
}

void bias_backward(Cuda& cuda, const BiasBackward<bf16>& p) {
  const Range range(cuda, "bias_backward", 2.0 * static_cast<double>(p.rows) * p.cols);
  launch_columns<false>(
      cuda, {.din = nullptr, .dbias = p.dbias, .dout = p.dout, .in = nullptr, .rows = p.rows, .cols = p.cols},
      "bias_backward");
}

} // namespace gpt2
