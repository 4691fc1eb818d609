// Softmax's maxima and sums as the epilogue of the LM head (stationary_product.cuh).
//
// At C = 768 a tile of 64 x 192 multiplies for 2,304 cycles. Its epilogue takes 6 instructions a logit, 576 cycles of a
// scheduler, and as many exponentials as need 768 cycles of its special function unit beside them.
#include "kernels/sm90/lm_head_fp8.h"

#include <cuda_bf16.h>

#include "kernels/cuda/profile.h"
#include "kernels/cuda/require.h"
#include "kernels/device/softmax.cuh"
#include "kernels/sm90/stationary_product.cuh"

namespace gpt2 {
namespace {

using namespace sm90;

// Of the four threads that share rows; all of them get it.
__device__ float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, 2));
}
__device__ float quad_sum(float value) {
  value += __shfl_xor_sync(0xFFFFFFFFu, value, 1);
  return value + __shfl_xor_sync(0xFFFFFFFFu, value, 2);
}

// A NaN is passed over unless both are.
__device__ uint32_t max2(uint32_t a, uint32_t b) {
  const __nv_bfloat162 larger =
      __hmax2(reinterpret_cast<const __nv_bfloat162&>(a), reinterpret_cast<const __nv_bfloat162&>(b));
  return reinterpret_cast<const uint32_t&>(larger);
}

template <int kPanel_, Fp8Format>
struct SoftmaxParts {
  using Arguments = LmHeadFp8;
  static constexpr int kPanel = kPanel_, kRun = kVector, kConsumers = 3;
  static constexpr int kStagingBytes = 0, kInputBytes = 0, kInputs = 0;
  static constexpr int kGroups = kPanel / (4 * kRun);

  __device__ SoftmaxParts(const Arguments& p, uint8_t*, int)
      : p_(p), scale_(p.in.meter->inverse * p.weight.meter->inverse), parts_per_row_(p.padded_vocab / kPanel) {}

  __device__ void fetch(int) {}
  __device__ void begin(int column0, int) {
    column0_ = column0;
    parts_ = p_.parts + column0 / kPanel;
  }
  __device__ void prepare(int64_t) {}

  __device__ void finish_tile(float (&accumulators)[kPanel / 2], int64_t row0, const auto&) {
    uint4 packed[2][kGroups]; // by row: the logits as the loss will read them
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        Float8 x;
#pragma unroll
        for (int k = 0; k < kVector; ++k) x.v[k] = accumulators[Ownership<kRun>::accumulator(group, k, r)] * scale_;
        packed[r][group] = pack(x);
        const int64_t at = (row0 + own_.row + r) * p_.padded_vocab + column0_ + own_.column(group);
        *reinterpret_cast<uint4*>(p_.logits + at) = packed[r][group];
      }
    }
    if (column0_ + kPanel > p_.vocab) exclude_padding(packed); // the same for the whole block
    const float maxima[2] = {quad_max(maximum(packed[0])), quad_max(maximum(packed[1]))};
    const float sums[2] = {quad_sum(sum(packed[0], maxima[0])), quad_sum(sum(packed[1], maxima[1]))};
    if (own_.quad != 0) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) parts_[(row0 + own_.row + r) * parts_per_row_] = {maxima[r], sums[r]};
  }

  __device__ void end() {}
  __device__ void finish() {}

 private:
  __device__ void exclude_padding(uint4 (&packed)[2][kGroups]) const {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int column = column0_ + own_.column(group);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        Float8 x = unpack(packed[r][group]);
#pragma unroll
        for (int k = 0; k < kVector; ++k) x.v[k] = column + k < p_.vocab ? x.v[k] : -INFINITY;
        packed[r][group] = pack(x); // exact but for a NaN's bits
      }
    }
  }

  // Two at a time; -infinity where all are NaN.
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

  // Of exp(x - maximum), in two chains; a NaN makes it NaN.
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
  Ownership<kRun> own_;
  int column0_ = 0;
  float scale_;
  SoftmaxPart* parts_ = nullptr; // of row 0
  const int64_t parts_per_row_;
};

} // namespace

int lm_head_parts_fp8(int C, int padded_vocab) {
  return softmax_is_an_epilogue(C, padded_vocab) ? padded_vocab / stationary_panel(C) : 0;
}

bool fused_lm_head_fp8(const CudaDevice& device, int64_t rows, int C, int padded_vocab) {
  return takes_stationary(device, rows, C, padded_vocab);
}

void lm_head_fp8(Cuda& cuda, const LmHeadFp8& p) {
  const double logits = static_cast<double>(p.rows) * p.padded_vocab;
  const Range range(cuda, "lm_head_fp8", 2 * logits, 2 * logits * p.C);
  const Requirements require("lm_head_fp8");
  require(fused_lm_head_fp8(*cuda.device, p.rows, p.C, p.padded_vocab), "a shape that fused_lm_head_fp8() takes");
  require(p.in.format == Fp8Format::e4m3 && p.weight.format == Fp8Format::e4m3, "both factors are E4M3");
  require(p.vocab <= p.padded_vocab, "vocab is at most padded_vocab");
  launch_stationary_product<SoftmaxParts, Fp8Format::e4m3>(cuda, p.C,
                                                           {p.in.data, p.weight.data, p.rows, p.padded_vocab}, p);
}

} // namespace gpt2
