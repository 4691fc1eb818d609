// What both engines write into a checkpoint, under the same names, so that one continues what the other began:
//
//   params/<name>, adam_m/<name>, adam_v/<name>   (rows, cols) or (rows), FP32
//   guard/losses, guard/norms, guard/filled, guard/next, guard/skipped_in_a_row, adam_step
#pragma once

#include <span>

#include "engine/model/parameters.h"
#include "engine/model/state.h"
#include "kernels/step_verdict.h"

namespace gpt2 {

// Flat buffers in the table's layout, in host memory.
struct FlatState {
  std::span<float> params, adam_m, adam_v;
};

void save_tensors(StateWriter& writer, const ParameterTable& table, const FlatState& state);
// Every shape is checked first: a checkpoint of another model throws Error(checkpoint) and changes nothing.
void load_tensors(StateReader& reader, const ParameterTable& table, const FlatState& state);

void save_guard(StateWriter& writer, const GuardState& guard);
GuardState load_guard(StateReader& reader);

} // namespace gpt2
