// GELU and its gradient. Forward 4 bytes per element, backward 6 with the bias gradient.
#include "kernels/gelu.h"

#include <cuda_bf16.h>

#include "kernels/cuda/profile.h"
#include "kernels/cuda/require.h"
#include "kernels/device/column_strips.cuh"
#include "kernels/device/gelu_math.cuh"

namespace gpt2 {

namespace {

__global__ void gelu_forward_kernel(bf16* out, const bf16* in, int64_t vectors) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= vectors) return;
  store8(out, i, gelu(load8(in, i)));
}

struct GeluBackwardWork {
  bf16* din;
  const bf16 *dout, *in;

  struct Raw {
    uint4 dout, in;
  };
  __device__ Raw load(int64_t vector) const { return {load_raw(dout, vector), load_raw_streaming(in, vector)}; }
  __device__ Float8 values(const Raw& raw) const {
    Float8 gradient = unpack(raw.dout);
    apply_gelu_gradient(gradient, unpack(raw.in));
    return gradient;
  }
  __device__ void store(int64_t vector, const Float8& gradient) const { store8(din, vector, gradient); }
};

} // namespace

void gelu_forward(CudaStream& cuda, const GeluForward<bf16>& p) {
  const NvtxRange range(cuda, "gelu_forward", 4.0 * static_cast<double>(p.rows) * p.cols);
  const Requirements require("gelu_forward");
  require(p.rows * p.cols % kVector == 0, "rows * cols is a multiple of 8");
  constexpr int kThreads = 256;
  const int64_t vectors = p.rows * p.cols / kVector;
  gelu_forward_kernel<<<grid_size(vectors, kThreads), kThreads, 0, cuda.stream>>>(p.out, p.in, vectors);
  CUDA_CHECK_LAUNCH("gelu_forward");
}

void gelu_backward(CudaStream& cuda, const GeluBackward<bf16>& p) {
  const NvtxRange range(cuda, "gelu_backward", 6.0 * static_cast<double>(p.rows) * p.cols);
  const Requirements require("gelu_backward");
  require(p.cols % kVector == 0, "cols is a multiple of 8");
  launch_column_strips(cuda, GeluBackwardWork{p.din, p.dout, p.in}, p.dbias, p.rows, p.cols, "gelu_backward");
}

} // namespace gpt2
