// FP8 outputs and tensors by name; upload and download of the recipe.
#include "engine/cuda/fp8_scaler.h"

#include <bit>

#include "kernels/cuda/memory.h"

namespace gpt2 {

namespace {

Fp8Statistics statistics_in(Fp8Pass pass) {
  return pass == Fp8Pass::training || pass == Fp8Pass::calibrating ? Fp8Statistics::all : Fp8Statistics::none;
}

} // namespace

Fp8Scaler::Fp8Scaler(CudaStream& cuda, const Fp8Scales& scales, const Fp8Options& options, int layers, CudaRanks* ranks)
    : cuda_(cuda), scales_(scales), recipe_(options, layers), ranks_(ranks) {
  const auto clear = [&](void* data, size_t element) {
    CUDA_CHECK(cudaMemsetAsync(data, 0, static_cast<size_t>(scales.count) * element, cuda.stream));
  };
  clear(scales.seen, sizeof(Fp8TensorMeta));
  clear(scales.seen_amaxes, sizeof(uint32_t));
  clear(scales.measured, sizeof(uint32_t));
  upload();
}

void Fp8Scaler::leave_in_bf16(int layer) {
  recipe_.leave_in_bf16(layer);
  upload_formats();
}

void Fp8Scaler::set_inactive(bool inactive) {
  recipe_.set_inactive(inactive);
  upload_formats();
}

// ---- GEMM operands ----

Fp8Tensor Fp8Scaler::tensor(const LinearLayer& layer, Fp8Role role, const uint8_t* data) const {
  const int at = id(layer, role);
  return {.data = data, .format = recipe_.format(at), .meta = scales_.metas + at};
}

Fp8Tensor Fp8Scaler::activation_for_weight_gradient(const LinearLayer& layer, const uint8_t* data) const {
  return tensor(layer, recipe_.activation_copy() ? Fp8Role::act_t : Fp8Role::act, data);
}

// ---- outputs of producer kernels ----

Fp8Output Fp8Scaler::output(int id, Fp8Values values, Fp8Statistics statistics) const {
  return {.data = values.data,
          .transposed = values.transposed,
          .format = recipe_.format(id),
          .meta = scales_.metas + id,
          .amax = scales_.amaxes + id,
          .statistics = statistics};
}

Fp8Output Fp8Scaler::output(const LinearLayer& layer, Fp8Role role, Fp8Values values, Fp8Pass pass) const {
  return output(id(layer, role), values, statistics_in(pass));
}

Fp8Output Fp8Scaler::amax_output(const LinearLayer& layer, Fp8Role role, Fp8Values values) const {
  Fp8Output amax_only = output(id(layer, role), values, Fp8Statistics::amax_only);
  amax_only.amax = scales_.measured + id(layer, role);
  return amax_only;
}

// Ranks have different tokens and need one scale: all-reduce the amax. Not at inference: rank 0 samples alone, and the
// other ranks would not take part.
void Fp8Scaler::set_current_scale(const LinearLayer& layer, Fp8Role role, Fp8Pass pass) const {
  if (ranks_ && pass != Fp8Pass::inference) ranks_->all_reduce_max(scales_.measured + id(layer, role), 1);
  fp8_set_current_scale(cuda_, scales_,
                        {.id = id(layer, role),
                         .shared = role == Fp8Role::act && recipe_.activation_copy(),
                         .noted = statistics_in(pass) == Fp8Statistics::all});
}

Fp8Output Fp8Scaler::recomputed_output(const LinearLayer& layer, uint8_t* transposed, Fp8Pass pass) const {
  const bool copy = recipe_.activation_copy();
  return output(id(layer, copy ? Fp8Role::act_t : Fp8Role::act), {nullptr, transposed},
                copy ? statistics_in(pass) : Fp8Statistics::none);
}

Fp8Output Fp8Scaler::dlogits(const LinearLayer& lm_head, Fp8Values values) const {
  return output(id(lm_head, Fp8Role::grad), values, Fp8Statistics::none);
}

// ---- the state machine ----

bool Fp8Scaler::begin_step() {
  const bool was_inactive = recipe_.inactive();
  recipe_.begin_step();
  if (recipe_.inactive() == was_inactive) return false;
  upload();
  return true;
}

void Fp8Scaler::end_step(const StepScalars* step) const { fp8_end_step(cuda_, scales_, step); }

void Fp8Scaler::end_calibration() {
  fp8_end_calibration(cuda_, scales_);
  recipe_.end_calibration();
}

// ---- to and from the device ----

void Fp8Scaler::upload_formats() {
  std::vector<float> format_max(static_cast<size_t>(scales_.count));
  for (int at = 0; at < scales_.count; ++at)
    format_max[static_cast<size_t>(at)] = recipe_.delayed(at) ? fp8_max(recipe_.format(at)) : 0.0f;
  copy_to_device(cuda_.stream, scales_.format_max, std::span<const float>(format_max));
}

void Fp8Scaler::upload() {
  upload_formats();
  std::vector<Fp8TensorMeta> metas(static_cast<size_t>(scales_.count));
  for (int at = 0; at < scales_.count; ++at)
    metas[static_cast<size_t>(at)] = {
        .scale_inv = 1.0f / recipe_.scale(at), .scale = recipe_.scale(at), .saturated = 0, .flushed = 0};
  const int64_t applied = recipe_.applied_steps();
  CUDA_CHECK(cudaMemsetAsync(scales_.amaxes, 0, static_cast<size_t>(scales_.count) * sizeof(uint32_t), cuda_.stream));
  copy_to_device(cuda_.stream, scales_.metas, std::span<const Fp8TensorMeta>(metas));
  copy_to_device(cuda_.stream, scales_.history, recipe_.histories());
  copy_to_device(cuda_.stream, scales_.applied_steps, std::span(&applied, 1));
}

void Fp8Scaler::download() {
  const auto count = static_cast<size_t>(scales_.count);
  std::vector<Fp8TensorMeta> metas(count), seen(count);
  std::vector<uint32_t> amaxes(count);
  std::vector<float> history(recipe_.histories().size()), scales(count);
  int64_t applied = 0;
  copy_to_host(cuda_.stream, std::span(metas), scales_.metas);
  copy_to_host(cuda_.stream, std::span(seen), scales_.seen);
  copy_to_host(cuda_.stream, std::span(amaxes), scales_.seen_amaxes);
  copy_to_host(cuda_.stream, std::span(history), scales_.history);
  copy_to_host(cuda_.stream, std::span(&applied, 1), scales_.applied_steps);
  for (size_t at = 0; at < count; ++at) {
    scales[at] = metas[at].scale;
    const Fp8Counts counts{.amax = std::bit_cast<float>(amaxes[at]),
                           .values = 0,
                           .saturated = static_cast<int64_t>(seen[at].saturated),
                           .flushed = static_cast<int64_t>(seen[at].flushed) * kFlushedSample};
    recipe_.adopt_counts(static_cast<int>(at), counts, seen[at].scale);
  }
  recipe_.adopt(scales, history, applied);
}

// Turns counts into shares of a tensor's elements over all micro-batches of the step.
std::vector<Fp8TensorStats> Fp8Scaler::stats(const GPT2Config& config, const GPT2Offsets& at, int64_t step_tokens,
                                             int weight_parts) {
  download();
  for (int i = 0; i < scales_.count; ++i) {
    const auto& [block, site, role] = recipe_.name(i);
    const LinearLayer layer = linear_layer(config, at, block, site);
    const int64_t weights = int64_t{layer.C} * layer.OC / (site == Fp8Site::lm_head ? 1 : weight_parts);
    recipe_.adopt_values(
        i, role == Fp8Role::weight ? weights : step_tokens * (role == Fp8Role::grad ? layer.OC : layer.C));
  }
  return recipe_.stats();
}

} // namespace gpt2
