#include "engine/cuda/muon_cuda.h"

#include <cuda_bf16.h>

#include <algorithm>

namespace gpt2 {

namespace {

size_t piece_count(std::span<const MuonGroup> groups) {
  size_t count = 0;
  for (const MuonGroup& group : groups) count += group.pieces.size();
  return count;
}

} // namespace

MuonCuda::MuonCuda(Cuda& cuda, const CudaBuffers& b, const ParameterTable& table, std::span<const OwnedSlice> updated,
                   CudaRanks* ranks, int rank)
    : cuda_(cuda),
      b_(b),
      table_(table),
      ranks_(ranks),
      groups_(muon_groups(table, updated, ranks ? table.ranks() : 1, rank)),
      pieces_(std::max<size_t>(1, piece_count(groups_)) * sizeof(MuonPiece)) {
  std::vector<MuonPiece> all;
  for (const MuonGroup& group : groups_) {
    first_piece_.push_back(all.size());
    all.insert(all.end(), group.pieces.begin(), group.pieces.end());
  }
  copy_to_device(cuda_.stream, reinterpret_cast<MuonPiece*>(pieces_.data()), std::span<const MuonPiece>(all));
}

MuonPieces MuonCuda::pieces(size_t group) const {
  return {.data = reinterpret_cast<const MuonPiece*>(pieces_.data()) + first_piece_[group],
          .count = static_cast<int>(groups_[group].pieces.size()),
          .longest = groups_[group].longest_piece()};
}

void MuonCuda::momentum(size_t group, const MuonSettings& settings, bf16* out, bool flat) {
  muon_momentum(cuda_, {.out = out,
                        .flat = flat,
                        .momentum = b_.adam_m,
                        .grad = b_.grad,
                        .pieces = pieces(group),
                        .scalars = b_.step,
                        .guard = b_.guard,
                        .mu = settings.momentum,
                        .warmup_steps = settings.momentum_warmup});
}

void MuonCuda::orthogonalize_own(const MuonGroup& group, MuonIteration iteration) {
  orthogonalize(cuda_, {.out = b_.muon.out + group.first * group.elements(),
                        .in = b_.muon.in,
                        .gram = b_.muon.gram,
                        .poly = b_.muon.poly,
                        .batch = group.count,
                        .rows = group.rows,
                        .cols = group.cols,
                        .iteration = iteration});
}

// From the updates of all ranks.
void MuonCuda::fetch_own(const MuonGroup& group) {
  const int64_t elements = group.elements();
  for (int64_t i = 0; i < group.count; ++i) {
    CUDA_CHECK(cudaMemcpyAsync(b_.muon.in + i * elements,
                               b_.muon.flat + group.matrices[static_cast<size_t>(group.first + i)],
                               static_cast<size_t>(elements) * sizeof(bf16), cudaMemcpyDeviceToDevice, cuda_.stream));
  }
}

void MuonCuda::update(const MuonSettings& settings) {
  if (ranks_) {
    for (size_t i = 0; i < groups_.size(); ++i) momentum(i, settings, b_.muon.flat, true);
    ranks_->gather_blocks(b_.muon.flat); // 2 bytes an element
  }
  for (size_t i = 0; i < groups_.size(); ++i) {
    const MuonGroup& group = groups_[i];
    if (ranks_)
      fetch_own(group);
    else
      momentum(i, settings, b_.muon.in, false);
    orthogonalize_own(group, settings.iteration);
    if (ranks_) ranks_->gather(b_.muon.out, group.per_rank * group.elements() * static_cast<int64_t>(sizeof(bf16)));
    muon_update(cuda_, {.master = b_.master,
                        .weights = b_.weights,
                        .update = b_.muon.out,
                        .pieces = pieces(i),
                        .scalars = b_.step,
                        .lr = settings.lr,
                        .scale = muon_scale(group.rows, group.cols),
                        .weight_decay = settings.weight_decay,
                        .cautious_decay = settings.cautious_decay,
                        .update_square = &b_.step->updates.matrices});
  }
}

void MuonCuda::run_all_products() {
  for (const MuonGroup& group : groups_) orthogonalize_own(group, MuonIteration::newton_schulz);
}

} // namespace gpt2
