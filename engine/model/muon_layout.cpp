#include "engine/model/muon_layout.h"

#include <algorithm>

namespace gpt2 {
namespace {

MuonGroup& group_of(std::vector<MuonGroup>& groups, int64_t rows, int64_t cols) {
  const auto found =
      std::ranges::find_if(groups, [&](const MuonGroup& group) { return group.rows == rows && group.cols == cols; });
  if (found != groups.end()) return *found;
  return groups.emplace_back(MuonGroup{.rows = rows, .cols = cols});
}

void add_segments(MuonGroup& group, std::span<const OwnedSlice> updated) {
  for (size_t i = 0; i < group.matrices.size(); ++i) {
    const int64_t begin = group.matrices[i], end = begin + group.elements();
    const int64_t stacked = static_cast<int64_t>(i) * group.elements();
    for (const OwnedSlice& slice : updated) {
      const int64_t from = std::max(begin, slice.offset), to = std::min(end, slice.offset + slice.count);
      if (from >= to) continue;
      group.segments.push_back({.flat = from,
                                .compact = slice.at + from - slice.offset,
                                .stacked = stacked + from - begin,
                                .count = to - from});
    }
  }
}

} // namespace

int64_t MuonGroup::longest_segment() const {
  return segments.empty() ? 0 : std::ranges::max_element(segments, {}, &MuonSegment::count)->count;
}

std::vector<MuonGroup> muon_groups(const ParameterTable& table, std::span<const OwnedSlice> updated, int sharers,
                                   int rank) {
  std::vector<MuonGroup> groups;
  for (const ParameterTensor& tensor : table.tensors()) {
    if (!tensor.muon) continue;
    const int64_t parts = tensor.name.ends_with("c_attn.weight") ? 3 : 1, rows = tensor.rows / parts;
    MuonGroup& group = group_of(groups, rows, tensor.cols);
    for (int64_t part = 0; part < parts; ++part) group.matrices.push_back(tensor.offset + part * rows * tensor.cols);
  }
  for (MuonGroup& group : groups) {
    add_segments(group, updated);
    const auto all = static_cast<int64_t>(group.matrices.size());
    group.per_rank = (all + sharers - 1) / sharers;
    group.first = sharers > 1 ? rank * group.per_rank : 0;
    group.count = std::clamp<int64_t>(all - group.first, 0, group.per_rank);
  }
  return groups;
}

MuonWorkspace muon_workspace(std::span<const MuonGroup> groups, int sharers) {
  MuonWorkspace workspace;
  for (const MuonGroup& group : groups) {
    workspace.in = std::max(workspace.in, group.per_rank * group.elements());
    workspace.out = std::max(workspace.out, group.per_rank * sharers * group.elements());
    workspace.gram = std::max(workspace.gram, group.per_rank * group.side() * group.side());
  }
  return workspace;
}

} // namespace gpt2
