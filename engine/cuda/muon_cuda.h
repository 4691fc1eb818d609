// An update under Muon, on the GPU: Muon's part of it, and AdamW's.
#pragma once

#include <span>
#include <vector>

#include "engine/cuda/cuda_buffers.h"
#include "engine/cuda/cuda_ranks.h"
#include "engine/model/muon_layout.h"
#include "kernels/adamw_segments.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/memory.h"

namespace gpt2 {

class MuonCuda {
 public:
  // `updated`: what this rank updates; `adamw`: of that, what AdamW updates (second_moment_slices()). ranks: null
  // unless ranks update different slices; they then orthogonalize different matrices too. `cuda`, `b`, `table` and
  // `ranks` must outlive it.
  MuonCuda(CudaStream& cuda, const CudaBuffers& b, const ParameterTable& table, std::span<const OwnedSlice> updated,
           std::span<const OwnedSlice> adamw, CudaRanks* ranks, int rank);

  // Momentum, orthogonalized updates and weights, as the verdict in b.step says. The GEMMs run in any case: on scratch.
  void update_matrices(const MuonSettings& settings);
  void update_rest(const AdamWSettings& settings);

  // All GEMMs of an update once, so that plans exist for them.
  void run_all_products();

 private:
  void momentum(size_t group, const MuonSettings& settings, bf16* out, bool flat);
  void orthogonalize_own(const MuonGroup& group, MuonIteration iteration);
  void fetch_own(const MuonGroup& group);
  MuonSegments segments(size_t group) const;

  CudaStream& cuda_;
  const CudaBuffers& b_;
  CudaRanks* const ranks_;
  const std::vector<MuonGroup> groups_;
  DeviceMemory segments_;             // of MuonSegment: all groups', one after the other
  std::vector<size_t> first_segment_; // of each group
  std::vector<AdamWSegment> long_;    // AdamW: a launch each
  DeviceMemory short_;                // of AdamWSegment: one launch
  int short_count_ = 0;
  int64_t longest_short_ = 0;
};

} // namespace gpt2
