// wgmma.mma_async m64n64k16 in BF16 for attention: A in shared memory (SS) or in registers (RS).
#pragma once

#include <cstdint>

namespace gpt2::sm90 {

// clang-format off
#define GPT2_WGMMA_BF16(left, right, zero_operand, transposed, ...) \
  asm volatile( \
      "{.reg .pred add; setp.eq.u32 add, " zero_operand ", 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " \
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
      " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, " \
      left ", " right ", add, 1, 1, " transposed ";}" \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), \
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]) \
      : __VA_ARGS__, "l"(b), "r"(static_cast<uint32_t>(zero_init)))

// B K-major: d (64, 64) = a (64, 16) b (64, 16)^T (+ d unless zero_init)
__device__ inline void wgmma_ss(float (&d)[32], uint64_t a, uint64_t b, bool zero_init) {
  GPT2_WGMMA_BF16("%32", "%33", "%34", "0, 0", "l"(a));
}
__device__ inline void wgmma_rs(float (&d)[32], const uint32_t (&a)[4], uint64_t b, bool zero_init) {
  GPT2_WGMMA_BF16("{%32, %33, %34, %35}", "%36", "%37", "0", "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]));
}

// B MN-major: d (64, 64) = a (64, 16) b (16, 64) (+ d unless zero_init)
__device__ inline void wgmma_rs_mn_major(float (&d)[32], const uint32_t (&a)[4], uint64_t b, bool zero_init) {
  GPT2_WGMMA_BF16("{%32, %33, %34, %35}", "%36", "%37", "1", "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]));
}
// clang-format on

#undef GPT2_WGMMA_BF16

} // namespace gpt2::sm90
