#include "engine/model/fp8_recipe.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <sstream>

#include "engine/base/error.h"
#include "kernels/layernorm_fp8.h"

namespace gpt2 {
namespace {

constexpr int kSkipsBeforeCalibration = 2;

constexpr const char* kSiteNames[] = {"qkv", "proj", "fc", "fcproj", "lm_head"};
constexpr const char* kRoleNames[] = {"act", "act_t", "weight", "grad"};

// "0 3 4": a set of layers in a checkpoint.
template <class Holds>
std::string list_layers(int layers, Holds&& holds) {
  std::string text;
  for (int layer = 0; layer < layers; ++layer) {
    if (holds(layer)) text += (text.empty() ? "" : " ") + std::to_string(layer);
  }
  return text;
}

std::vector<bool> read_layers(const std::string& text, int layers) {
  std::vector<bool> set(static_cast<size_t>(layers), false);
  std::istringstream stream(text);
  for (int layer = 0; stream >> layer;) {
    if (layer >= 0 && layer < layers) set[static_cast<size_t>(layer)] = true;
  }
  return set;
}

bool is_current(Fp8ScalingRecipe scaling, Fp8Role role) {
  using enum Fp8ScalingRecipe;
  const bool is_activation = role == Fp8Role::act || role == Fp8Role::act_t;
  return scaling == current || (scaling == current_grads && role == Fp8Role::grad) ||
         (scaling == current_activations && is_activation) || (scaling == current_weights && role == Fp8Role::weight);
}

void check_range(const std::string& name, std::span<const float> values, float least) {
  const auto good = [&](float value) { return value >= least && value <= std::numeric_limits<float>::max(); };
  const auto bad = std::find_if_not(values.begin(), values.end(), good); // NaN too
  if (bad == values.end()) return;
  throw Error(ExitCode::checkpoint, "the checkpoint's " + name + " holds " + std::to_string(*bad));
}

} // namespace

std::string Fp8TensorName::kind() const {
  return std::string(kSiteNames[static_cast<int>(site)]) + "/" + kRoleNames[static_cast<int>(role)];
}

std::string Fp8TensorName::text() const { return (is_lm_head() ? "" : "h." + std::to_string(layer) + "/") + kind(); }

void check_fp8_shape(int channels, int seq_len) {
  const auto refuse = [](const char* flag, int value) {
    const int below = value / 16 * 16;
    throw Error(ExitCode::usage,
                "FP8 on a GPU needs " + std::string(flag) + " in multiples of 16, not " + std::to_string(value),
                "choose " + std::string(flag) + " " + (below > 0 ? std::to_string(below) + " or " : "") +
                    std::to_string(below + 16) + ", or --precision bf16");
  };
  if (channels > kMaxFp8Channels) {
    throw Error(ExitCode::usage,
                "FP8 on a GPU has kernels for at most " + std::to_string(kMaxFp8Channels) + " channels, not " +
                    std::to_string(channels),
                "choose fewer --channels, or --precision bf16");
  }
  if (channels % 16 != 0) refuse("--channels", channels);
  if (seq_len % 16 != 0) refuse("--seq_len", seq_len);
}

Fp8Format format_of(Fp8FormatChoice choice, Fp8Role role) {
  if (role == Fp8Role::act && choice == Fp8FormatChoice::e5m2) return Fp8Format::e5m2;
  if (role == Fp8Role::grad && choice != Fp8FormatChoice::e4m3) return Fp8Format::e5m2;
  return Fp8Format::e4m3;
}

Fp8RecipeState::Fp8RecipeState(const Fp8Options& options, int layers)
    : options_(options),
      layers_(layers),
      left_in_bf16_(static_cast<size_t>(layers)),
      scales_(static_cast<size_t>(fp8_tensor_count(layers)), 1.0f),
      histories_(scales_.size() * static_cast<size_t>(options.amax_history)),
      counts_(scales_.size()),
      last_counts_(scales_.size()),
      inactive_(options.bf16_steps > 0) {
  scales_[static_cast<size_t>(id(layers, Fp8Site::lm_head, Fp8Role::grad))] = kDlogitsScale;
  last_scales_ = scales_;
}

Fp8TensorName Fp8RecipeState::name(int id) const {
  const int row = id / kFp8Roles, layer = row / kSitesPerBlock;
  return {.layer = layer,
          .site = layer == layers_ ? Fp8Site::lm_head : static_cast<Fp8Site>(row % kSitesPerBlock),
          .role = static_cast<Fp8Role>(id % kFp8Roles)};
}

Fp8Format Fp8RecipeState::format(int id) const {
  const Fp8TensorName tensor = name(id);
  return tensor.is_dlogits() ? Fp8Format::e5m2 : format_of(options_.format, tensor.role);
}

bool Fp8RecipeState::quantized(int id) const {
  const Fp8TensorName tensor = name(id);
  if (tensor.role == Fp8Role::act_t && !activation_copy()) return false;
  return tensor.is_lm_head() ? quantized_head() : quantized_block(tensor.layer);
}

bool Fp8RecipeState::quantized_block(int layer) const {
  const std::vector<int>& asked = options_.bf16_layers;
  return !inactive_ && !left_in_bf16_[static_cast<size_t>(layer)] &&
         std::find(asked.begin(), asked.end(), layer) == asked.end();
}

void Fp8RecipeState::set_inactive(bool inactive) {
  if (inactive_ && !inactive) {
    calibration_due_ = true; // the histories predate the BF16 steps
    updates_before_ += applied_steps_;
    applied_steps_ = 0; // as in a run that resumes in FP8
  }
  inactive_ = inactive;
}

void Fp8RecipeState::leave_in_bf16(int layer) { left_in_bf16_.at(static_cast<size_t>(layer)) = true; }

int Fp8RecipeState::id(int layer, Fp8Site site, Fp8Role role) const {
  const int row = site == Fp8Site::lm_head ? layers_ * kSitesPerBlock : layer * kSitesPerBlock + static_cast<int>(site);
  return row * kFp8Roles + static_cast<int>(role);
}

bool Fp8RecipeState::measures(Fp8Pass pass, Fp8Role role) const {
  if (pass == Fp8Pass::recomputing) return false;
  if (pass == Fp8Pass::calibrating || (pass == Fp8Pass::inference && calibration_due_)) return true;
  return in_current_steps() || is_current(options_.scaling, role);
}

bool Fp8RecipeState::measures_in_training() const {
  return in_current_steps() || options_.scaling != Fp8ScalingRecipe::delayed;
}

float Fp8RecipeState::current_scale(int id, float amax) const {
  if (name(id).is_dlogits()) return scale(id);
  return fp8_scale(amax, fp8_max(format(id)), options_.margin, scale(id));
}

void Fp8RecipeState::calibrate(int id, float amax) {
  if (name(id).is_dlogits()) return;
  scales_[static_cast<size_t>(id)] = current_scale(id, amax);
  fp8_calibrated_history(history_begin(id), options_.amax_history, applied_steps_, amax);
}

void Fp8RecipeState::end_calibration() {
  calibration_due_ = false;
  begin_step(); // drops the counts of the calibrating micro-batch
}

void Fp8RecipeState::begin_step() {
  counts_.assign(counts_.size(), {});
  if (const bool now = updates() < options_.bf16_steps; now != inactive_) set_inactive(now);
}

std::vector<uint32_t> Fp8RecipeState::amaxes() const {
  std::vector<uint32_t> bits;
  for (const Fp8Counts& counts : counts_) bits.push_back(std::bit_cast<uint32_t>(counts.amax));
  return bits;
}

void Fp8RecipeState::adopt_amaxes(std::span<const uint32_t> amaxes) {
  for (size_t i = 0; i < counts_.size(); ++i) counts_[i].amax = std::bit_cast<float>(amaxes[i]);
}

void Fp8RecipeState::end_step(bool applied) {
  last_counts_ = counts_;
  last_scales_ = scales_;
  if (!applied) {
    note_skips(skipped_in_a_row_ + 1);
    return;
  }
  skipped_in_a_row_ = 0;
  const int slot = static_cast<int>(applied_steps_ % options_.amax_history);
  applied_steps_ += 1;
  const bool update = applied_steps_ % options_.interval == 0;
  for (int id = 0; id < fp8_tensor_count(layers_); ++id) {
    if (!delayed(id)) continue;
    float& scale = scales_[static_cast<size_t>(id)];
    scale = fp8_delayed_scale(history_begin(id), options_.amax_history, slot, counts(id).amax, update,
                              fp8_max(format(id)), options_.margin, scale);
  }
}

// Saved scales and histories are valid only under the same signature. The set of quantized blocks may differ: each
// block's scales stay valid.
std::string Fp8RecipeState::signature() const {
  return name_of(options_.format) + ", " + std::to_string(scales_.size()) + " tensors, history " +
         std::to_string(options_.amax_history) + ", LM head " +
         (options_.lm_head ? "FP8" : "not quantised") /* spelled as in existing checkpoints */;
}

void Fp8RecipeState::save(StateWriter& writer) const {
  const int64_t count = static_cast<int64_t>(scales_.size());
  const int64_t scale_shape[] = {count};
  const int64_t history_shape[] = {count, options_.amax_history};
  writer.write_text("fp8/recipe", signature());
  writer.write_floats("fp8/scale", scale_shape, scales_);
  writer.write_floats("fp8/amax_history", history_shape, histories_);
  writer.write_int("fp8/applied_steps", applied_steps_);
  writer.write_int("fp8/skipped_in_a_row", skipped_in_a_row_);
  writer.write_int("fp8/calibration_due", calibration_due_ ? 1 : 0);
  if (inactive_) writer.write_int("fp8/resting", 1);
  writer.write_text("fp8/bf16_blocks", list_layers(layers_, [&](int layer) { return !quantized_block(layer); }));
  writer.write_text("fp8/left_in_bf16",
                    list_layers(layers_, [&](int layer) { return left_in_bf16_[static_cast<size_t>(layer)]; }));
}

void Fp8RecipeState::load(StateReader& reader) {
  *this = Fp8RecipeState(options_, layers_); // cold
  const int64_t updates = reader.has("adam_step") ? read_count(reader, "adam_step") : 0;
  const bool may_be_inactive = options_.bf16_steps > 0 && updates <= options_.bf16_steps;
  updates_before_ = updates;
  set_inactive(may_be_inactive);
  if (!reader.has("fp8/recipe") || reader.read_text("fp8/recipe") != signature()) return;
  reader.read_floats("fp8/scale", scales_);
  reader.read_floats("fp8/amax_history", histories_);
  check_range("fp8/scale", scales_, std::numeric_limits<float>::denorm_min());
  check_range("fp8/amax_history", histories_, 0);
  applied_steps_ = read_count(reader, "fp8/applied_steps");
  updates_before_ = std::max<int64_t>(updates - applied_steps_, 0);
  skipped_in_a_row_ = read_count(reader, "fp8/skipped_in_a_row");
  calibration_due_ = read_count(reader, "fp8/calibration_due", 1) != 0;
  last_scales_ = scales_;
  left_in_bf16_ = read_layers(reader.read_text("fp8/left_in_bf16"), layers_);
  const bool was_inactive = reader.has("fp8/resting") && read_count(reader, "fp8/resting", 1) != 0;
  inactive_ = was_inactive && may_be_inactive; // as in the last step
  if (was_inactive && !inactive_) calibration_due_ = true;
  const std::vector<bool> were_bf16 = read_layers(reader.read_text("fp8/bf16_blocks"), layers_);
  for (int layer = 0; layer < layers_; ++layer) {
    if (were_bf16[static_cast<size_t>(layer)] && quantized_block(layer)) calibration_due_ = true;
  }
}

void Fp8RecipeState::adopt(std::span<const float> scales, std::span<const float> histories, int64_t applied_steps) {
  scales_.assign(scales.begin(), scales.end());
  histories_.assign(histories.begin(), histories.end());
  applied_steps_ = applied_steps;
}

void Fp8RecipeState::adopt_counts(int id, const Fp8Counts& counts, float scale) {
  last_counts_[static_cast<size_t>(id)] = counts;
  last_scales_[static_cast<size_t>(id)] = scale;
}

void Fp8RecipeState::adopt_values(int id, int64_t values) { last_counts_[static_cast<size_t>(id)].values = values; }

void Fp8RecipeState::note_skips(int64_t skipped_in_a_row) {
  skipped_in_a_row_ = skipped_in_a_row;
  if (skipped_in_a_row > 0 && skipped_in_a_row % kSkipsBeforeCalibration == 0) calibration_due_ = true;
}

std::vector<Fp8TensorStats> Fp8RecipeState::stats() const {
  std::vector<Fp8TensorStats> all;
  for (int id = 0; id < fp8_tensor_count(layers_); ++id) {
    if (!quantized(id)) continue;
    const Fp8Counts& counts = last_counts_[static_cast<size_t>(id)];
    const double values = static_cast<double>(std::max<int64_t>(counts.values, 1));
    all.push_back({.tensor = name(id),
                   .format = format(id),
                   .amax = counts.amax,
                   .scale = last_scales_[static_cast<size_t>(id)],
                   .saturated = static_cast<double>(counts.saturated) / values,
                   .flushed = static_cast<double>(counts.flushed) / values,
                   .fixed_scale = name(id).is_dlogits()});
  }
  return all;
}

} // namespace gpt2
