// wgmma.mma_async with both operands in shared memory (SS): m64n128 and m64n192, FP8 (k32) and BF16 (k16).
#pragma once

#include <cstdint>

#include "engine/base/float_formats.h"

namespace gpt2::sm90 {

// clang-format off
// d (64, 192) = a b (+ d unless zero_init)
#define GPT2_WGMMA_192(shape_and_types, signs) \
  asm volatile( \
      "{.reg .pred add; setp.eq.u32 add, %98, 0; wgmma.mma_async.sync.aligned.m64n192" shape_and_types " " \
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
      " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
      " %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
      " %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
      " %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
      " %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, " \
      "%96, %97, add, " signs ";}" \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), \
        "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), \
        "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), \
        "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), \
        "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), \
        "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), \
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), \
        "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), \
        "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), \
        "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), "+f"(d[64]), "+f"(d[65]), \
        "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), \
        "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), \
        "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), \
        "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), \
        "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]) \
      : "l"(a), "l"(b), "r"(static_cast<uint32_t>(zero_init)))

// d (64, 128) = a b (+ d unless zero_init)
#define GPT2_WGMMA_128(shape_and_types, signs) \
  asm volatile( \
      "{.reg .pred add; setp.eq.u32 add, %66, 0; wgmma.mma_async.sync.aligned.m64n128" shape_and_types " " \
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
      " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
      " %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
      " %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, " \
      "%64, %65, add, " signs ";}" \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), \
        "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), \
        "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), \
        "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), \
        "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), \
        "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), \
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), \
        "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), \
        "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), \
        "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]) \
      : "l"(a), "l"(b), "r"(static_cast<uint32_t>(zero_init)))
// clang-format on

// Accumulator layout: element 4 i + 2 h + e of a thread is row 16 warp + lane / 4 + 8 h, column 8 i + 2 (lane % 4) + e.

// FP8, both operands K-major: d (64, kN) = a (64, 32) b (kN, 32)^T.
template <Fp8Format kFormatA, int kN>
__device__ inline void wgmma_ss(float (&d)[kN / 2], uint64_t a, uint64_t b, bool zero_init) {
  static_assert(kN == 192 || kN == 128);
  constexpr bool kE4m3 = kFormatA == Fp8Format::e4m3;
  if constexpr (kN == 192 && kE4m3) GPT2_WGMMA_192("k32.f32.e4m3.e4m3", "1, 1");
  if constexpr (kN == 192 && !kE4m3) GPT2_WGMMA_192("k32.f32.e5m2.e4m3", "1, 1");
  if constexpr (kN == 128 && kE4m3) GPT2_WGMMA_128("k32.f32.e4m3.e4m3", "1, 1");
  if constexpr (kN == 128 && !kE4m3) GPT2_WGMMA_128("k32.f32.e5m2.e4m3", "1, 1");
}

// BF16, both operands MN-major: d (64, 128 or 192) = a (16, 64)^T b (16, 128 or 192).
__device__ inline void wgmma_ss_mn_major(float (&d)[64], uint64_t a, uint64_t b, bool zero_init) {
  GPT2_WGMMA_128("k16.f32.bf16.bf16", "1, 1, 1, 1");
}
__device__ inline void wgmma_ss_mn_major(float (&d)[96], uint64_t a, uint64_t b, bool zero_init) {
  GPT2_WGMMA_192("k16.f32.bf16.bf16", "1, 1, 1, 1");
}

#undef GPT2_WGMMA_192
#undef GPT2_WGMMA_128

} // namespace gpt2::sm90
