// Column sums of a gradient: 2 bytes per element.
#include "kernels/bias.h"

#include <cuda_bf16.h>

#include "kernels/cuda/profile.h"
#include "kernels/cuda/require.h"
#include "kernels/device/column_strips.cuh"

namespace gpt2 {

namespace {

struct BiasBackwardWork {
  const bf16* dout;

  using Raw = uint4;
  __device__ Raw load(int64_t vector) const { return load_raw(dout, vector); }
  __device__ Float8 values(const Raw& raw) const { return unpack(raw); }
  __device__ void store(int64_t, const Float8&) const {}
};

} // namespace

void bias_backward(CudaStream& cuda, const BiasBackward<bf16>& p) {
  const NvtxRange range(cuda, "bias_backward", 2.0 * static_cast<double>(p.rows) * p.cols);
  const Requirements require("bias_backward");
  require(p.cols % kVector == 0, "cols is a multiple of 8");
  require(p.dbias != nullptr, "dbias is not null");
  launch_column_strips(cuda, BiasBackwardWork{p.dout}, p.dbias, p.rows, p.cols, "bias_backward");
}

} // namespace gpt2
