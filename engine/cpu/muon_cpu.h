// The Muon update of the blocks' matrices on the CPU.
#pragma once

#include <vector>

#include "engine/cpu/gpt2_cpu_buffers.h"
#include "engine/model/muon_layout.h"
#include "engine/ranks/communicator.h"

namespace gpt2 {

class MuonCpu {
 public:
  // `updated`: this rank's slices. sharded: ranks update different slices and orthogonalize different matrices.
  MuonCpu(const ParameterTable& table, std::span<const OwnedSlice> updated, Communicator& communicator, bool sharded);

  struct State {
    float* params;     // flat
    float* momentum;   // compact
    const float* grad; // flat, summed over ranks where this rank updates
    StepScalars* scalars;
    const GuardState* guard;
  };
  void update(Cpu& cpu, const MuonSettings& settings, const State& state);

  static int64_t bytes(const ParameterTable& table, int sharers); // of the buffers

 private:
  const ParameterTable& table_;
  Communicator& communicator_;
  const int sharers_;
  const std::vector<MuonGroup> groups_;
  const std::vector<std::vector<MuonSegment>> params_segments_; // by group, with offsets in the flat parameters
  CpuBuffer flat_;                                              // u of all matrices; empty unless sharded
  CpuBuffer in_, out_;                                          // one group
  CpuBuffer gram_, poly_;                                       // one matrix
};

} // namespace gpt2
