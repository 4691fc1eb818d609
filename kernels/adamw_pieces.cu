#include "kernels/adamw_pieces.h"

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/partial_sums.h"
#include "kernels/cuda/profile.h"
#include "kernels/device/adamw.cuh"
#include "kernels/device/vector.cuh"

namespace gpt2 {

namespace {

constexpr int kThreads = 256;

// The squares of the thread's updates.
__device__ float apply_piece(const AdamWPieces& p) {
  if (p.scalars->verdict != Verdict::applied) return 0;
  const AdamWPiece piece = p.pieces[blockIdx.y];
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 4;
  if (i >= piece.count) return 0;
  const auto four = [](float* data) -> float4& { return *reinterpret_cast<float4*>(data); };
  const AdamWStep step(*p.scalars, *p.guard, p.lr, p.beta1, p.beta2, p.eps);
  const float decay = p.decay_mask[(piece.flat + i) / kDecayGranule] ? p.weight_decay : 0.0f;
  return apply_adamw(step, four(p.master + piece.compact + i), p.weights + piece.flat + i,
                     four(p.m + piece.compact + i), four(p.v + piece.second + i),
                     *reinterpret_cast<const float4*>(p.grad + piece.flat + i), decay);
}

// Block (part of the piece, piece).
__global__ void __launch_bounds__(kThreads) adamw_pieces_kernel(AdamWPieces p, double* partials) {
  __shared__ double shared[kWarp];
  const double square = block_sum(static_cast<double>(apply_piece(p)), shared);
  if (threadIdx.x == 0) partials[blockIdx.y * gridDim.x + blockIdx.x] = square * p.lr * p.lr;
}

} // namespace

void adamw_pieces(CudaStream& cuda, const AdamWPieces& p) {
  if (p.count == 0) return;
  const NvtxRange range(cuda, "adamw", 30.0 * static_cast<double>(p.longest) * p.count);
  const dim3 grid(static_cast<unsigned>(ceil_div(p.longest / 4, kThreads)), static_cast<unsigned>(p.count));
  const int64_t blocks = static_cast<int64_t>(grid.x) * grid.y;
  double* const partials = cuda.scratch<double>(static_cast<size_t>(blocks));
  adamw_pieces_kernel<<<grid, kThreads, 0, cuda.stream>>>(p, partials);
  CUDA_CHECK_LAUNCH("adamw_pieces");
  add_partial_sums(cuda, p.update_square, partials, blocks);
}

} // namespace gpt2
