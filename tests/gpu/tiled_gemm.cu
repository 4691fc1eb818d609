#include "tests/gpu/tiled_gemm.h"

#include <cuda_bf16.h>

namespace gpt2 {

namespace {

constexpr int kTile = 16; // of every dimension

// Column-major: element (i, j) of D stands at j * m + i; row i of A and column j of B are contiguous.
__global__ void __launch_bounds__(kTile* kTile)
    tiled_gemm_kernel(bf16* d, const bf16* a, const bf16* b, int64_t m, int64_t n, int64_t k) {
  __shared__ float a_tile[kTile][kTile + 1], b_tile[kTile][kTile + 1];
  const int x = threadIdx.x, y = threadIdx.y;
  const int64_t first_row = int64_t{blockIdx.x} * kTile, first_column = int64_t{blockIdx.y} * kTile;
  float sum = 0;
  for (int64_t term = 0; term < k; term += kTile) {
    const bool inside = term + x < k;
    a_tile[y][x] = inside && first_row + y < m ? __bfloat162float(a[(first_row + y) * k + term + x]) : 0.0f;
    b_tile[y][x] = inside && first_column + y < n ? __bfloat162float(b[(first_column + y) * k + term + x]) : 0.0f;
    __syncthreads();
    for (int i = 0; i < kTile; ++i) sum += a_tile[x][i] * b_tile[y][i];
    __syncthreads();
  }
  const int64_t row = first_row + x, column = first_column + y;
  if (row < m && column < n) d[column * m + row] = __float2bfloat16(sum);
}

bool can_implement(const CudaDevice&, const GemmProblem& p) {
  return p.transpose_a && !p.transpose_b && p.a == GemmType::bf16 && p.b == GemmType::bf16 && p.d == GemmType::bf16 &&
         p.epilogue == GemmEpilogue::none && !p.accumulate;
}

void launch(CudaStream& cuda, const GemmProblem& p, const GemmArguments& x) {
  const dim3 grid(static_cast<unsigned>((p.m + kTile - 1) / kTile), static_cast<unsigned>((p.n + kTile - 1) / kTile));
  tiled_gemm_kernel<<<grid, dim3(kTile, kTile), 0, cuda.stream>>>(
      static_cast<bf16*>(x.d), static_cast<const bf16*>(x.a), static_cast<const bf16*>(x.b), p.m, p.n, p.k);
  CUDA_CHECK_LAUNCH("tiled_gemm");
}

} // namespace

GemmKernel tiled_gemm() { return {.name = "tiled_gemm", .can_implement = can_implement, .launch = launch}; }

} // namespace gpt2
