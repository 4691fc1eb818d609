// PTX of sm_90a in tiny functions, under the names that CUTLASS uses: mbarriers, TMA, setmaxnreg, wgmma fences,
// stmatrix.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/device/ptx.cuh"

namespace gpt2::sm90 {

// ---- mbarriers and named barriers ----

// An mbarrier in shared memory. It counts arrivals and TMA bytes; a phase completes when both counts are complete.
struct ClusterTransactionBarrier {
  uint64_t state;

  __device__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(cast_smem_ptr_to_uint(&state)), "r"(arrivals)
                 : "memory");
  }
  __device__ void arrive_and_expect_tx(int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(cast_smem_ptr_to_uint(&state)),
                 "r"(bytes)
                 : "memory");
  }
  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(cast_smem_ptr_to_uint(&state)) : "memory");
  }
  // Arrives at the same mbarrier of CTA `rank` in the cluster. Relaxed: a consumer frees a stage that it has only read,
  // and a cluster-scope release would wait for all stores of the warp.
  __device__ void arrive_cluster(int rank) {
    asm volatile(
        "{\n"
        ".reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [remote];\n"
        "}" ::"r"(cast_smem_ptr_to_uint(&state)),
        "r"(rank)
        : "memory");
  }
  // Upper bound for one suspended try_wait: a warp that polls takes issue slots from the others.
  static constexpr uint32_t kSuspendNanoseconds = 10'000'000;
  __device__ void wait(uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, %2;\n"
        "@!done bra again;\n"
        "}" ::"r"(cast_smem_ptr_to_uint(&state)),
        "r"(parity), "r"(kSuspendNanoseconds)
        : "memory");
  }
};

__device__ inline void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void cluster_sync() {
  __syncwarp();
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ inline uint32_t block_rank_in_cluster() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Named barrier of the 128 threads of a warpgroup. Id 0 is __syncthreads().
__device__ inline void warpgroup_sync(int id) { asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory"); }

// Ping-pong order of consumer warpgroups: one syncs on its named barrier, the one before it arrives there.
__device__ inline void pingpong_barrier_sync(int id) { asm volatile("bar.sync %0, 256;" ::"r"(id) : "memory"); }
__device__ inline void pingpong_barrier_arrive(int id) { asm volatile("bar.arrive %0, 256;" ::"r"(id) : "memory"); }

// ---- setmaxnreg: the register split between producer and consumer warpgroups ----

template <int kRegisters>
__device__ inline void warpgroup_reg_dealloc() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void warpgroup_reg_alloc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- TMA, issued by one thread ----

__device__ inline void prefetch_tma_descriptor(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// One tile of a tensor from global to shared memory; the mbarrier counts the bytes. A multicast load writes the same
// offset in each CTA of the mask `blocks` and signals the mbarrier of each.
__device__ inline void tma_load_2d(void* to, const CUtensorMap* map, ClusterTransactionBarrier& barrier, int c0,
                                   int c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
          cast_smem_ptr_to_uint(to)),
      "l"(map), "r"(cast_smem_ptr_to_uint(&barrier)), "r"(c0), "r"(c1)
      : "memory");
}
__device__ inline void tma_load_multicast_4d(void* to, const CUtensorMap* map, ClusterTransactionBarrier& barrier,
                                             int c0, int c1, int c2, int c3, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(cast_smem_ptr_to_uint(to)),
      "l"(map), "r"(cast_smem_ptr_to_uint(&barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "h"(blocks)
      : "memory");
}
__device__ inline void tma_load_5d(void* to, const CUtensorMap* map, ClusterTransactionBarrier& barrier, int c0, int c1,
                                   int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(cast_smem_ptr_to_uint(to)),
      "l"(map), "r"(cast_smem_ptr_to_uint(&barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}
__device__ inline void tma_load_multicast_5d(void* to, const CUtensorMap* map, ClusterTransactionBarrier& barrier,
                                             int c0, int c1, int c2, int c3, int c4, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(cast_smem_ptr_to_uint(to)),
      "l"(map), "r"(cast_smem_ptr_to_uint(&barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "h"(blocks)
      : "memory");
}

// One tile of a 4D tensor into L2, ahead of its TMA load.
__device__ inline void tma_prefetch_4d(const CUtensorMap* map, int c0, int c1, int c2, int c3) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];" ::"l"(map), "r"(c0), "r"(c1),
               "r"(c2), "r"(c3)
               : "memory");
}

// Contiguous bytes, a multiple of 16, without a tensor map.
__device__ inline void tma_load_1d(void* to, const void* from, int bytes, ClusterTransactionBarrier& barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   cast_smem_ptr_to_uint(to)),
               "l"(from), "r"(bytes), "r"(cast_smem_ptr_to_uint(&barrier))
               : "memory");
}

// TMA store of one tile. Order: threads write shared memory, each calls fence_view_async_shared(), they meet at a
// barrier, one thread issues the store. tma_store_wait() returns when the stores have read shared memory.
// A consumer calls the same fence before it frees a stage that its threads have read with ordinary loads.
__device__ inline void fence_view_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ inline void tma_store_2d(const CUtensorMap* map, const void* from, int c0, int c1) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
               "r"(cast_smem_ptr_to_uint(from)), "r"(c0), "r"(c1)
               : "memory");
}
__device__ inline void tma_store_arrive() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ inline void tma_store_wait() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// ---- wgmma ----

// Shared-memory descriptor of a wgmma operand: 128-byte rows, 128-byte swizzle, atoms of 8 rows (1024 bytes, aligned to
// 1024). K-major: + 2 advances 32 bytes along K. MN-major: `block_stride` bytes lead to the next 64 16-bit channels;
// + 128 advances 16 rows of K.
__device__ inline uint64_t make_smem_desc(const void* address, int block_stride = 16) {
  constexpr uint64_t kAtomStride = 1024 >> 4, kSwizzle128 = 1;
  return (cast_smem_ptr_to_uint(address) & 0x3FFFF) >> 4 | static_cast<uint64_t>(block_stride >> 4) << 16 |
         kAtomStride << 32 | kSwizzle128 << 62;
}

__device__ inline void warpgroup_arrive() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void warpgroup_commit_batch() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ inline void warpgroup_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// ---- stmatrix: four 8 x 8 matrices of 16-bit elements from registers to shared memory ----

// Lane i passes the address of row i % 8 of matrix i / 8 (of that column if transposed). Word j of a thread holds
// columns 2 (lane % 4) and + 1 of row lane / 4 of matrix j.
__device__ inline void stmatrix_x4(void* row, const uint32_t (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(cast_smem_ptr_to_uint(row)),
               "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}
__device__ inline void stmatrix_x4_trans(void* column, const uint32_t (&words)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(cast_smem_ptr_to_uint(column)),
      "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
      : "memory");
}

} // namespace gpt2::sm90
