// The engines' common part of a checkpoint.
#include "engine/model/model_state.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"

namespace gpt2 {
namespace {

constexpr const char *kParams = "params/", *kAdamM = "adam_m/", *kAdamV = "adam_v/";

std::string describe(const std::vector<int64_t>& shape) {
  std::string text = "(";
  for (const int64_t extent : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
  return text + ")";
}

// What a rank owns of one tensor.
struct OwnedPiece {
  const ParameterTensor& tensor;
  TensorPiece piece;

  std::string name(const char* prefix) const { return prefix + tensor.name; }
  template <class Float>
  std::span<Float> in(std::span<Float> compact) const {
    return compact.subspan(static_cast<size_t>(piece.at), static_cast<size_t>(piece.count));
  }
};

// One of each tensor at most: there is one slice a bucket.
std::vector<OwnedPiece> pieces_of(const ParameterTable& table, std::span<const OwnedSlice> slices) {
  std::vector<OwnedPiece> pieces;
  for (const ParameterTensor& tensor : table.tensors()) {
    for (const OwnedSlice& slice : slices) {
      const TensorPiece piece = piece_of(tensor, slice);
      if (piece.count > 0) pieces.push_back({tensor, piece});
    }
  }
  return pieces;
}

void save_pieces(StateWriter& writer, std::span<const OwnedPiece> pieces, const char* prefix,
                 std::span<const float> compact) {
  for (const OwnedPiece& owned : pieces) {
    if (owned.piece.count == owned.tensor.count())
      writer.write_floats(owned.name(prefix), owned.tensor.shape(), owned.in(compact));
    else
      writer.write_piece(owned.name(prefix), owned.tensor.shape(), owned.piece.begin, owned.in(compact));
  }
}

std::vector<FloatRange> ranges_of(std::span<const OwnedPiece> pieces, const char* prefix, std::span<float> compact) {
  std::vector<FloatRange> ranges;
  for (const OwnedPiece& owned : pieces) ranges.push_back({owned.name(prefix), owned.piece.begin, owned.in(compact)});
  return ranges;
}

void check_shape(StateReader& reader, const std::string& name, const std::vector<int64_t>& expected) {
  const std::string hint = "resume with the --model, --seq_len and shape that the checkpoint was written with";
  if (!reader.has(name)) throw Error(ExitCode::checkpoint, "the checkpoint has no tensor " + name, hint);
  const std::vector<int64_t> found = reader.shape(name);
  if (found == expected) return;
  throw Error(
      ExitCode::checkpoint,
      "the checkpoint is of another model: " + name + " is " + describe(found) + ", expected " + describe(expected),
      hint);
}

void check_shapes(StateReader& reader, const ParameterTable& table, const char* prefix) {
  for (const ParameterTensor& tensor : table.tensors()) check_shape(reader, prefix + tensor.name, tensor.shape());
}

} // namespace

void load_tensors(StateReader& reader, const ParameterTable& table, std::span<const OwnedSlice> slices,
                  const FlatState& state) {
  for (const char* prefix : {kParams, kAdamM, kAdamV}) check_shapes(reader, table, prefix);
  const std::vector<OwnedPiece> pieces = pieces_of(table, slices);
  std::vector<FloatRange> ranges = ranges_of(pieces, kParams, state.params);
  if (!state.adam_m.empty()) {
    std::ranges::move(ranges_of(pieces, kAdamM, state.adam_m), std::back_inserter(ranges));
    std::ranges::move(ranges_of(pieces, kAdamV, state.adam_v), std::back_inserter(ranges));
  }
  reader.read_ranges(ranges);
}

void load_weights(StateReader& reader, const ParameterTable& table, std::span<const OwnedSlice> slices,
                  std::span<float> params) {
  check_shapes(reader, table, kParams);
  reader.read_ranges(ranges_of(pieces_of(table, slices), kParams, params));
}

int64_t FlatSnapshot::floats(std::span<const OwnedSlice> slices, bool with_moments) {
  return compact_size(slices) * (with_moments ? 3 : 1);
}

FlatState FlatSnapshot::lay_out(float* memory, std::span<const OwnedSlice> slices, bool with_moments) {
  const auto count = static_cast<size_t>(compact_size(slices)), moments = with_moments ? count : 0;
  return {.params = {memory, count}, .adam_m = {memory + count, moments}, .adam_v = {memory + 2 * moments, moments}};
}

FlatSnapshot::FlatSnapshot(const ParameterTable& table, std::vector<OwnedSlice> slices, bool with_moments)
    : FlatSnapshot(table, slices, with_moments,
                   std::shared_ptr<float>(new float[static_cast<size_t>(floats(slices, with_moments))](),
                                          std::default_delete<float[]>()),
                   nullptr) {}

FlatSnapshot::FlatSnapshot(const ParameterTable& table, std::vector<OwnedSlice> slices, bool with_moments,
                           std::shared_ptr<float> memory, std::function<void()> wait)
    : table_(table),
      slices_(std::move(slices)),
      memory_(std::move(memory)),
      state_(lay_out(memory_.get(), slices_, with_moments)),
      wait_(std::move(wait)) {}

void FlatSnapshot::write_own(StateWriter& writer) const {
  if (wait_) wait_();
  const std::vector<OwnedPiece> pieces = pieces_of(table_, slices_);
  save_pieces(writer, pieces, kParams, state_.params);
  if (state_.adam_m.empty()) return;
  save_pieces(writer, pieces, kAdamM, state_.adam_m);
  save_pieces(writer, pieces, kAdamV, state_.adam_v);
}

void FlatSnapshot::write_common(StateWriter& writer) const {
  save_guard(writer, guard);
  if (recipe) recipe->save(writer);
  if (!matmul_plans.empty()) writer.write_text("matmul_plans", matmul_plans);
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

void save_guard(StateWriter& writer, const GuardState& guard) {
  const int64_t window[] = {GuardState::kWindow};
  writer.write_floats("guard/losses", window, guard.losses);
  writer.write_floats("guard/norms", window, guard.norms);
  writer.write_int("guard/filled", guard.filled);
  writer.write_int("guard/next", guard.next);
  writer.write_int("guard/skipped_in_a_row", guard.skipped_in_a_row);
  writer.write_int("adam_step", guard.adam_step);
}

GuardState load_guard(StateReader& reader) {
  GuardState guard{};
  reader.read_floats("guard/losses", guard.losses);
  reader.read_floats("guard/norms", guard.norms);
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  guard.filled = static_cast<int32_t>(read_count(reader, "guard/filled", GuardState::kWindow));
  guard.next = static_cast<int32_t>(read_count(reader, "guard/next", GuardState::kWindow - 1));
  guard.skipped_in_a_row = static_cast<int32_t>(read_count(reader, "guard/skipped_in_a_row", kMost));
  guard.adam_step = read_count(reader, "adam_step");
  return guard;
}

} // namespace gpt2
