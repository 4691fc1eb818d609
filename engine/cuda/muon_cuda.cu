#include "engine/cuda/muon_cuda.h"

#include <cuda_bf16.h>

#include <algorithm>

namespace gpt2 {

namespace {

size_t segment_count(std::span<const MuonGroup> groups) {
  size_t count = 0;
  for (const MuonGroup& group : groups) count += group.segments.size();
  return count;
}

constexpr int64_t kLongSegment = 1 << 16; // elements: between a block's vectors and an embedding

} // namespace

MuonCuda::MuonCuda(CudaStream& cuda, const CudaBuffers& b, const ParameterTable& table,
                   std::span<const OwnedSlice> updated, std::span<const OwnedSlice> adamw, CudaRanks* ranks, int rank)
    : cuda_(cuda),
      b_(b),
      ranks_(ranks),
      groups_(muon_groups(table, updated, ranks ? table.ranks() : 1, rank)),
      segments_(std::max<size_t>(1, segment_count(groups_)) * sizeof(MuonSegment)),
      short_(std::max<size_t>(1, adamw.size()) * sizeof(AdamWSegment)) {
  std::vector<MuonSegment> all;
  for (const MuonGroup& group : groups_) {
    first_segment_.push_back(all.size());
    all.insert(all.end(), group.segments.begin(), group.segments.end());
  }
  copy_to_device(cuda_.stream, reinterpret_cast<MuonSegment*>(segments_.data()), std::span<const MuonSegment>(all));

  std::vector<AdamWSegment> short_segments;
  for (const auto [offset, count, at] : adamw) {
    const AdamWSegment segment{
        .flat = offset, .compact = compact_offset(updated, offset), .second = at, .count = count};
    (count > kLongSegment ? long_ : short_segments).push_back(segment);
    if (count <= kLongSegment) longest_short_ = std::max(longest_short_, count);
  }
  short_count_ = static_cast<int>(short_segments.size());
  copy_to_device(cuda_.stream, reinterpret_cast<AdamWSegment*>(short_.data()),
                 std::span<const AdamWSegment>(short_segments));
}

MuonSegments MuonCuda::segments(size_t group) const {
  return {.data = reinterpret_cast<const MuonSegment*>(segments_.data()) + first_segment_[group],
          .count = static_cast<int>(groups_[group].segments.size()),
          .longest = groups_[group].longest_segment()};
}

void MuonCuda::momentum(size_t group, const MuonSettings& settings, bf16* out, bool flat) {
  muon_momentum(cuda_, {.out = out,
                        .flat = flat,
                        .momentum = b_.adam_m,
                        .grad = b_.grad,
                        .segments = segments(group),
                        .scalars = b_.step,
                        .guard = b_.guard,
                        .mu = settings.momentum,
                        .warmup_steps = settings.momentum_warmup});
}

void MuonCuda::orthogonalize_own(const MuonGroup& group) {
  orthogonalize(cuda_, {.out = b_.muon.out + group.first * group.elements(),
                        .in = b_.muon.in,
                        .gram = b_.muon.gram,
                        .poly = b_.muon.poly,
                        .batch = group.count,
                        .rows = group.rows,
                        .cols = group.cols});
}

// Copies this rank's matrices out of the gathered updates.
void MuonCuda::fetch_own(const MuonGroup& group) {
  const int64_t elements = group.elements();
  for (int64_t i = 0; i < group.count; ++i) {
    CUDA_CHECK(cudaMemcpyAsync(b_.muon.in + i * elements,
                               b_.muon.flat + group.matrices[static_cast<size_t>(group.first + i)],
                               static_cast<size_t>(elements) * sizeof(bf16), cudaMemcpyDeviceToDevice, cuda_.stream));
  }
}

void MuonCuda::update_matrices(const MuonSettings& settings) {
  if (ranks_) {
    for (size_t i = 0; i < groups_.size(); ++i) momentum(i, settings, b_.muon.flat, true);
    ranks_->gather_blocks(b_.muon.flat); // 2 bytes per element
  }
  for (size_t i = 0; i < groups_.size(); ++i) {
    const MuonGroup& group = groups_[i];
    if (ranks_)
      fetch_own(group);
    else
      momentum(i, settings, b_.muon.in, false);
    orthogonalize_own(group);
    if (ranks_) ranks_->gather(b_.muon.out, group.per_rank * group.elements() * static_cast<int64_t>(sizeof(bf16)));
    muon_update(cuda_, {.master = b_.master,
                        .weights = b_.weights,
                        .update = b_.muon.out,
                        .segments = segments(i),
                        .scalars = b_.step,
                        .lr = settings.lr,
                        .scale = muon_scale(group.rows, group.cols),
                        .weight_decay = settings.weight_decay,
                        .cautious_decay = settings.cautious_decay,
                        .update_square = &b_.step->updates.matrices});
  }
}

void MuonCuda::update_rest(const AdamWSettings& settings) {
  const auto [lr, beta1, beta2, eps, weight_decay] = settings;
  double* const square = &b_.step->updates.adamw;
  for (const auto [flat, compact, second, count] : long_) {
    adamw(cuda_, {.master = b_.master + compact,
                  .weights = b_.weights + flat,
                  .m = b_.adam_m + compact,
                  .v = b_.adam_v + second,
                  .grad = b_.grad + flat,
                  .decay_mask = b_.decay_mask + flat / kDecayGranule,
                  .scalars = b_.step,
                  .guard = b_.guard,
                  .count = count,
                  .lr = lr,
                  .beta1 = beta1,
                  .beta2 = beta2,
                  .eps = eps,
                  .weight_decay = weight_decay,
                  .update_square = square});
  }
  adamw_segments(cuda_, {.master = b_.master,
                         .weights = b_.weights,
                         .m = b_.adam_m,
                         .v = b_.adam_v,
                         .grad = b_.grad,
                         .decay_mask = b_.decay_mask,
                         .segments = reinterpret_cast<const AdamWSegment*>(short_.data()),
                         .count = short_count_,
                         .longest = longest_short_,
                         .scalars = b_.step,
                         .guard = b_.guard,
                         .lr = lr,
                         .beta1 = beta1,
                         .beta2 = beta2,
                         .eps = eps,
                         .weight_decay = weight_decay,
                         .update_square = square});
}

void MuonCuda::run_all_gemms() {
  for (const MuonGroup& group : groups_) orthogonalize_own(group);
}

} // namespace gpt2
