// The model state in a checkpoint. Both engines use the same names, so either resumes the other's runs:
//
//   params/<name>, adam_m/<name>, adam_v/<name>   (rows, cols) or (rows), FP32; each rank writes its own slices
//   muon_m/<name>                                 for Muon's matrices, instead of adam_m and adam_v
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

// A rank's compact buffers in host memory: its slices, each at OwnedSlice::at. A single slice over the whole table is
// the flat layout. adam_m also holds the momentum of Muon's matrices; adam_v is laid out by second_moment_slices().
struct FlatState {
  std::span<float> params, adam_m, adam_v;
};

// Checks every shape first: a checkpoint of another model throws Error(checkpoint) and changes nothing. Empty moment
// spans (inference) skip the moments. Any number of ranks may have written the checkpoint. Returns false if another
// optimizer wrote it: the moments are zeroed, and the caller must restart the count of updates.
bool load_tensors(StateReader& reader, const ParameterTable& table, std::span<const OwnedSlice> slices,
                  const FlatState& state);

// params/ alone.
void load_weights(StateReader& reader, const ParameterTable& table, std::span<const OwnedSlice> slices,
                  std::span<float> params);

GuardState load_guard(StateReader& reader, bool with_moments = true); // without: adam_step is 0

// A rank's slices of the state in host memory: the snapshot type of both engines.
class FlatSnapshot : public StateSnapshot {
 public:
  // Owns zeroed memory, or shares floats() floats that an asynchronous copy still fills: write_own() calls `wait`
  // first.
  FlatSnapshot(const ParameterTable& table, std::vector<OwnedSlice> slices, bool with_moments = true,
               std::shared_ptr<float> memory = nullptr, std::function<void()> wait = nullptr);
  static int64_t floats(const ParameterTable& table, std::span<const OwnedSlice> slices, bool with_moments);
  // params, adam_m and adam_v, contiguous in `memory`.
  static FlatState lay_out(float* memory, const ParameterTable& table, std::span<const OwnedSlice> slices,
                           bool with_moments);

  FlatState spans() { return state_; }
  void write_own(StateWriter& writer) const override;
  void write_common(StateWriter& writer) const override;
  bool of_muon() const override { return table_.optimizer() == Optimizer::muon; }

  GuardState guard{};
  std::optional<Fp8RecipeState> recipe;
  std::string gemm_plans; // empty: none

 private:
  const ParameterTable table_;
  const std::vector<OwnedSlice> slices_;
  const std::shared_ptr<float> memory_;
  const FlatState state_;
  const std::function<void()> wait_;
};

// The result of step_result().
StepResult step_result_of(const StepScalars& step, const GuardState& guard, double own_seconds);

// The result of evaluate(), from the loss of every position.
void sum_rows(const Batch& batch, std::span<const float> losses, std::span<LossSum> rows);

} // namespace gpt2
