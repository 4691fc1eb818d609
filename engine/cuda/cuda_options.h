// What a model on a GPU is made with, beside ModelOptions.
#pragma once

#include <string>

#include "engine/ranks/communicator.h"
#include "kernels/backend.h"

namespace gpt2 {

// Activations made again in the backward pass instead of kept.
enum class Recompute { none, gelu, block };

struct CudaModelOptions {
  int device = 0;             // as CUDA counts
  int compute_capability = 0; // of a GPU that is only planned for; 0: that of `device`
  bool deterministic = false;
  bool cuda_graph = true;
  Recompute recompute = Recompute::none;
  AttentionKind attention = AttentionKind::automatic;
  std::string plan_cache;    // file of tuned plans; empty: none
  SharingOptions sharing;    // of several ranks
  bool share_device = false; // several ranks may use one GPU
  std::string timeline;      // file for a trace of what two steps do on which stream; empty: none
  bool fuse_gelu = true;     // BF16: GELU in the product's epilogue (cuBLASLt) instead of a kernel of its own
};

} // namespace gpt2
