// Warp-level GEMMs with mma.m16n8k16 in BF16, for compute capability 8.0 and newer. `lane` is threadIdx.x % 32.
//
// Accumulator fragment (16, 8) of a thread:
//   c[0], c[1]: row lane/4,     columns 2*(lane%4) and +1
//   c[2], c[3]: row lane/4 + 8, the same columns
// Two neighboring accumulators, packed to BF16, are operand A (16, 16) of the next mma.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/device/ptx.cuh"

namespace gpt2 {

// Row pitch of a tile in shared memory: 16-byte aligned, and the eight rows of one ldmatrix are in different banks for
// D = 32, 64 and 128.
template <int D>
constexpr int kPitch = D + 8;

// Four 8x8 matrices; lane i passes the address of row i%8 of matrix i/8.
__device__ inline void ldmatrix_x4(uint32_t (&fragment)[4], const bf16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(cast_smem_ptr_to_uint(row))
               : "memory");
}
__device__ inline void ldmatrix_x4_trans(uint32_t (&fragment)[4], const bf16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(cast_smem_ptr_to_uint(row))
               : "memory");
}

// c (16, 8) += a (16, 16) b (16, 8)
__device__ inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// c (16, N) += a (16, D) b (N, D)^T, both in shared memory.
template <int N, int D>
__device__ inline void warp_gemm_nt(float (&c)[N / 8][4], const bf16* a, const bf16* b, int lane) {
  const bf16* a_row = a + lane % 16 * kPitch<D> + lane / 16 * 8;
  const bf16* b_row = b + (lane % 8 + lane / 16 * 8) * kPitch<D> + lane / 8 % 2 * 8;
#pragma unroll
  for (int k = 0; k < D; k += 16) {
    uint32_t left[4];
    ldmatrix_x4(left, a_row + k);
#pragma unroll
    for (int n = 0; n < N; n += 16) {
      uint32_t right[4];
      ldmatrix_x4(right, b_row + n * kPitch<D> + k);
      mma(c[n / 8], left, right[0], right[1]);
      mma(c[n / 8 + 1], left, right[2], right[3]);
    }
  }
}

// c (16, D) += a (16, N) b (N, D); a is accumulators, rounded to BF16; b in shared memory.
template <int N, int D>
__device__ inline void warp_gemm_rs(float (&c)[D / 8][4], const float (&a)[N / 8][4], const bf16* b, int lane) {
  const bf16* b_row = b + lane % 16 * kPitch<D> + lane / 16 * 8;
#pragma unroll
  for (int k = 0; k < N; k += 16) {
    const float(&left_half)[4] = a[k / 8];
    const float(&right_half)[4] = a[k / 8 + 1];
    const uint32_t left[4] = {pack_bf16(left_half[0], left_half[1]), pack_bf16(left_half[2], left_half[3]),
                              pack_bf16(right_half[0], right_half[1]), pack_bf16(right_half[2], right_half[3])};
#pragma unroll
    for (int n = 0; n < D; n += 16) {
      uint32_t right[4];
      ldmatrix_x4_trans(right, b_row + k * kPitch<D> + n);
      mma(c[n / 8], left, right[0], right[1]);
      mma(c[n / 8 + 1], left, right[2], right[3]);
    }
  }
}

} // namespace gpt2
