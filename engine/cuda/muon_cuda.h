// The optimizer update under --optimizer muon on the GPU: Muon for the blocks' matrices, AdamW for the rest.
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
  // `updated`: this rank's slices; `adamw`: the parts that AdamW updates (second_moment_slices()). `ranks`: null unless
  // sharded; sharded ranks also orthogonalize different matrices. `cuda`, `b`, `table` and `ranks` must outlive it.
  MuonCuda(CudaStream& cuda, const CudaBuffers& b, const ParameterTable& table, std::span<const OwnedSlice> updated,
           std::span<const OwnedSlice> adamw, CudaRanks* ranks, int rank);

  // Momentum, orthogonalization, weights. A skipped step (verdict in b.step) still runs the GEMMs, on scratch memory.
  void update_matrices(const MuonSettings& settings);
  void update_rest(const AdamWSettings& settings);

  // Runs all GEMMs of an update once, to make their plans.
  void run_all_gemms();

 private:
  void momentum(size_t group, const MuonSettings& settings, bf16* out, bool flat);
  void orthogonalize_own(const MuonGroup& group);
  void fetch_own(const MuonGroup& group);
  MuonSegments segments(size_t group) const;

  CudaStream& cuda_;
  const CudaBuffers& b_;
  CudaRanks* const ranks_;
  const std::vector<MuonGroup> groups_;
  DeviceMemory segments_;             // of MuonSegment: all groups', contiguous
  std::vector<size_t> first_segment_; // of each group
  std::vector<AdamWSegment> long_;    // AdamW: one launch per segment
  DeviceMemory short_;                // of AdamWSegment: one launch for all
  int short_count_ = 0;
  int64_t longest_short_ = 0;
};

} // namespace gpt2
