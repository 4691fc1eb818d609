// What kernels of several warpgroups have in common, one of which copies tiles to a ring in shared memory while the
// others multiply them: registers, barriers, the place in the ring, and the launch by clusters.
#pragma once

#include "kernels/cuda/cuda_backend.h"
#include "kernels/device/vector.cuh"
#include "kernels/sm90/hopper.cuh"

namespace gpt2::sm90 {

constexpr int kBlockM = 64; // of a product instruction, and of an epilogue
constexpr int kWarpgroup = 128;
constexpr int kAlignment = 1024; // of swizzled operands
constexpr int kMaxSharedBytes = 227 * 1024, kBarrierBytes = 512;

// Registers of a thread that copies and of one that multiplies, by the warpgroups that multiply: together no more than
// the block starts with, 168, 128 or 96 of each thread.
constexpr int producer_registers(int consumers) { return consumers == 2 ? 40 : 24; }
constexpr int consumer_registers(int consumers) { return consumers == 2 ? 232 : consumers == 3 ? 160 : 112; }

// Of barriers, 0 is the block's, and each warpgroup that multiplies has one for its epilogue and one for its turn.
__device__ constexpr int epilogue_barrier_id(int consumer) { return 1 + consumer; }
template <int kConsumers>
__device__ constexpr int pingpong_barrier_id(int consumer) {
  return 1 + kConsumers + consumer % kConsumers;
}

// The same for the whole warp, and known to be: it may then live in registers of the warp.
__device__ inline int warp_uniform(int value) { return __shfl_sync(0xFFFFFFFFu, value, 0); }

// A launch by clusters of so many blocks, which needs its grid still.
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

  // Lets the kernel have so much shared memory.
  template <class Kernel>
  void prepare(Kernel* kernel) const {
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(config.dynamicSmemBytes)));
  }
};

// Where in the ring a warp is, and in which round.
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

// To the compiler: these registers get their values here, where the products have been waited for.
template <int kCount>
__device__ inline void warpgroup_fence_operand(float (&accumulators)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(accumulators[i])::"memory");
}

} // namespace gpt2::sm90
