// The state machine of FP8 scaling, shared by the GPU engine and the CPU engine's emulation.
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
  switch (scaling) {
    case Fp8ScalingRecipe::delayed:
      return false;
    case Fp8ScalingRecipe::current:
      return true;
    case Fp8ScalingRecipe::current_grads:
      return role == Fp8Role::grad;
    case Fp8ScalingRecipe::current_activations:
      return role == Fp8Role::act || role == Fp8Role::act_t;
    case Fp8ScalingRecipe::current_weights:
      return role == Fp8Role::weight;
  }
  return false;
}

void check_range(const std::string& name, std::span<const float> values, float least) {
  const auto good = [&](float value) { return value >= least && value <= std::numeric_limits<float>::max(); };
  const auto bad = std::find_if_not(values.begin(), values.end(), good); // NaN too
  if (bad == values.end()) return;
  throw Error(ExitCode::checkpoint, "the checkpoint's " + name + " holds " + std::to_string(*bad));
}

void check_option(const std::string& flag, int64_t value, const std::string& kind, int64_t least,
                  int64_t most = std::numeric_limits<int64_t>::max()) {
  if (value >= least && value <= most) return;
  const bool bounded = most < std::numeric_limits<int64_t>::max();
  throw Error(ExitCode::usage, flag + " " + std::to_string(value) + " is out of range",
              "give " + flag + " " + kind + " from " + std::to_string(least) +
                  (bounded ? " to " + std::to_string(most) : " up"));
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
  switch (role) {
    case Fp8Role::act:
      return choice == Fp8FormatChoice::e5m2 ? Fp8Format::e5m2 : Fp8Format::e4m3;
    case Fp8Role::grad:
      return choice == Fp8FormatChoice::e4m3 ? Fp8Format::e4m3 : Fp8Format::e5m2;
    case Fp8Role::act_t:
    case Fp8Role::weight:
      break;
  }
  return Fp8Format::e4m3;
}

Fp8RecipeState::Fp8RecipeState(const Fp8Options& options, int layers) : options_(options), layers_(layers) {
  check_option("--fp8_margin", options.margin, "an exponent", 0, kMaxFp8Margin);
  check_option("--fp8_interval", options.interval, "a number of steps", 1);
  check_option("--fp8_amax_history", options.amax_history, "a number of steps", 1, kMaxAmaxHistory);
  check_option("--fp8_current_steps", options.current_steps, "a number of steps", 0);
  check_option("--fp8_bf16_steps", options.bf16_steps, "a number of steps", 0);
  for (const int layer : options.bf16_layers) {
    if (layer >= 0 && layer < layers) continue;
    throw Error(ExitCode::usage, "--fp8_bf16_layers: the model has no block " + std::to_string(layer),
                "the model's blocks are 0 to " + std::to_string(layers - 1));
  }
  const auto add = [&](int layer, Fp8Site site) {
    for (const Fp8Role role : {Fp8Role::act, Fp8Role::act_t, Fp8Role::weight, Fp8Role::grad}) {
      const bool is_dlogits = site == Fp8Site::lm_head && role == Fp8Role::grad;
      tensors_.push_back({.name = {.layer = layer, .site = site, .role = role},
                          .format = is_dlogits ? Fp8Format::e5m2 : format_of(options.format, role),
                          .used = false,
                          .delayed = !is_dlogits});
    }
  };
  for (int layer = 0; layer < layers; ++layer) {
    for (const Fp8Site site : {Fp8Site::qkv, Fp8Site::proj, Fp8Site::fc, Fp8Site::fcproj}) add(layer, site);
  }
  add(layers, Fp8Site::lm_head);
  reset();
}

void Fp8RecipeState::reset() {
  const size_t count = tensors_.size();
  scales_.assign(count, 1.0f);
  scales_[static_cast<size_t>(id(layers_, Fp8Site::lm_head, Fp8Role::grad))] = kDlogitsScale;
  histories_.assign(count * static_cast<size_t>(options_.amax_history), 0.0f);
  counts_.assign(count, {});
  last_counts_.assign(count, {});
  last_scales_ = scales_;
  applied_steps_ = 0;
  updates_before_ = 0;
  skipped_in_a_row_ = 0;
  calibration_due_ = true;
  inactive_ = options_.bf16_steps > 0;
  left_in_bf16_.assign(static_cast<size_t>(layers_), false);
  choose_tensors();
}

void Fp8RecipeState::choose_tensors() {
  for (Tensor& tensor : tensors_) {
    const Fp8TensorName& name = tensor.name;
    const bool is_copy = name.role == Fp8Role::act_t;
    tensor.used =
        (name.is_lm_head() ? quantized_head() : quantized_block(name.layer)) && (!is_copy || activation_copy());
  }
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
  choose_tensors();
}

void Fp8RecipeState::leave_in_bf16(int layer) {
  left_in_bf16_.at(static_cast<size_t>(layer)) = true;
  choose_tensors();
}

int Fp8RecipeState::id(int layer, Fp8Site site, Fp8Role role) const {
  const int row = site == Fp8Site::lm_head ? layers_ * kSitesPerBlock : layer * kSitesPerBlock + static_cast<int>(site);
  return row * kFp8Roles + static_cast<int>(role);
}

std::span<const float> Fp8RecipeState::history(int id) const {
  const size_t length = static_cast<size_t>(options_.amax_history);
  return {&histories_[static_cast<size_t>(id) * length], length};
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
  if (!tensors_[static_cast<size_t>(id)].delayed) return scale(id);
  return fp8_scale(amax, fp8_max(format(id)), options_.margin, scale(id));
}

void Fp8RecipeState::calibrate(int id, float amax) {
  if (!tensors_[static_cast<size_t>(id)].delayed) return;
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
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!tensors_[i].used || !tensors_[i].delayed) continue;
    scales_[i] = fp8_delayed_scale(history_begin(static_cast<int>(i)), options_.amax_history, slot, counts_[i].amax,
                                   update, fp8_max(tensors_[i].format), options_.margin, scales_[i]);
  }
}

// Saved scales and histories are valid only under the same signature. The set of quantized blocks may differ: each
// block's scales stay valid.
std::string Fp8RecipeState::signature() const {
  return name_of(options_.format) + ", " + std::to_string(tensors_.size()) + " tensors, history " +
         std::to_string(options_.amax_history) + ", LM head " +
         (options_.lm_head ? "FP8" : "not quantised") /* the spelling in existing checkpoints */;
}

void Fp8RecipeState::save(StateWriter& writer) const {
  const int64_t count = static_cast<int64_t>(tensors_.size());
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
  reset();
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
  choose_tensors();
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
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!tensors_[i].used) continue;
    const Fp8Counts& counts = last_counts_[i];
    const double values = static_cast<double>(std::max<int64_t>(counts.values, 1));
    all.push_back({.tensor = tensors_[i].name,
                   .format = tensors_[i].format,
                   .amax = counts.amax,
                   .scale = last_scales_[i],
                   .saturated = static_cast<double>(counts.saturated) / values,
                   .flushed = static_cast<double>(counts.flushed) / values,
                   .fixed_scale = !tensors_[i].delayed});
  }
  return all;
}

} // namespace gpt2
