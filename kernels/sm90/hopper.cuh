// Hopper's asynchronous instructions, each wrapped in a tiny function: barriers in shared memory, tensor copies, and
// products of a warpgroup. They exist for sm_90a alone.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/device/ptx.cuh"

namespace gpt2::sm90 {

// ---- barriers ----

// Counts arrivals, and bytes that copies bring; a phase ends when both are complete. Waiters name a phase by its
// parity.
struct ClusterTransactionBarrier {
  uint64_t state;

  __device__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(cast_smem_ptr_to_uint(&state)), "r"(arrivals)
                 : "memory");
  }
  __device__ void arrive_and_expect_tx(int bytes) { // and arrives
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(cast_smem_ptr_to_uint(&state)),
                 "r"(bytes)
                 : "memory");
  }
  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(cast_smem_ptr_to_uint(&state)) : "memory");
  }
  // Arrives at the same barrier of block `rank` of the cluster. Releases nothing: a release to the cluster waits for
  // all stores of the warp, and what is handed over here has only been read.
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
  // The hardware may put the warp to sleep for so long; a warp that asks again and again takes issue slots from others.
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

// A barrier of the 128 threads of one warpgroup; 0 is __syncthreads().
__device__ inline void warpgroup_sync(int id) { asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory"); }

// Two warpgroups that take turns: one awaits its turn until the other has given it.
__device__ inline void pingpong_barrier_sync(int id) { asm volatile("bar.sync %0, 256;" ::"r"(id) : "memory"); }
__device__ inline void pingpong_barrier_arrive(int id) { asm volatile("bar.arrive %0, 256;" ::"r"(id) : "memory"); }

// ---- registers ----

template <int kRegisters>
__device__ inline void warpgroup_reg_dealloc() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void warpgroup_reg_alloc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- tensor copies, by one thread ----

__device__ inline void prefetch_tma_descriptor(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// A box of a tensor of 2, 4 or 5 dimensions to shared memory of this block, or of every block of the cluster in
// `blocks`, at the same place; each one's barrier gets the bytes.
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

// A box of a tensor of 4 dimensions from memory to L2, for a copy that will come.
__device__ inline void tma_prefetch_4d(const CUtensorMap* map, int c0, int c1, int c2, int c3) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];" ::"l"(map), "r"(c0), "r"(c1),
               "r"(c2), "r"(c3)
               : "memory");
}

// Neighbouring bytes, a multiple of 16.
__device__ inline void tma_load_1d(void* to, const void* from, int bytes, ClusterTransactionBarrier& barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   cast_smem_ptr_to_uint(to)),
               "l"(from), "r"(bytes), "r"(cast_smem_ptr_to_uint(&barrier))
               : "memory");
}

// A box from shared memory to a tensor of 2 dimensions. What threads have stored there must be fenced by each of them
// first; the memory may be used again when the thread that issued the copies has waited for their reading.
__device__ inline void fence_view_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ inline void tma_store_2d(const CUtensorMap* map, const void* from, int c0, int c1) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
               "r"(cast_smem_ptr_to_uint(from)), "r"(c0), "r"(c1)
               : "memory");
}
__device__ inline void tma_store_arrive() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ inline void tma_store_wait() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// ---- products of a warpgroup ----

// An operand in shared memory: rows of 128 bytes, swizzled by 128 bytes, 8 rows an atom of 1024 bytes, whose address is
// a multiple of 1024. Where the rows run along the contracted dimension, 32 bytes further along them is 2 more. Where
// they run across it, those of the next 64 16-bit channels are `block_stride` bytes further, and 16 terms are 128 more.
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

// ---- matrices of 8 x 8 16-bit elements from registers to shared memory ----

// Lane i gives the address of row i % 8 of matrix i / 8, or of that column if transposed; a thread's word of a matrix
// holds two neighbouring columns of row lane / 4.
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
