// gemm_weight_stationary.cuh with a plain epilogue: scale, bias, residual. Tiles, roles and bound are described there.
#include "kernels/sm90/gemm_fp8_weight_stationary.h"

#include <cuda_bf16.h>

#include "kernels/sm90/gemm_weight_stationary.cuh"

namespace gpt2::sm90 {
namespace {

struct PlainArguments {
  bf16* out;            // (rows, width)
  const bf16* bias;     // (width), or null
  const bf16* residual; // (rows, width), or null
  const float *in_scale, *weight_scale;
  int64_t width;
};

// Four threads write 64 contiguous bytes of BF16.
template <int kBlockN_, Fp8Format>
struct Plain {
  using Arguments = PlainArguments;
  static constexpr int kBlockN = kBlockN_, kContiguous = kVector, kConsumers = 2;
  static constexpr int kStagingBytes = 0, kLoadBytes = 0, kLoads = 0;

  __device__ Plain(const Arguments& p, uint8_t*, int) : p_(p), scale_(*p.in_scale * *p.weight_scale) {}

  __device__ void fetch(int) {}
  __device__ void begin(int column0, int) { column0_ = column0; }
  __device__ void prepare(int64_t row0) {
    if (!p_.residual) return;
#pragma unroll
    for (int group = 0; group < kBlockN / (4 * kContiguous); ++group) {
#pragma unroll
      for (int r = 0; r < 2; ++r) stream_[group][r] = load_raw_streaming(p_.residual + index(row0, group, r), 0);
    }
  }

  __device__ void finish_tile(float (&accumulators)[kBlockN / 2], int64_t row0, const auto&) {
#pragma unroll
    for (int group = 0; group < kBlockN / (4 * kContiguous); ++group) {
      // Read from L1 for every tile: no registers left to keep it.
      const uint4 raw = p_.bias ? load_raw(p_.bias + column0_ + layout_.column(group), 0) : uint4{};
      const Float8 bias = unpack(raw);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        Float8 x;
#pragma unroll
        for (int k = 0; k < kVector; ++k)
          x.v[k] = fmaf(accumulators[AccumulatorLayout<kContiguous>::accumulator(group, k, r)], scale_, bias.v[k]);
        x += unpack(stream_[group][r]); // zeros without a residual
        store8(p_.out + index(row0, group, r), 0, x);
      }
    }
  }

  __device__ void end() {}
  __device__ void finish() {}

 private:
  __device__ int64_t index(int64_t row0, int group, int r) const {
    return (row0 + layout_.row + r) * p_.width + column0_ + layout_.column(group);
  }

  const Arguments& p_;
  AccumulatorLayout<kContiguous> layout_;
  int column0_ = 0;
  float scale_;
  uint4 stream_[kBlockN / (4 * kContiguous)][2] = {};
};

bool can_implement(const CudaDevice& device, const GemmProblem& p) {
  return p.transpose_a && !p.transpose_b && p.a == GemmType::e4m3 && (p.b == GemmType::e4m3 || p.b == GemmType::e5m2) &&
         p.d == GemmType::bf16 && p.epilogue != GemmEpilogue::gelu_aux_bias && !p.accumulate && p.fast_accumulation &&
         p.batch == 1 && can_implement_weight_stationary(device, p.n, p.k, p.m);
}

void launch(CudaStream& cuda, const GemmProblem& p, const GemmArguments& x) {
  const GemmOperands operands{static_cast<const uint8_t*>(x.b), static_cast<const uint8_t*>(x.a), p.n,
                              static_cast<int>(p.m)};
  const PlainArguments arguments{static_cast<bf16*>(x.d),
                                 static_cast<const bf16*>(x.bias),
                                 static_cast<const bf16*>(x.c),
                                 x.b_scale,
                                 x.a_scale,
                                 p.m};
  if (p.b == GemmType::e4m3)
    launch_gemm_weight_stationary<Plain, Fp8Format::e4m3>(cuda, p.k, operands, arguments);
  else
    launch_gemm_weight_stationary<Plain, Fp8Format::e5m2>(cuda, p.k, operands, arguments);
}

} // namespace

// The name is stored in plan caches and checkpoints.
GemmKernel gemm_fp8_weight_stationary() { return {"stationary_3", can_implement, launch}; }

} // namespace gpt2::sm90
