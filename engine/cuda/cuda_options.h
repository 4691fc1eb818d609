// What a model on a GPU is made with, beside ModelOptions.
#pragma once

#include <cstdint>
#include <string>

#include "engine/ranks/communicator.h"
#include "kernels/backend.h"

namespace gpt2 {

// Activations recomputed in the backward pass instead of saved.
enum class Recompute { none, gelu, block, automatic }; // automatic: block where none does not fit

struct CudaModelOptions {
  int device = 0;             // CUDA's index
  int compute_capability = 0; // of a dry run's GPU; 0: that of `device`
  bool deterministic = false;
  bool cuda_graph = true;
  Recompute recompute = Recompute::none;
  AttentionKind attention = AttentionKind::automatic;
  KernelChoice kernels = KernelChoice::automatic;
  int64_t memory_limit = 0;  // bytes of device memory that this process may allocate; 0: all
  std::string plan_cache;    // file of tuned GEMM plans; empty: none
  SharingOptions sharing;    // several ranks
  bool share_device = false; // several ranks may use one GPU
  std::string timeline;      // file for a trace of two steps by stream; empty: none
  bool fuse_gelu = true;     // BF16: GELU in cuBLASLt's epilogue instead of a separate kernel
};

} // namespace gpt2
