// Quantization of BF16 activations and FP32 weights, both ways round.
#include "kernels/cast_fp8.h"

#include <cuda_bf16.h>

#include "kernels/cuda/profile.h"
#include "kernels/device/fp8_tile.cuh"

namespace gpt2 {

namespace {

struct CastBf16Work {
  const bf16* in;

  static constexpr int kRowsAtOnce = 8;
  static constexpr int kBlocks = 6;
  using Raw = uint4;
  __device__ Raw load(int64_t vector) const { return load_raw(in, vector); }
  __device__ void values(const Raw& raw, int64_t, int, Float8& main, Float8&) const { main = unpack(raw); }
};

struct CastFloatWork {
  const float* in;

  static constexpr int kRowsAtOnce = 8;
  static constexpr int kBlocks = 5;
  struct Raw {
    float4 low, high;
  };
  __device__ Raw load(int64_t vector) const {
    const auto* const source = reinterpret_cast<const float4*>(in) + 2 * vector;
    return {source[0], source[1]};
  }
  __device__ void values(const Raw& raw, int64_t, int, Float8& main, Float8&) const {
    main = {raw.low.x, raw.low.y, raw.low.z, raw.low.w, raw.high.x, raw.high.y, raw.high.z, raw.high.w};
  }
};

} // namespace

void cast_fp8(Cuda& cuda, const CastFp8& p) {
  const double bytes = 2.0 + (p.out.data ? 1.0 : 0.0) + (p.out.transposed ? 1.0 : 0.0);
  const Range range(cuda, "cast_fp8", bytes * static_cast<double>(p.rows) * p.cols);
  launch_fp8_tiles(
      cuda, CastBf16Work{p.in},
      {.main = p.out, .second = {}, .dbias = p.dbias, .rows = p.rows, .cols = p.cols, .meter_only = p.meter_only},
      "cast_fp8");
}

void cast_weight_fp8(Cuda& cuda, const CastWeightFp8& p) {
  const Range range(cuda, "cast_weight_fp8", 6.0 * static_cast<double>(p.rows) * p.cols);
  launch_fp8_tiles(cuda, CastFloatWork{p.master},
                   {.main = p.out, .second = {}, .rows = p.rows, .cols = p.cols, .meter_only = p.meter_only},
                   "cast_weight_fp8");
}

} // namespace gpt2
