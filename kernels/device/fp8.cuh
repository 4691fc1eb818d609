// FP8 conversion on the device, with amax and saturation statistics.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "kernels/device/vector.cuh"
#include "kernels/fp8_tensor.h"
#include "kernels/stochastic_rounding.h"

namespace gpt2 {

// Two FP8 values, `low` in the low byte. Saturating, round to nearest even, as fp8_encode on the CPU.
__device__ inline uint32_t fp8_pair(float low, float high, Fp8Format format) {
  const float2 pair = make_float2(low, high);
  return format == Fp8Format::e4m3 ? __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3)
                                   : __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E5M2);
}

// Eight FP8 values of scaled inputs, the first in the lowest byte.
__device__ inline uint2 fp8_pack(const Float8& scaled, Fp8Format format) {
  uint2 bytes;
  bytes.x = fp8_pair(scaled.v[0], scaled.v[1], format) | fp8_pair(scaled.v[2], scaled.v[3], format) << 16;
  bytes.y = fp8_pair(scaled.v[4], scaled.v[5], format) | fp8_pair(scaled.v[6], scaled.v[7], format) << 16;
  return bytes;
}

// The same with stochastic rounding to E5M2: the upper byte of a half, after a random byte is added to the lower one
// (stochastic_rounding.h). |scaled| is at most 57344. A NaN stays NaN only with zero random bytes.
__device__ inline uint2 e5m2_pack_stochastic(const Float8& scaled, const RoundingBytes& random) {
  uint32_t halves[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __half2 pair = __floats2half2_rn(scaled.v[2 * i], scaled.v[2 * i + 1]);
    const uint32_t word = i < 2 ? random.low : random.high;
    halves[i] = *reinterpret_cast<const uint32_t*>(&pair) + ((i % 2 ? word >> 8 : word) & 0x00FF00FFu);
  }
  return {__byte_perm(halves[0], halves[1], 0x7531), __byte_perm(halves[2], halves[3], 0x7531)};
}

// One thread's quantizer for an Fp8Output: scales, converts, gathers statistics.
class Fp8Quantizer {
 public:
  // Inputs are in multiples of `unit`.
  __device__ explicit Fp8Quantizer(const Fp8Output& output, float unit = 1.0f)
      : format_(output.format),
        statistics_(output.statistics),
        unit_(unit),
        scale_((output.meta ? output.meta->scale : 1.0f) * unit),
        largest_(output.format == Fp8Format::e4m3 ? 448.0f : 57344.0f),
        // Half of the smallest subnormal: a tie rounds to 0.
        flushed_below_(output.format == Fp8Format::e4m3 ? 0x1.0p-10f : 0x1.0p-17f) {}

  __device__ uint2 operator()(const Float8& values) {
    Float8 scaled;
#pragma unroll
    for (int k = 0; k < kVector; ++k) scaled.v[k] = values.v[k] * scale_;
    if (statistics_ != Fp8Statistics::none) {
      float largest_here = 0;
#pragma unroll
      for (int k = 0; k < kVector; ++k) largest_here = fmaxf(largest_here, fabsf(values.v[k]));
      amax_ = fmaxf(amax_, largest_here);
      if (largest_here * scale_ > largest_) { // rare, so counting is free
#pragma unroll
        for (int k = 0; k < kVector; ++k) saturated_ += fabsf(scaled.v[k]) > largest_;
      }
      flushed_ += values.v[0] != 0.0f && fabsf(scaled.v[0]) <= flushed_below_;
    }
    return fp8_pack(scaled, format_);
  }

  // Conversion and statistics separately, for several vectors at once: a warp nearly alone on its scheduler stalls at
  // every branch. (Composing operator() of these two made casts 12% slower.)
  __device__ uint2 encode(const Float8& values) const {
    Float8 scaled;
#pragma unroll
    for (int k = 0; k < kVector; ++k) scaled.v[k] = values.v[k] * scale_;
    return fp8_pack(scaled, format_);
  }

  template <int kCount>
  __device__ void observe(const Float8 (&values)[kCount]) {
    if (statistics_ == Fp8Statistics::none) return;
    float largest_here = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      float largest_of_8 = 0;
#pragma unroll
      for (int k = 0; k < kVector; ++k) largest_of_8 = fmaxf(largest_of_8, fabsf(values[i].v[k]));
      largest_here = fmaxf(largest_here, largest_of_8);
      flushed_ += values[i].v[0] != 0.0f && fabsf(values[i].v[0] * scale_) <= flushed_below_;
    }
    amax_ = fmaxf(amax_, largest_here);
    if (largest_here * scale_ > largest_) { // rare, so counting is free
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
#pragma unroll
        for (int k = 0; k < kVector; ++k) saturated_ += fabsf(values[i].v[k] * scale_) > largest_;
      }
    }
  }

  // True if an input was infinite. FP8 values do not show it: the conversion saturates.
  __device__ bool overflowed() const { return amax_ == INFINITY; }

  // Adds the CTA's statistics to the output's; every thread of the CTA must call it. One atomic per CTA, and for the
  // amax only if it grows.
  __device__ void commit(const Fp8Output& output) const {
    if (statistics_ == Fp8Statistics::none) return;
    __shared__ unsigned amax, saturated, flushed;
    __syncthreads(); // a CTA may commit several quantizers
    if (threadIdx.x == 0) amax = saturated = flushed = 0;
    __syncthreads();
    const unsigned warp_amax = __reduce_max_sync(0xFFFFFFFFu, __float_as_uint(amax_ * unit_));
    const unsigned warp_saturated = __reduce_add_sync(0xFFFFFFFFu, saturated_);
    const unsigned warp_flushed = __reduce_add_sync(0xFFFFFFFFu, flushed_);
    if (threadIdx.x % kWarp == 0) {
      atomicMax(&amax, warp_amax);
      if (warp_saturated) atomicAdd(&saturated, warp_saturated);
      if (warp_flushed) atomicAdd(&flushed, warp_flushed);
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    if (amax > *static_cast<volatile uint32_t*>(output.amax)) atomicMax(output.amax, amax);
    if (statistics_ == Fp8Statistics::amax_only) return; // the pass that writes counts
    if (saturated) atomicAdd(&output.meta->saturated, static_cast<unsigned long long>(saturated));
    if (flushed) atomicAdd(&output.meta->flushed, static_cast<unsigned long long>(flushed));
  }

  // The same for one warp, called by all its threads: for warp-specialized kernels.
  __device__ void commit_warp(const Fp8Output& output) const {
    if (statistics_ == Fp8Statistics::none) return;
    const unsigned amax = __reduce_max_sync(0xFFFFFFFFu, __float_as_uint(amax_ * unit_));
    const unsigned saturated = __reduce_add_sync(0xFFFFFFFFu, saturated_);
    const unsigned flushed = __reduce_add_sync(0xFFFFFFFFu, flushed_);
    if (threadIdx.x % kWarp != 0) return;
    if (amax > *static_cast<volatile uint32_t*>(output.amax)) atomicMax(output.amax, amax);
    if (saturated) atomicAdd(&output.meta->saturated, static_cast<unsigned long long>(saturated));
    if (flushed) atomicAdd(&output.meta->flushed, static_cast<unsigned long long>(flushed));
  }

 private:
  Fp8Format format_;
  Fp8Statistics statistics_;
  float unit_, scale_, largest_, flushed_below_;
  float amax_ = 0;
  unsigned saturated_ = 0, flushed_ = 0;
};

// Transposes 4x4 bytes: word r holds row r; afterwards word c holds column c.
__device__ inline void transpose_4x4(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d) {
  const uint32_t ab_low = __byte_perm(a, b, 0x5140), ab_high = __byte_perm(a, b, 0x7362); // a0 b0 a1 b1, a2 b2 a3 b3
  const uint32_t cd_low = __byte_perm(c, d, 0x5140), cd_high = __byte_perm(c, d, 0x7362);
  a = __byte_perm(ab_low, cd_low, 0x5410);
  b = __byte_perm(ab_low, cd_low, 0x7632);
  c = __byte_perm(ab_high, cd_high, 0x5410);
  d = __byte_perm(ab_high, cd_high, 0x7632);
}

// Transposes 8 x 8 bytes.
__device__ inline void transpose_8x8(uint2 (&bytes)[8]) {
  transpose_4x4(bytes[0].x, bytes[1].x, bytes[2].x, bytes[3].x);
  transpose_4x4(bytes[0].y, bytes[1].y, bytes[2].y, bytes[3].y);
  transpose_4x4(bytes[4].x, bytes[5].x, bytes[6].x, bytes[7].x);
  transpose_4x4(bytes[4].y, bytes[5].y, bytes[6].y, bytes[7].y);
#pragma unroll
  for (int i = 0; i < 4; ++i) { // swap the off-diagonal 4x4 blocks
    const uint32_t upper_right = bytes[i].y;
    bytes[i].y = bytes[i + 4].x;
    bytes[i + 4].x = upper_right;
  }
}

} // namespace gpt2
