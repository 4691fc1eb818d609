// Epilogue of the LM head for gemm_weight_stationary.cuh, which describes tiles, roles and pipeline: BF16 logits, and
// softmax's maximum and sum of each row over the tile's columns. Three consumer warpgroups in ping-pong.
//
// Bound: at C = 768 a 64 x 192 tile is 2,304 cycles of wgmma; the epilogue takes 6 instructions per logit, 576 cycles
// of a scheduler, beside 768 cycles of exponentials. On an H200, 65,536 rows of 50,304 logits: 4.87 ms, FLOPs 3.33 ms.
#include "kernels/sm90/lm_head_fp8.h"

#include <cuda_bf16.h>

#include "kernels/cuda/profile.h"
#include "kernels/cuda/require.h"
#include "kernels/device/softmax.cuh"
#include "kernels/sm90/gemm_weight_stationary.cuh"

namespace gpt2 {
namespace {

using namespace sm90;

// Ignores a NaN unless both are NaN.
__device__ uint32_t max2(uint32_t a, uint32_t b) {
  const __nv_bfloat162 larger =
      __hmax2(reinterpret_cast<const __nv_bfloat162&>(a), reinterpret_cast<const __nv_bfloat162&>(b));
  return reinterpret_cast<const uint32_t&>(larger);
}

template <int kBlockN_, Fp8Format>
struct SoftmaxParts {
  using Arguments = LmHeadFp8;
  static constexpr int kBlockN = kBlockN_, kContiguous = kVector, kConsumers = 3;
  static constexpr int kStagingBytes = 0, kLoadBytes = 0, kLoads = 0;
  static constexpr int kGroups = kBlockN / (4 * kContiguous);

  __device__ SoftmaxParts(const Arguments& p, uint8_t*, int)
      : p_(p), scale_(p.in.meta->scale_inv * p.weight.meta->scale_inv), parts_per_row_(p.padded_vocab / kBlockN) {}

  __device__ void fetch(int) {}
  __device__ void begin(int column0, int) {
    column0_ = column0;
    parts_ = p_.parts + column0 / kBlockN;
  }
  __device__ void prepare(int64_t) {}

  __device__ void finish_tile(float (&accumulators)[kBlockN / 2], int64_t row0, const auto&) {
    uint4 packed[2][kGroups]; // per row: the logits as cross-entropy reads them
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        Float8 x;
#pragma unroll
        for (int k = 0; k < kVector; ++k)
          x.v[k] = accumulators[AccumulatorLayout<kContiguous>::accumulator(group, k, r)] * scale_;
        packed[r][group] = pack(x);
        const int64_t at = (row0 + layout_.row + r) * p_.padded_vocab + column0_ + layout_.column(group);
        *reinterpret_cast<uint4*>(p_.logits + at) = packed[r][group];
      }
    }
    if (column0_ + kBlockN > p_.vocab) exclude_padding(packed); // uniform in the CTA
    const float maxima[2] = {quad_max(maximum(packed[0])), quad_max(maximum(packed[1]))};
    const float sums[2] = {quad_sum(sum(packed[0], maxima[0])), quad_sum(sum(packed[1], maxima[1]))};
    if (layout_.quad != 0) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) parts_[(row0 + layout_.row + r) * parts_per_row_] = {maxima[r], sums[r]};
  }

  __device__ void end() {}
  __device__ void finish() {}

 private:
  __device__ void exclude_padding(uint4 (&packed)[2][kGroups]) const {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int column = column0_ + layout_.column(group);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        Float8 x = unpack(packed[r][group]);
#pragma unroll
        for (int k = 0; k < kVector; ++k) x.v[k] = column + k < p_.vocab ? x.v[k] : -INFINITY;
        packed[r][group] = pack(x); // exact, but for the payload of a NaN
      }
    }
  }

  // Two logits per instruction; -infinity if all are NaN.
  __device__ static float maximum(const uint4 (&packed)[kGroups]) {
    uint4 larger = packed[0];
#pragma unroll
    for (int group = 1; group < kGroups; ++group)
      larger = {max2(larger.x, packed[group].x), max2(larger.y, packed[group].y), max2(larger.z, packed[group].z),
                max2(larger.w, packed[group].w)};
    const uint32_t pair = max2(max2(larger.x, larger.y), max2(larger.z, larger.w));
    const float low = __uint_as_float(pair << 16), high = __uint_as_float(pair & 0xFFFF0000u);
    return fmaxf(fmaxf(low, high), -INFINITY);
  }

  // Sum of exp(x - maximum) in two dependency chains; a NaN makes it NaN.
  __device__ static float sum(const uint4 (&packed)[kGroups], float maximum) {
    const float offset = softmax_offset(maximum);
    float even = 0, odd = 0;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const Float8 x = unpack(packed[group]);
#pragma unroll
      for (int k = 0; k < kVector; k += 2) {
        even += fast_exp2(fmaf(x.v[k], kLog2e, -offset));
        odd += fast_exp2(fmaf(x.v[k + 1], kLog2e, -offset));
      }
    }
    return even + odd;
  }

  const Arguments& p_;
  AccumulatorLayout<kContiguous> layout_;
  int column0_ = 0;
  float scale_;
  SoftmaxPart* parts_ = nullptr; // row 0
  const int64_t parts_per_row_;
};

} // namespace

int lm_head_parts_fp8(int C, int padded_vocab) {
  return fuses_softmax(C, padded_vocab) ? padded_vocab / weight_stationary_block_n(C) : 0;
}

bool can_fuse_lm_head_fp8(const CudaDevice& device, int64_t rows, int C, int padded_vocab) {
  return can_implement_weight_stationary(device, rows, C, padded_vocab);
}

void lm_head_fp8(CudaStream& cuda, const LmHeadFp8& p) {
  const double logits = static_cast<double>(p.rows) * p.padded_vocab;
  const NvtxRange range(cuda, "lm_head_fp8", 2 * logits, 2 * logits * p.C);
  const Requirements require("lm_head_fp8");
  require(can_fuse_lm_head_fp8(*cuda.device, p.rows, p.C, p.padded_vocab), "can_fuse_lm_head_fp8() holds");
  require(p.in.format == Fp8Format::e4m3 && p.weight.format == Fp8Format::e4m3, "both operands are E4M3");
  require(p.vocab <= p.padded_vocab, "vocab is at most padded_vocab");
  launch_gemm_weight_stationary<SoftmaxParts, Fp8Format::e4m3>(cuda, p.C,
                                                               {p.in.data, p.weight.data, p.rows, p.padded_vocab}, p);
}

} // namespace gpt2
