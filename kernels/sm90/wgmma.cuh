// wgmma.mma_async: m64n128 and m64n192 with both operands in shared memory (SS), in FP8 (k32) and BF16 (k16) for GEMMs;
// m64n64 in BF16 with A in shared memory or in registers (RS) for attention. d = a b (+ d unless zero_init).
//
// Accumulator layout: element 4 i + 2 h + e of a thread is row 16 warp + lane / 4 + 8 h, column 8 i + 2 (lane % 4) + e.
#pragma once

#include <cstdint>

#include "engine/base/float_formats.h"

namespace gpt2::sm90 {

// clang-format off
// The first 32, 64 or 96 registers: the accumulators d.
#define GPT2_D_32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define GPT2_D_64 GPT2_D_32 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define GPT2_D_96 GPT2_D_64 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define GPT2_OPERANDS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define GPT2_OPERANDS_16(i) GPT2_OPERANDS_4(i), GPT2_OPERANDS_4(i + 4), GPT2_OPERANDS_4(i + 8), GPT2_OPERANDS_4(i + 12)
#define GPT2_OPERANDS_32(i) GPT2_OPERANDS_16(i), GPT2_OPERANDS_16(i + 16)

// left, right and zero_operand: the operands after the accumulators. flags: the signs of A and B, and for BF16 whether
// they are MN-major.
#define GPT2_WGMMA(shape_and_types, accumulators, left, right, zero_operand, flags) \
  "{.reg .pred add; setp.eq.u32 add, " zero_operand ", 0; wgmma.mma_async.sync.aligned." shape_and_types " " \
  "{" accumulators "}, " left ", " right ", add, " flags ";}"
#define GPT2_WGMMA_SS_192(types, flags) \
  asm volatile(GPT2_WGMMA("m64n192" types, GPT2_D_96, "%96", "%97", "%98", flags) \
               : GPT2_OPERANDS_32(0), GPT2_OPERANDS_32(32), GPT2_OPERANDS_32(64) \
               : "l"(a), "l"(b), "r"(static_cast<uint32_t>(zero_init)))
#define GPT2_WGMMA_SS_128(types, flags) \
  asm volatile(GPT2_WGMMA("m64n128" types, GPT2_D_64, "%64", "%65", "%66", flags) \
               : GPT2_OPERANDS_32(0), GPT2_OPERANDS_32(32) \
               : "l"(a), "l"(b), "r"(static_cast<uint32_t>(zero_init)))
#define GPT2_WGMMA_RS_64(flags) \
  asm volatile(GPT2_WGMMA("m64n64k16.f32.bf16.bf16", GPT2_D_32, "{%32, %33, %34, %35}", "%36", "%37", flags) \
               : GPT2_OPERANDS_32(0) \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<uint32_t>(zero_init)))
// clang-format on

// FP8, both operands K-major: d (64, kN) = a (64, 32) b (kN, 32)^T
template <Fp8Format kFormatA, int kN>
__device__ inline void wgmma_ss(float (&d)[kN / 2], uint64_t a, uint64_t b, bool zero_init) {
  static_assert(kN == 192 || kN == 128);
  constexpr bool kE4m3 = kFormatA == Fp8Format::e4m3;
  if constexpr (kN == 192 && kE4m3) GPT2_WGMMA_SS_192("k32.f32.e4m3.e4m3", "1, 1");
  if constexpr (kN == 192 && !kE4m3) GPT2_WGMMA_SS_192("k32.f32.e5m2.e4m3", "1, 1");
  if constexpr (kN == 128 && kE4m3) GPT2_WGMMA_SS_128("k32.f32.e4m3.e4m3", "1, 1");
  if constexpr (kN == 128 && !kE4m3) GPT2_WGMMA_SS_128("k32.f32.e5m2.e4m3", "1, 1");
}

// BF16, both operands MN-major: d (64, 128 or 192) = a (16, 64)^T b (16, 128 or 192)
__device__ inline void wgmma_ss_mn_major(float (&d)[64], uint64_t a, uint64_t b, bool zero_init) {
  GPT2_WGMMA_SS_128("k16.f32.bf16.bf16", "1, 1, 1, 1");
}
__device__ inline void wgmma_ss_mn_major(float (&d)[96], uint64_t a, uint64_t b, bool zero_init) {
  GPT2_WGMMA_SS_192("k16.f32.bf16.bf16", "1, 1, 1, 1");
}

// BF16, B K-major: d (64, 64) = a (64, 16) b (64, 16)^T
__device__ inline void wgmma_ss(float (&d)[32], uint64_t a, uint64_t b, bool zero_init) {
  asm volatile(GPT2_WGMMA("m64n64k16.f32.bf16.bf16", GPT2_D_32, "%32", "%33", "%34", "1, 1, 0, 0")
               : GPT2_OPERANDS_32(0)
               : "l"(a), "l"(b), "r"(static_cast<uint32_t>(zero_init)));
}
__device__ inline void wgmma_rs(float (&d)[32], const uint32_t (&a)[4], uint64_t b, bool zero_init) {
  GPT2_WGMMA_RS_64("1, 1, 0");
}

// BF16, B MN-major: d (64, 64) = a (64, 16) b (16, 64)
__device__ inline void wgmma_rs_mn_major(float (&d)[32], const uint32_t (&a)[4], uint64_t b, bool zero_init) {
  GPT2_WGMMA_RS_64("1, 1, 1");
}

#undef GPT2_D_32
#undef GPT2_D_64
#undef GPT2_D_96
#undef GPT2_OPERANDS_4
#undef GPT2_OPERANDS_16
#undef GPT2_OPERANDS_32
#undef GPT2_WGMMA
#undef GPT2_WGMMA_SS_192
#undef GPT2_WGMMA_SS_128
#undef GPT2_WGMMA_RS_64

} // namespace gpt2::sm90
