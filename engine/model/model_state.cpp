// Model state in a checkpoint: names, shapes, slices. What both engines make of a step's sums and losses.
#include "engine/model/model_state.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/formatted.h"

namespace gpt2 {
namespace {

constexpr const char *kParams = "params/", *kAdamM = "adam_m/", *kAdamV = "adam_v/", *kMuonM = "muon_m/";

const char* first_moment(const ParameterTensor& tensor) { return tensor.muon ? kMuonM : kAdamM; }
const char* weights(const ParameterTensor&) { return kParams; }
const char* second_moment(const ParameterTensor&) { return kAdamV; }
using Prefix = const char* (*)(const ParameterTensor&);

std::shared_ptr<float> zeroed(int64_t count) {
  return {new float[static_cast<size_t>(count)](), std::default_delete<float[]>()};
}

FlatState weights_alone(std::span<float> params) { return {.params = params, .adam_m = {}, .adam_v = {}}; }

// A rank's slice of one tensor in a checkpoint.
struct StoredSlice {
  const ParameterTensor& tensor;
  FloatRange range;
};

// The slices of a rank's compact buffers: weights, then moments unless their spans are empty. At most one per tensor
// and buffer: no tensor crosses two slices of a rank.
std::vector<StoredSlice> stored_slices(const ParameterTable& table, std::span<const OwnedSlice> slices,
                                       const FlatState& state) {
  std::vector<StoredSlice> stored;
  const auto add = [&](Prefix prefix, std::span<const OwnedSlice> owned, std::span<float> compact) {
    for (const ParameterTensor& tensor : table.tensors()) {
      for (const OwnedSlice& slice : owned) {
        const auto [begin, count, at] = slice_of(tensor, slice);
        if (count == 0) continue;
        const std::span<float> values = compact.subspan(static_cast<size_t>(at), static_cast<size_t>(count));
        stored.push_back({tensor, {prefix(tensor) + tensor.name, begin, values}});
      }
    }
  };
  add(weights, slices, state.params);
  if (state.adam_m.empty()) return stored;
  add(first_moment, slices, state.adam_m);
  add(second_moment, second_moment_slices(table, slices), state.adam_v);
  return stored;
}

void read_slices(StateReader& reader, const ParameterTable& table, std::span<const OwnedSlice> slices,
                 const FlatState& state) {
  std::vector<FloatRange> ranges;
  for (StoredSlice& slice : stored_slices(table, slices, state)) ranges.push_back(std::move(slice.range));
  reader.read_ranges(ranges);
}

void check_shape(StateReader& reader, const std::string& name, const std::vector<int64_t>& expected) {
  const std::string hint = "resume with the --model, --seq_len and shape that the checkpoint was written with";
  if (!reader.has(name)) throw Error(ExitCode::checkpoint, "the checkpoint has no tensor " + name, hint);
  const std::vector<int64_t> found = reader.shape(name);
  if (found == expected) return;
  throw Error(ExitCode::checkpoint,
              "the checkpoint is of another model: " + name + " is (" + listed(found) + "), expected (" +
                  listed(expected) + ")",
              hint);
}

void check_shapes(StateReader& reader, const ParameterTable& table, Prefix prefix) {
  for (const ParameterTensor& tensor : table.tensors()) {
    if (prefix == second_moment && tensor.muon) continue;
    check_shape(reader, prefix(tensor) + tensor.name, tensor.shape());
  }
}

// False for a checkpoint of the other optimizer: Adam's first moment is not Muon's momentum.
bool has_moments_for(const StateReader& reader, const ParameterTable& table) {
  const ParameterTensor& matrix = table.find("h.0.attn.c_attn.weight");
  return !reader.has((matrix.muon ? kAdamM : kMuonM) + matrix.name);
}

} // namespace

bool load_tensors(StateReader& reader, const ParameterTable& table, std::span<const OwnedSlice> slices,
                  const FlatState& state) {
  const bool same_optimizer = state.adam_m.empty() || has_moments_for(reader, table);
  check_shapes(reader, table, weights);
  if (same_optimizer && !state.adam_m.empty()) {
    for (const Prefix prefix : {first_moment, second_moment}) check_shapes(reader, table, prefix);
  }
  if (!same_optimizer) {
    std::ranges::fill(state.adam_m, 0.0f);
    std::ranges::fill(state.adam_v, 0.0f);
  }
  read_slices(reader, table, slices, same_optimizer ? state : weights_alone(state.params));
  return same_optimizer;
}

void load_weights(StateReader& reader, const ParameterTable& table, std::span<const OwnedSlice> slices,
                  std::span<float> params) {
  check_shapes(reader, table, weights);
  read_slices(reader, table, slices, weights_alone(params));
}

int64_t FlatSnapshot::floats(const ParameterTable& table, std::span<const OwnedSlice> slices, bool with_moments) {
  if (!with_moments) return compact_size(slices);
  return 2 * compact_size(slices) + compact_size(second_moment_slices(table, slices));
}

FlatState FlatSnapshot::lay_out(float* memory, const ParameterTable& table, std::span<const OwnedSlice> slices,
                                bool with_moments) {
  const auto count = static_cast<size_t>(compact_size(slices));
  if (!with_moments) return weights_alone({memory, count});
  const auto second = static_cast<size_t>(compact_size(second_moment_slices(table, slices)));
  return {.params = {memory, count}, .adam_m = {memory + count, count}, .adam_v = {memory + 2 * count, second}};
}

FlatSnapshot::FlatSnapshot(const ParameterTable& table, std::vector<OwnedSlice> slices, bool with_moments,
                           std::shared_ptr<float> memory, std::function<void()> wait)
    : table_(table),
      slices_(std::move(slices)),
      memory_(memory ? std::move(memory) : zeroed(floats(table, slices_, with_moments))),
      state_(lay_out(memory_.get(), table, slices_, with_moments)),
      wait_(std::move(wait)) {}

void FlatSnapshot::write_own(StateWriter& writer) const {
  if (wait_) wait_();
  for (const auto& [tensor, range] : stored_slices(table_, slices_, state_)) {
    if (static_cast<int64_t>(range.values.size()) == tensor.count())
      writer.write_floats(range.name, tensor.shape(), range.values);
    else
      writer.write_slice(range.name, tensor.shape(), range.begin, range.values);
  }
}

void FlatSnapshot::write_common(StateWriter& writer) const {
  const int64_t window[] = {GuardState::kWindow};
  writer.write_floats("guard/losses", window, guard.losses);
  writer.write_floats("guard/norms", window, guard.norms);
  writer.write_int("guard/filled", guard.filled);
  writer.write_int("guard/next", guard.next);
  writer.write_int("guard/skipped_in_a_row", guard.skipped_in_a_row);
  writer.write_int("adam_step", guard.adam_step);
  if (recipe) recipe->save(writer);
  if (!gemm_plans.empty()) writer.write_text("matmul_plans", gemm_plans);
}

StepResult step_result_of(const StepScalars& step, const GuardState& guard, double own_seconds) {
  return {.loss = step.loss,
          .grad_norm = step.grad_norm,
          .tokens = static_cast<int64_t>(step.sums.tokens),
          .matrix_update_norm = static_cast<float>(std::sqrt(step.updates.matrices)),
          .adamw_update_norm = static_cast<float>(std::sqrt(step.updates.adamw)),
          .verdict = step.verdict,
          .skipped_in_a_row = guard.skipped_in_a_row,
          .adam_step = guard.adam_step,
          .stop_requested = step.sums.stops > 0,
          .own_seconds = own_seconds};
}

void sum_rows(const Batch& batch, std::span<const float> losses, std::span<LossSum> rows) {
  const auto T = static_cast<size_t>(batch.seq_len);
  for (size_t b = 0; b < rows.size(); ++b) {
    rows[b] = {};
    for (size_t i = b * T; i < (b + 1) * T; ++i) {
      if (batch.targets[i] == kIgnoredTarget) continue;
      rows[b].sum += losses[i];
      rows[b].tokens += 1;
    }
  }
}

GuardState load_guard(StateReader& reader, bool with_moments) {
  GuardState guard{};
  reader.read_floats("guard/losses", guard.losses);
  reader.read_floats("guard/norms", guard.norms);
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  guard.filled = static_cast<int32_t>(read_count(reader, "guard/filled", GuardState::kWindow));
  guard.next = static_cast<int32_t>(read_count(reader, "guard/next", GuardState::kWindow - 1));
  guard.skipped_in_a_row = static_cast<int32_t>(read_count(reader, "guard/skipped_in_a_row", kMost));
  guard.adam_step = with_moments ? read_count(reader, "adam_step") : 0;
  return guard;
}

} // namespace gpt2
