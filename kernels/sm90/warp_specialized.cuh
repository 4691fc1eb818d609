// Parts of the warp-specialized kernels: one producer warpgroup issues TMA loads into a pipeline of shared-memory
// stages, the consumer warpgroups run wgmma. Here: register split, barrier ids, pipeline state, cluster launch.
#pragma once

#include "kernels/cuda/cuda_backend.h"
#include "kernels/device/vector.cuh"
#include "kernels/sm90/hopper.cuh"

namespace gpt2::sm90 {

constexpr int kBlockM = 64; // rows of one wgmma, and of one epilogue call
constexpr int kWarpgroup = 128;
constexpr int kAlignment = 1024; // bytes, of operands with the 128-byte swizzle
constexpr int kMaxSharedBytes = 227 * 1024, kBarrierBytes = 512;

// setmaxnreg values for 2, 3 or 4 consumer warpgroups.
constexpr int producer_registers(int consumers) { return consumers == 2 ? 40 : 24; }
constexpr int consumer_registers(int consumers) { return consumers == 2 ? 232 : consumers == 3 ? 160 : 112; }
constexpr bool registers_suffice(int consumers) { // of the 65,536 that a CTA starts with, 8 at a time per thread
  const int at_start = 65536 / ((1 + consumers) * kWarpgroup) / 8 * 8;
  return producer_registers(consumers) + consumers * consumer_registers(consumers) <= (1 + consumers) * at_start;
}
static_assert(registers_suffice(2) && registers_suffice(3) && registers_suffice(4),
              "setmaxnreg.inc would never return");

// Named barriers: 0 is __syncthreads(); each consumer warpgroup has one for its epilogue and one for the ping-pong
// order.
__device__ constexpr int epilogue_barrier_id(int consumer) { return 1 + consumer; }
template <int kConsumers>
__device__ constexpr int pingpong_barrier_id(int consumer) {
  return 1 + kConsumers + consumer % kConsumers;
}

// Marks `value` as warp-uniform, so that it can live in a uniform register.
__device__ inline int warp_uniform(int value) { return __shfl_sync(0xFFFFFFFFu, value, 0); }

// Cluster launch; the caller sets gridDim.
struct ClusterLaunch {
  cudaLaunchAttribute cluster{};
  cudaLaunchConfig_t config{};

  ClusterLaunch(const CudaStream& cuda, int blocks, int threads, int shared_bytes) {
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
    config.stream = cuda.stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
  }
  ClusterLaunch(const ClusterLaunch&) = delete; // config points into it
  ClusterLaunch& operator=(const ClusterLaunch&) = delete;

  // Opts in to more than 48 KB of dynamic shared memory.
  template <class Kernel>
  void prepare(Kernel* kernel) const {
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(config.dynamicSmemBytes)));
  }
};

// Stage index and mbarrier phase of a pipeline, as cutlass::PipelineState.
template <int kStages>
struct PipelineState {
  int index = 0;
  uint32_t phase = 0;
  __device__ void advance(int by = 1) {
    phase ^= by / kStages & 1;
    index += by % kStages;
    if (index >= kStages) {
      index -= kStages;
      phase ^= 1;
    }
  }
};

// Compiler fence: keeps reads of the accumulators behind warpgroup_wait().
template <int kCount>
__device__ inline void warpgroup_fence_operand(float (&accumulators)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(accumulators[i])::"memory");
}

} // namespace gpt2::sm90
