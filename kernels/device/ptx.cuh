// PTX instructions without a CUDA C++ intrinsic.
#pragma once

#include <cstdint>

namespace gpt2 {

__device__ inline uint32_t cast_smem_ptr_to_uint(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// cp.async of 16 or 4 bytes; zero-fills if `inside` is false.
__device__ inline void cp_async_16(void* to, const void* from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(cast_smem_ptr_to_uint(to)), "l"(from),
               "r"(inside ? 16 : 0)
               : "memory");
}
__device__ inline void cp_async_4(void* to, const void* from, bool inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(cast_smem_ptr_to_uint(to)), "l"(from),
               "r"(inside ? 4 : 0)
               : "memory");
}
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ inline float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline float fast_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

} // namespace gpt2
