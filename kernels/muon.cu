// Muon on the device. 124M: 85M parameters in matrices, 1.63 TFLOP of BF16 GEMMs per update (3.0 ms at 550 TFLOP/s) and
// 32 bytes per element of elementwise passes (0.65 ms at 4.2 TB/s; AdamW moves 30 bytes for the same elements).
#include "kernels/muon.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <utility>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/gemm_plans.h"
#include "kernels/cuda/profile.h"
#include "kernels/cuda/require.h"
#include "kernels/cuda/split_reduction.h"
#include "kernels/device/vector.cuh"

namespace gpt2 {

namespace {

constexpr int kThreads = 256;
constexpr int kParts = 128; // blocks per matrix, each with a partial sum of squares

// 14 bytes per element: gradient read, momentum read and written, BF16 u written.
__global__ void __launch_bounds__(kThreads) momentum_kernel(MuonMomentum<bf16> p) {
  if (p.scalars->verdict != Verdict::applied) return;
  const MuonSegment segment = p.segments.data[blockIdx.y];
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; // vectors of 8
  if (i >= segment.count / kVector) return;
  const float mu = muon_momentum_at(p.mu, p.warmup_steps, p.guard->adam_step), scale = p.scalars->grad_scale;
  const Float8 grad = load8(p.grad + segment.flat, i);
  Float8 momentum = load8(p.momentum + segment.compact, i), u;
#pragma unroll
  for (int k = 0; k < kVector; ++k) {
    const float g = grad.v[k] * scale;
    momentum.v[k] += (1.0f - mu) * (g - momentum.v[k]);
    u.v[k] = g + mu * (momentum.v[k] - g);
  }
  store8(p.momentum + segment.compact, i, momentum);
  store8(p.out + (p.flat ? segment.flat : segment.stacked), i, u);
}

// Block (part, matrix): 2 bytes per element.
__global__ void __launch_bounds__(kThreads) square_sum_kernel(const bf16* x, int64_t vectors, double* partials) {
  __shared__ double shared[kWarp];
  const bf16* const matrix = x + blockIdx.y * vectors * kVector;
  float sum = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < vectors; i += kParts * kThreads) {
    const Float8 values = load8(matrix, i);
#pragma unroll
    for (int k = 0; k < kVector; ++k) sum += values.v[k] * values.v[k];
  }
  const double total = block_sum(static_cast<double>(sum), shared);
  if (threadIdx.x == 0) partials[blockIdx.y * kParts + blockIdx.x] = total;
}

// 4 bytes per element. Every block adds the matrix's partial sums in the same order.
__global__ void __launch_bounds__(kThreads) normalize_kernel(bf16* x, int64_t vectors, const double* partials) {
  __shared__ double shared[kWarp];
  static_assert(kParts <= kThreads);
  const double square = block_sum(threadIdx.x < kParts ? partials[blockIdx.y * kParts + threadIdx.x] : 0.0, shared);
  const float factor = 1.0f / (static_cast<float>(sqrt(square)) + kMuonNormOffset);
  bf16* const matrix = x + blockIdx.y * vectors * kVector;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < vectors; i += kParts * kThreads) {
    Float8 values = load8(matrix, i);
#pragma unroll
    for (int k = 0; k < kVector; ++k) values.v[k] *= factor;
    store8(matrix, i, values);
  }
}

// Returns the squares of the thread's part of x.
__device__ float apply_update(const MuonUpdate<bf16>& p) {
  if (p.scalars->verdict != Verdict::applied) return 0;
  const MuonSegment segment = p.segments.data[blockIdx.y];
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; // vectors of 8
  if (i >= segment.count / kVector) return 0;
  const Float8 x = load8(p.update + segment.stacked, i);
  Float8 w = load8(p.master + segment.compact, i);
  float square = 0;
#pragma unroll
  for (int k = 0; k < kVector; ++k) {
    const float decay = p.cautious_decay && x.v[k] * w.v[k] <= 0 ? 0.0f : p.weight_decay;
    w.v[k] -= p.lr * (p.scale * x.v[k] + decay * w.v[k]);
    square += x.v[k] * x.v[k];
  }
  store8(p.master + segment.compact, i, w);
  store8(p.weights + segment.flat, i, w);
  return square;
}

// 12 bytes per element: master read and written, BF16 update read, BF16 copy written.
__global__ void __launch_bounds__(kThreads) update_kernel(MuonUpdate<bf16> p, double* partials) {
  __shared__ double shared[kWarp];
  const double square = block_sum(static_cast<double>(apply_update(p)), shared);
  const double factor = static_cast<double>(p.lr) * p.scale;
  if (threadIdx.x == 0) partials[blockIdx.y * gridDim.x + blockIdx.x] = factor * factor * square;
}

dim3 segment_grid(const MuonSegments& segments) {
  return {grid_size(segments.longest / kVector, kThreads), static_cast<unsigned>(segments.count)};
}

double element_count(const MuonSegments& segments) { return static_cast<double>(segments.longest) * segments.count; }

void normalize(CudaStream& cuda, const Orthogonalize<bf16>& p) {
  const int64_t vectors = p.rows * p.cols / kVector;
  const dim3 grid(kParts, static_cast<unsigned>(p.batch));
  const NvtxRange range(cuda, "muon_normalize", 6.0 * static_cast<double>(p.batch * p.rows * p.cols));
  double* const partials = cuda.scratch<double>(static_cast<size_t>(p.batch) * kParts);
  square_sum_kernel<<<grid, kThreads, 0, cuda.stream>>>(p.in, vectors, partials);
  CUDA_CHECK_LAUNCH("muon_square_sum");
  normalize_kernel<<<grid, kThreads, 0, cuda.stream>>>(p.in, vectors, partials);
  CUDA_CHECK_LAUNCH("muon_normalize");
}

// Row-major (rows, cols) is column-major (cols, rows). Gram matrices are symmetric: the same either way.
//   rows <= cols:  A = X X^T,  TN (side, side, cols);  next = X poly in column-major,  NN (cols, side, side)
//   rows > cols:   A = X^T X,  NT (side, side, rows);  next = poly X in column-major,  NN (side, rows, side)
void iterate(CudaStream& cuda, const Orthogonalize<bf16>& p, bf16* next, const bf16* x) {
  constexpr MuonQuintic q = kNewtonSchulz;
  const bool wide = p.rows <= p.cols;
  const int64_t side = std::min(p.rows, p.cols), longer = std::max(p.rows, p.cols);
  GemmPlans& gemms = *cuda.device->gemms;
  const GemmProblem gram{
      .transpose_a = wide, .transpose_b = !wide, .m = side, .n = side, .k = longer, .batch = p.batch};
  const GemmProblem poly{.transpose_a = true, .m = side, .n = side, .k = side, .residual = true, .batch = p.batch};
  const GemmProblem apply{.m = p.cols, .n = p.rows, .k = side, .residual = true, .batch = p.batch};
  gemms.run(cuda, gram, {.d = p.gram, .a = x, .b = x});
  gemms.run(cuda, poly, {.d = p.poly, .a = p.gram, .b = p.gram, .c = p.gram, .alpha = q.c, .beta = q.b});
  gemms.run(cuda, apply, {.d = next, .a = wide ? x : p.poly, .b = wide ? p.poly : x, .c = x, .beta = q.a});
}

} // namespace

void muon_momentum(CudaStream& cuda, const MuonMomentum<bf16>& p) {
  if (p.segments.count == 0) return;
  const NvtxRange range(cuda, "muon_momentum", 14.0 * element_count(p.segments));
  momentum_kernel<<<segment_grid(p.segments), kThreads, 0, cuda.stream>>>(p);
  CUDA_CHECK_LAUNCH("muon_momentum");
}

void orthogonalize(CudaStream& cuda, const Orthogonalize<bf16>& p) {
  if (p.batch == 0) return;
  const Requirements require("orthogonalize");
  require(p.rows % kVector == 0, "rows is a multiple of 8");
  require(p.cols % kVector == 0, "cols is a multiple of 8");
  const double side = static_cast<double>(std::min(p.rows, p.cols)),
               longer = static_cast<double>(std::max(p.rows, p.cols));
  const double flops = static_cast<double>(p.batch) * (4 * side * side * longer + 2 * side * side * side);
  normalize(cuda, p);
  const NvtxRange range(cuda, "muon_iterations", 0, flops * kMuonIterations);
  bf16 *x = p.in, *next = p.out;
  for (int i = 0; i < kMuonIterations; ++i) {
    iterate(cuda, p, next, x);
    std::swap(x, next);
  }
}

void muon_update(CudaStream& cuda, const MuonUpdate<bf16>& p) {
  if (p.segments.count == 0) return;
  const NvtxRange range(cuda, "muon_update", 12.0 * element_count(p.segments));
  const dim3 grid = segment_grid(p.segments);
  const int64_t blocks = static_cast<int64_t>(grid.x) * grid.y;
  double* const partials = cuda.scratch<double>(static_cast<size_t>(blocks));
  update_kernel<<<grid, kThreads, 0, cuda.stream>>>(p, partials);
  CUDA_CHECK_LAUNCH("muon_update");
  add_partial_sums(cuda, p.update_square, partials, blocks);
}

} // namespace gpt2
