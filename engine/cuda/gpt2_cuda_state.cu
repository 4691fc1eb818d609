// Initial weights, checkpoints and copies of single tensors.
#include <cuda_bf16.h>

#include <bit>
#include <vector>

#include "engine/cuda/gpt2_cuda_model.h"
#include "engine/model/model_state.h"
#include "kernels/cast.h"
#include "kernels/cuda/matmul_plans.h"
#include "kernels/fill.h"

namespace gpt2 {

// On the device, because 1.6 billion normals would keep 16 cores busy for seconds.
void GPT2Cuda::initialize_on_device() {
  for (size_t i = 0; i < table_.tensors().size(); ++i) {
    const ParameterTensor& tensor = table_.tensors()[i];
    const TensorInit init = initial_values(tensor, config_);
    if (init.normals > 0) {
      fill_normal(cuda_, {.out = b_.master + tensor.offset,
                          .count = init.normals,
                          .seed = options_.seed,
                          .stream = i,
                          .deviation = init.deviation});
    } else {
      fill_constant(cuda_, {.out = b_.master + tensor.offset, .count = tensor.count(), .value = init.constant});
    }
  }
  refresh_weights();
}

void GPT2Cuda::refresh_weights() { cast_to_bf16(cuda_, {.out = b_.weights, .in = b_.master, .count = table_.size()}); }

// ---- the FP8 recipe: the host knows formats and names, the device scales and histories ----

void GPT2Cuda::initialize_recipe() {
  if (options_.precision != Precision::fp8) return;
  recipe_ = std::make_unique<Fp8RecipeState>(options_.fp8, config_.layers);
  current_scaling_ = options_.fp8.current_scaling;
  CUDA_CHECK(cudaMemset(b_.fp8.scales.seen, 0, b_.fp8.scales.count * sizeof(Fp8Meter)));
  upload_formats();
  upload_recipe();
}

// The choice of blocks may have changed: what was captured for the old one goes, and the next micro-step runs eagerly
// to tune products it has not seen.
void GPT2Cuda::upload_formats() {
  warm_batch_ = warm_seq_ = 0;
  const Fp8Scales& scales = b_.fp8.scales;
  CUDA_CHECK(cudaStreamSynchronize(cuda_.stream)); // plain copies do not wait for it
  std::vector<float> format_max(scales.count);
  for (int id = 0; id < scales.count; ++id) format_max[id] = recipe_->delayed(id) ? fp8_max(recipe_->format(id)) : 0.0f;
  CUDA_CHECK(cudaMemcpy(const_cast<float*>(scales.format_max), format_max.data(), format_max.size() * sizeof(float),
                        cudaMemcpyHostToDevice));
}

void GPT2Cuda::leave_in_bf16(int layer) {
  if (!fp8()) return;
  recipe_->leave_in_bf16(layer);
  upload_formats();
}

void GPT2Cuda::upload_recipe() {
  const Fp8Scales& scales = b_.fp8.scales;
  CUDA_CHECK(cudaStreamSynchronize(cuda_.stream)); // plain copies do not wait for it
  std::vector<Fp8Meter> meters(scales.count);
  for (int id = 0; id < scales.count; ++id)
    meters[id] = {.inverse = 1.0f / recipe_->scale(id),
                  .scale = recipe_->scale(id),
                  .amax_bits = 0,
                  .saturated = 0,
                  .flushed = 0};
  const int64_t applied = recipe_->applied_steps();
  CUDA_CHECK(cudaMemcpy(scales.meters, meters.data(), meters.size() * sizeof(Fp8Meter), cudaMemcpyHostToDevice));
  CUDA_CHECK(cudaMemcpy(scales.history, recipe_->histories().data(), recipe_->histories().size_bytes(),
                        cudaMemcpyHostToDevice));
  CUDA_CHECK(cudaMemcpy(scales.applied_steps, &applied, sizeof applied, cudaMemcpyHostToDevice));
}

void GPT2Cuda::download_recipe() {
  const Fp8Scales& scales = b_.fp8.scales;
  CUDA_CHECK(cudaStreamSynchronize(cuda_.stream));
  std::vector<Fp8Meter> meters(scales.count), seen(scales.count);
  std::vector<float> history(recipe_->histories().size()), in_force(scales.count);
  int64_t applied = 0;
  CUDA_CHECK(cudaMemcpy(meters.data(), scales.meters, meters.size() * sizeof(Fp8Meter), cudaMemcpyDeviceToHost));
  CUDA_CHECK(cudaMemcpy(seen.data(), scales.seen, seen.size() * sizeof(Fp8Meter), cudaMemcpyDeviceToHost));
  CUDA_CHECK(cudaMemcpy(history.data(), scales.history, history.size() * sizeof(float), cudaMemcpyDeviceToHost));
  CUDA_CHECK(cudaMemcpy(&applied, scales.applied_steps, sizeof applied, cudaMemcpyDeviceToHost));
  for (int id = 0; id < scales.count; ++id) {
    in_force[id] = meters[id].scale;
    const Fp8Counts counts{.amax = std::bit_cast<float>(seen[id].amax_bits),
                           .values = values_per_step(id),
                           .saturated = static_cast<int64_t>(seen[id].saturated),
                           .flushed = static_cast<int64_t>(seen[id].flushed) * kFlushedSample};
    recipe_->adopt_counts(id, counts, seen[id].scale);
  }
  recipe_->adopt(in_force, history, applied);
}

// Elements of a quantized tensor over all micro-batches of the last step, to turn counts into shares.
int64_t GPT2Cuda::values_per_step(int id) const {
  const auto& [block, site, role] = recipe_->name(id);
  const LinearLayer layer = linear_layer(block, site);
  if (role == Fp8Role::weight) return int64_t{layer.C} * layer.OC;
  return step_tokens_ * (role == Fp8Role::grad ? layer.OC : layer.C);
}

std::vector<Fp8TensorStats> GPT2Cuda::fp8_stats() {
  if (!fp8()) return {};
  download_recipe();
  return recipe_->stats();
}

// ---- checkpoints ----

std::unique_ptr<StateSnapshot> GPT2Cuda::snapshot() {
  auto copy = std::make_unique<FlatSnapshot>(table_);
  const FlatState host = copy->spans();
  const auto download = [&](std::span<float> out, const float* in) {
    CUDA_CHECK(cudaMemcpyAsync(out.data(), in, out.size_bytes(), cudaMemcpyDeviceToHost, cuda_.stream));
  };
  download(host.params, b_.master);
  download(host.adam_m, b_.adam_m);
  download(host.adam_v, b_.adam_v);
  CUDA_CHECK(cudaMemcpyAsync(&copy->guard, b_.guard, sizeof(GuardState), cudaMemcpyDeviceToHost, cuda_.stream));
  CUDA_CHECK(cudaStreamSynchronize(cuda_.stream));
  if (fp8()) {
    download_recipe();
    copy->recipe = *recipe_;
  }
  copy->matmul_plans = cuda_.device->matmuls->to_text(); // --deterministic goes on with these
  return copy;
}

void GPT2Cuda::load_state(StateReader& reader) {
  FlatSnapshot state(table_);
  load_tensors(reader, table_, state.spans());
  state.guard = load_guard(reader);
  if (reader.has("matmul_plans")) cuda_.device->matmuls->from_text(reader.read_text("matmul_plans"));
  if (fp8()) recipe_->load(reader);
  upload_state(state);
}

void GPT2Cuda::load_weights(StateReader& reader) {
  FlatSnapshot state(table_); // moments and counts at zero
  gpt2::load_weights(reader, table_, state.spans().params);
  if (fp8()) *recipe_ = Fp8RecipeState(options_.fp8, config_.layers);
  upload_state(state);
}

void GPT2Cuda::upload_state(FlatSnapshot& state) {
  const FlatState host = state.spans();
  const auto upload = [&](float* out, std::span<const float> in) {
    CUDA_CHECK(cudaMemcpyAsync(out, in.data(), in.size_bytes(), cudaMemcpyHostToDevice, cuda_.stream));
  };
  upload(b_.master, host.params);
  upload(b_.adam_m, host.adam_m);
  upload(b_.adam_v, host.adam_v);
  CUDA_CHECK(cudaMemcpyAsync(b_.guard, &state.guard, sizeof(GuardState), cudaMemcpyHostToDevice, cuda_.stream));
  if (fp8()) {
    upload_formats();
    upload_recipe();
  }
  refresh_weights();
  weights_stale_ = true;
  CUDA_CHECK(cudaStreamSynchronize(cuda_.stream)); // the host buffers end with the state
}

NamedTensor GPT2Cuda::read_tensor(const ParameterTensor& tensor, TensorKind kind) {
  NamedTensor out{.name = tensor.name, .shape = tensor.shape(), .values = std::vector<float>(tensor.count())};
  const float* const source = (kind == TensorKind::weight ? b_.master : b_.grad) + tensor.offset;
  CUDA_CHECK(cudaMemcpyAsync(out.values.data(), source, out.values.size() * sizeof(float), cudaMemcpyDeviceToHost,
                             cuda_.stream));
  CUDA_CHECK(cudaStreamSynchronize(cuda_.stream));
  return out;
}

} // namespace gpt2
