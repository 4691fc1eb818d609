// Device-side building blocks: 16-byte vectors of BF16, warp and block reductions.
#pragma once

#include <cuda_bf16.h>

#include "kernels/backend.h"

namespace gpt2 {

constexpr int kWarp = 32;
constexpr int kVector = 8; // BF16 values in a 16-byte access

struct Float8 {
  float v[kVector];

  __device__ Float8& operator+=(const Float8& other) {
#pragma unroll
    for (int k = 0; k < kVector; ++k) v[k] += other.v[k];
    return *this;
  }
};

// A BF16 is the upper half of a float: one instruction per value. __bfloat1622float2 takes two.
__device__ inline Float8 unpack(const uint4& packed) {
  const uint32_t pairs[kVector / 2] = {packed.x, packed.y, packed.z, packed.w};
  Float8 out;
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    out.v[2 * i] = __uint_as_float(pairs[i] << 16);
    out.v[2 * i + 1] = __uint_as_float(pairs[i] & 0xFFFF0000u);
  }
  return out;
}

__device__ inline uint4 pack(const Float8& values) {
  uint4 packed;
  auto* pairs = reinterpret_cast<__nv_bfloat162*>(&packed);
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) pairs[i] = __floats2bfloat162_rn(values.v[2 * i], values.v[2 * i + 1]);
  return packed;
}

// `index` counts vectors. Plain loads keep the line in L2 for the next reader; streaming loads are for data read once.
__device__ inline uint4 load_raw(const bf16* data, int64_t index) {
  return reinterpret_cast<const uint4*>(data)[index];
}
__device__ inline uint4 load_raw_streaming(const bf16* data, int64_t index) {
  return __ldcs(reinterpret_cast<const uint4*>(data) + index);
}
__device__ inline Float8 load8(const bf16* data, int64_t index) { return unpack(load_raw(data, index)); }
__device__ inline Float8 load8(const float* data, int64_t index) {
  const float4 low = reinterpret_cast<const float4*>(data)[2 * index];
  const float4 high = reinterpret_cast<const float4*>(data)[2 * index + 1];
  return {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
}
__device__ inline void store8(bf16* data, int64_t index, const Float8& values) {
  reinterpret_cast<uint4*>(data)[index] = pack(values);
}
__device__ inline void store8(float* data, int64_t index, const Float8& values) {
  float4* const out = reinterpret_cast<float4*>(data) + 2 * index;
  out[0] = make_float4(values.v[0], values.v[1], values.v[2], values.v[3]);
  out[1] = make_float4(values.v[4], values.v[5], values.v[6], values.v[7]);
}

// Over the four threads that share a row of an mma or wgmma accumulator; all four get the result.
__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 2));
}
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(0xFFFFFFFFu, x, 1);
  return x + __shfl_xor_sync(0xFFFFFFFFu, x, 2);
}

template <class T>
__device__ inline T warp_sum(T value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, offset);
  return value;
}

// One step of a reduce-scatter: the lane keeps one partial sum and sends the other to the lane `lanes` away. The lower
// half of the lanes gets the sum of `low`, the upper half that of `high`.
__device__ inline float exchanged_sum(float low, float high, int lanes) {
  const bool upper = threadIdx.x & static_cast<unsigned>(lanes);
  return (upper ? high : low) + __shfl_xor_sync(0xFFFFFFFFu, upper ? low : high, lanes);
}

// Warp sums of kCount values, a power of two: lane l gets the sum of value l / (32 / kCount). 4 values take 6 shuffles
// instead of 20.
template <int kCount>
__device__ inline float warp_sums(const float (&values)[kCount]) {
  static_assert(kCount <= kWarp && (kCount & (kCount - 1)) == 0);
  float sums[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) sums[i] = values[i];
  int lanes = kWarp / 2;
#pragma unroll
  for (int half = kCount / 2; half > 0; half /= 2, lanes /= 2) {
#pragma unroll
    for (int i = 0; i < half; ++i) sums[i] = exchanged_sum(sums[i], sums[i + half], lanes);
  }
#pragma unroll
  for (; lanes > 0; lanes /= 2) sums[0] += __shfl_xor_sync(0xFFFFFFFFu, sums[0], lanes);
  return sums[0];
}

__device__ inline float warp_max(float value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, offset));
  return value;
}

// Block sum of up to 1024 threads in a fixed order; every thread gets it. `shared` holds 32 values and may be reused
// after the next __syncthreads().
template <class T>
__device__ inline T block_sum(T value, T* shared) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = (blockDim.x + kWarp - 1) / kWarp;
  value = warp_sum(value);
  if (lane == 0) shared[warp] = value;
  __syncthreads();
  return warp_sum(lane < warps ? shared[lane] : T(0));
}

__device__ inline float block_max(float value, float* shared) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = (blockDim.x + kWarp - 1) / kWarp;
  value = warp_max(value);
  if (lane == 0) shared[warp] = value;
  __syncthreads();
  return warp_max(lane < warps ? shared[lane] : -INFINITY);
}

__host__ __device__ constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr unsigned grid_size(int64_t items, int64_t per_block) {
  return static_cast<unsigned>(ceil_div(items, per_block));
}

} // namespace gpt2
