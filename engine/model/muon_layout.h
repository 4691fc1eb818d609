// Which matrices Muon orthogonalizes, in groups of equal shape, and what of them a rank updates. The three parts of qkv
// are three matrices.
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
  std::vector<int64_t> matrices;     // offsets in the flat buffer
  std::vector<MuonSegment> segments; // what this rank updates, in the order of the stack
  // Ranks that share the work orthogonalize equal parts of the stack; the last ones may have less to do.
  int64_t per_rank;     // matrices of a part
  int64_t first, count; // this rank's

  int64_t elements() const { return rows * cols; } // of one matrix
  int64_t side() const { return rows < cols ? rows : cols; }
  int64_t longest_segment() const;
};

// `updated`: this rank's slices. sharers: ranks that orthogonalize different matrices; 1: each does all of them.
std::vector<MuonGroup> muon_groups(const ParameterTable& table, std::span<const OwnedSlice> updated, int sharers,
                                   int rank);

// Room for the largest group, in elements. 124M on one rank: 226 MB in BF16, less than the 340 MB of second moments
// that Muon does not keep.
struct MuonRoom {
  int64_t in = 0;   // this rank's matrices
  int64_t out = 0;  // all of them, padded to equal parts
  int64_t gram = 0; // this rank's, (side, side) each
};
MuonRoom muon_room(std::span<const MuonGroup> groups, int sharers);

} // namespace gpt2
