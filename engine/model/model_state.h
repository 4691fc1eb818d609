// What both engines write into a checkpoint, under the same names, so that one continues what the other began:
//
//   params/<name>, adam_m/<name>, adam_v/<name>   (rows, cols) or (rows), FP32; each rank its own pieces of them
//   muon_m/<name>                                 of Muon's matrices, instead of adam_m and adam_v
//   guard/losses, guard/norms, guard/filled, guard/next, guard/skipped_in_a_row, adam_step
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/model/batch.h"
#include "engine/model/model.h"
#include "engine/model/parameters.h"
#include "engine/model/state.h"
#include "kernels/step_verdict.h"

namespace gpt2 {

// A rank's compact buffers, in host memory: the slices it owns, each at its OwnedSlice::at. One slice over everything
// makes them the table's flat layout. adam_m holds the one moment of Muon's matrices too; adam_v is a buffer of
// second_moment_slices().
struct FlatState {
  std::span<float> params, adam_m, adam_v;
};

// Every shape is checked first: a checkpoint of another model throws Error(checkpoint) and changes nothing. Without
// room for moments (a model that does not train) they are left out. How many ranks wrote it does not matter. Returns
// false where another optimizer wrote it: the moments are zeros then, and the count of updates must start anew.
bool load_tensors(StateReader& reader, const ParameterTable& table, std::span<const OwnedSlice> slices,
                  const FlatState& state);

// params/ alone.
void load_weights(StateReader& reader, const ParameterTable& table, std::span<const OwnedSlice> slices,
                  std::span<float> params);

void save_guard(StateWriter& writer, const GuardState& guard);
GuardState load_guard(StateReader& reader, bool with_moments = true); // without: no update has been counted

// A rank's slices of the state in host memory: what both engines' snapshots are.
class FlatSnapshot : public StateSnapshot {
 public:
  // In memory of its own, zeros.
  FlatSnapshot(const ParameterTable& table, std::vector<OwnedSlice> slices, bool with_moments = true);
  // In memory that is still being filled, floats() of it: whoever reads it calls `wait` first.
  FlatSnapshot(const ParameterTable& table, std::vector<OwnedSlice> slices, bool with_moments,
               std::shared_ptr<float> memory, std::function<void()> wait);
  static int64_t floats(const ParameterTable& table, std::span<const OwnedSlice> slices, bool with_moments);
  // One after the other in that memory.
  static FlatState lay_out(float* memory, const ParameterTable& table, std::span<const OwnedSlice> slices,
                           bool with_moments);

  FlatState spans() { return state_; }
  void write_own(StateWriter& writer) const override;
  void write_common(StateWriter& writer) const override;
  bool of_muon() const override { return table_.optimizer() == Optimizer::muon; }

  GuardState guard{};
  std::optional<Fp8RecipeState> recipe;
  std::string matmul_plans; // empty: none

 private:
  const ParameterTable table_;
  const std::vector<OwnedSlice> slices_;
  const std::shared_ptr<float> memory_;
  const FlatState state_;
  const std::function<void()> wait_;
};

// What evaluate() answers, from the loss of every position.
void sum_rows(const Batch& batch, std::span<const float> losses, std::span<LossSum> rows);

} // namespace gpt2
