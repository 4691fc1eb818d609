// The matrices that Muon orthogonalizes, in groups of equal shape, and the segments of them that a rank updates. Q, K
// and V are three matrices.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/parameters.h"
#include "kernels/muon.h"

namespace gpt2 {

// GPT-2 has three groups: 4 per block (C, C), one (4C, C), one (C, 4C). Matrices are stacked in this order.
struct MuonGroup {
  int64_t rows, cols;
  std::vector<int64_t> matrices = {};     // offsets in the flat buffer
  std::vector<MuonSegment> segments = {}; // updated by this rank, in stack order
  // Sharded: each rank orthogonalizes an equal part of the stack; the last ranks may have fewer.
  int64_t per_rank = 0;         // matrices per part
  int64_t first = 0, count = 0; // this rank's

  int64_t elements() const { return rows * cols; } // of one matrix
  int64_t side() const { return rows < cols ? rows : cols; }
  int64_t longest_segment() const;
};

// `updated`: this rank's slices. sharers: ranks that orthogonalize different matrices; 1: each rank does all.
std::vector<MuonGroup> muon_groups(const ParameterTable& table, std::span<const OwnedSlice> updated, int sharers,
                                   int rank);

// Elements for the largest group. 124M on one rank: 226 MB in BF16, less than AdamW's 340 MB of second moments for the
// same matrices.
struct MuonWorkspace {
  int64_t in = 0;   // this rank's matrices
  int64_t out = 0;  // all ranks' matrices, padded to equal parts
  int64_t gram = 0; // (side, side) for each of this rank's matrices
};
MuonWorkspace muon_workspace(std::span<const MuonGroup> groups, int sharers);

} // namespace gpt2
