// Quantization of a BF16 matrix, row-major and transposed.
#include "kernels/cast_fp8.h"

#include <cuda_bf16.h>

#include "kernels/cuda/profile.h"
#include "kernels/cuda/require.h"
#include "kernels/device/cast_transpose.cuh"

namespace gpt2 {

namespace {

struct CastWork {
  const bf16* in;

  static constexpr int kRowsAtOnce = 8;
  static constexpr int kBlocks = 6;
  using Raw = uint4;
  __device__ Raw load(int64_t vector) const { return load_raw(in, vector); }
  __device__ void values(const Raw& raw, int64_t, int, Float8& main, Float8&) const { main = unpack(raw); }
};

} // namespace

void cast_fp8(CudaStream& cuda, const CastFp8& p) {
  const double bytes = 2.0 + (p.out.data ? 1.0 : 0.0) + (p.out.transposed ? 1.0 : 0.0);
  const NvtxRange range(cuda, "cast_fp8", bytes * static_cast<double>(p.rows) * p.cols);
  const Requirements require("cast_fp8");
  require(p.rows % 16 == 0, "rows is a multiple of 16");
  require(p.cols % 16 == 0, "cols is a multiple of 16");
  cast_transpose(cuda, CastWork{p.in}, {.main = p.out, .second = {}, .dbias = p.dbias, .rows = p.rows, .cols = p.cols},
                 "cast_fp8");
}

} // namespace gpt2
