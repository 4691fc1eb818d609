#include "engine/cpu/muon_cpu.h"

#include <algorithm>

namespace gpt2 {
namespace {

int64_t largest_square(std::span<const MuonGroup> groups) {
  const int64_t side = std::ranges::max_element(groups, {}, &MuonGroup::side)->side();
  return side * side;
}

// Segments of the flat parameters, the CPU engine's master weights.
std::vector<std::vector<MuonSegment>> segments_of_params(std::span<const MuonGroup> groups) {
  std::vector<std::vector<MuonSegment>> all;
  for (const MuonGroup& group : groups) {
    for (MuonSegment& segment : all.emplace_back(group.segments)) segment.compact = segment.flat;
  }
  return all;
}

MuonSegments view(const MuonGroup& group, const std::vector<MuonSegment>& segments) {
  return {.data = segments.data(), .count = static_cast<int>(segments.size()), .longest = group.longest_segment()};
}

} // namespace

MuonCpu::MuonCpu(const ParameterTable& table, std::span<const OwnedSlice> updated, Communicator& communicator,
                 bool sharded)
    : table_(table),
      communicator_(communicator),
      sharers_(sharded ? communicator.ranks() : 1),
      groups_(muon_groups(table, updated, sharers_, communicator.rank())),
      params_segments_(segments_of_params(groups_)),
      flat_(sharers_ > 1 ? table.size() : 0),
      in_(muon_workspace(groups_, sharers_).in),
      out_(muon_workspace(groups_, sharers_).out),
      gram_(largest_square(groups_)),
      poly_(largest_square(groups_)) {}

int64_t MuonCpu::bytes(const ParameterTable& table, int sharers) {
  const std::vector<MuonGroup> groups = muon_groups(table, {}, sharers, 0);
  const MuonWorkspace workspace = muon_workspace(groups, sharers);
  const int64_t floats = (sharers > 1 ? table.size() : 0) + workspace.in + workspace.out + 2 * largest_square(groups);
  return floats * static_cast<int64_t>(sizeof(float));
}

void MuonCpu::update(Cpu& cpu, const MuonSettings& settings, const State& state) {
  const auto momentum = [&](const MuonGroup& group, float* out, bool flat) {
    muon_momentum(cpu, {.out = out,
                        .flat = flat,
                        .momentum = state.momentum,
                        .grad = state.grad,
                        .segments = view(group, group.segments),
                        .scalars = state.scalars,
                        .guard = state.guard,
                        .mu = settings.momentum,
                        .warmup_steps = settings.momentum_warmup});
  };
  if (state.scalars->verdict != Verdict::applied) return; // every rank has the same verdict
  if (sharers_ > 1) {
    for (const MuonGroup& group : groups_) momentum(group, flat_.data(), true);
    gather_buckets(communicator_, table_.buckets().subspan(1, table_.buckets().size() - 2), flat_); // the blocks
  }
  for (size_t index = 0; index < groups_.size(); ++index) {
    const MuonGroup& group = groups_[index];
    const int64_t elements = group.elements();
    if (sharers_ == 1) {
      momentum(group, in_.data(), false);
    } else {
      for (int64_t i = 0; i < group.count; ++i)
        std::copy_n(flat_.data() + group.matrices[static_cast<size_t>(group.first + i)], elements,
                    in_.data() + i * elements);
    }
    orthogonalize(cpu, {.out = out_.data() + group.first * elements,
                        .in = in_.data(),
                        .gram = gram_.data(),
                        .poly = poly_.data(),
                        .batch = group.count,
                        .rows = group.rows,
                        .cols = group.cols});
    if (sharers_ > 1)
      communicator_.all_gather(out_.data(), group.per_rank * elements * static_cast<int64_t>(sizeof(float)));
    muon_update(cpu, {.master = state.params,
                      .weights = nullptr,
                      .update = out_.data(),
                      .segments = view(group, params_segments_[index]),
                      .scalars = state.scalars,
                      .lr = settings.lr,
                      .scale = muon_scale(group.rows, group.cols),
                      .weight_decay = settings.weight_decay,
                      .cautious_decay = settings.cautious_decay,
                      .update_square = &state.scalars->updates.matrices});
  }
}

} // namespace gpt2
