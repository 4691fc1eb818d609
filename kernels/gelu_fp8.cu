// GELU with FP8 output, and its gradient with all operands of the two following GEMMs, in one pass each.
#include "kernels/gelu_fp8.h"

#include <cuda_bf16.h>

#include "kernels/cuda/profile.h"
#include "kernels/cuda/require.h"
#include "kernels/device/cast_transpose.cuh"
#include "kernels/device/gelu_math.cuh"

namespace gpt2 {

namespace {

// A thread converts 32 bytes to 16, four times.
constexpr int kForwardThreads = 256, kForwardUnroll = 4;

__global__ void __launch_bounds__(kForwardThreads)
    gelu_forward_fp8_kernel(Fp8Output out, const bf16* in, int64_t count) {
  Fp8Quantizer quantizer(out);
  const int64_t first =
      static_cast<int64_t>(blockIdx.x) * kForwardThreads * kForwardUnroll + threadIdx.x; // 16 values each
  uint4 raw[kForwardUnroll][2];
#pragma unroll
  for (int u = 0; u < kForwardUnroll; ++u) {
    const int64_t i = first + u * kForwardThreads;
    if (i >= count) continue;
    raw[u][0] = load_raw(in, 2 * i);
    raw[u][1] = load_raw(in, 2 * i + 1);
  }
#pragma unroll
  for (int u = 0; u < kForwardUnroll; ++u) {
    const int64_t i = first + u * kForwardThreads;
    if (i >= count) continue;
    const uint2 low = quantizer(gelu(unpack(raw[u][0]))), high = quantizer(gelu(unpack(raw[u][1])));
    reinterpret_cast<uint4*>(out.data)[i] = make_uint4(low.x, low.y, high.x, high.y);
  }
  quantizer.commit(out);
}

struct GeluBackwardWork {
  const bf16 *dout, *in;

  static constexpr int kRowsAtOnce = 4;
  static constexpr int kBlocks = 5;
  struct Raw {
    uint4 dout, in;
  };
  __device__ Raw load(int64_t vector) const {
    return {load_raw_streaming(dout, vector), load_raw_streaming(in, vector)};
  }
  __device__ void values(const Raw& raw, int64_t, int, Float8& main, Float8& second) const {
    main = unpack(raw.dout);
    second = apply_gelu_gradient(main, unpack(raw.in));
  }
};

} // namespace

void gelu_forward_fp8(CudaStream& cuda, const GeluForwardFp8& p) {
  const NvtxRange range(cuda, "gelu_forward_fp8", 3.0 * static_cast<double>(p.rows) * p.cols);
  const Requirements require("gelu_forward_fp8");
  require(p.rows * p.cols % 16 == 0, "rows * cols is a multiple of 16");
  require(p.out.data && !p.out.transposed, "the output is row-major only");
  const int64_t count = p.rows * p.cols / 16;
  gelu_forward_fp8_kernel<<<grid_size(count, kForwardThreads * kForwardUnroll), kForwardThreads, 0, cuda.stream>>>(
      p.out, p.in, count);
  CUDA_CHECK_LAUNCH("gelu_forward_fp8");
}

void gelu_backward_fp8(CudaStream& cuda, const GeluBackwardFp8& p) {
  const NvtxRange range(cuda, "gelu_backward_fp8", 7.0 * static_cast<double>(p.rows) * p.cols);
  const Requirements require("gelu_backward_fp8");
  require(p.rows % 16 == 0, "rows is a multiple of 16");
  require(p.cols % 16 == 0, "cols is a multiple of 16");
  cast_transpose(cuda, GeluBackwardWork{p.dout, p.in},
                 {.main = p.din, .second = p.out, .dbias = p.dbias, .rows = p.rows, .cols = p.cols},
                 "gelu_backward_fp8");
}

} // namespace gpt2
