// Initial weights, checkpoints and copies of single tensors.
#include <cuda_bf16.h>

#include <algorithm>
#include <vector>

#include "engine/cuda/gpt2_cuda_model.h"
#include "engine/model/model_state.h"
#include "kernels/cast.h"
#include "kernels/cuda/gemm_plans.h"
#include "kernels/fill.h"

namespace gpt2 {

// On the device: 1.6 billion normals would keep 16 cores busy for seconds.
void GPT2Cuda::initialize_on_device() {
  for (size_t i = 0; i < table_.tensors().size(); ++i) {
    const ParameterTensor& tensor = table_.tensors()[i];
    const TensorInit init = initial_values(tensor, config_, options_.init_projections);
    for (const OwnedSlice& slice : updated_) {
      const TensorSlice part = slice_of(tensor, slice);
      if (part.count == 0) continue;
      if (init.normals > part.begin) {
        fill_normal(cuda_, {.out = b_.master + part.at,
                            .count = std::min(part.count, init.normals - part.begin),
                            .first = part.begin,
                            .seed = options_.seed,
                            .stream = i,
                            .deviation = init.deviation});
      } else if (init.normals == 0) {
        fill_constant(cuda_, {.out = b_.master + part.at, .count = part.count, .value = init.constant});
      }
    }
  }
  master_to_weights();
}

// Casts this rank's slices to BF16 and gathers the other ranks'.
void GPT2Cuda::master_to_weights() {
  for (const auto [offset, count, at] : updated_)
    cast_to_bf16(cuda_, {.out = b_.weights + offset, .in = b_.master + at, .count = count});
  gather_weights();
}

// ---- checkpoints ----

// Only the next update changes weights and moments: they are copied while the micro-steps before it run. The guard and
// the FP8 recipe, small and changed by micro-steps, are copied at once.
std::unique_ptr<StateSnapshot> GPT2Cuda::snapshot() {
  std::unique_ptr<FlatSnapshot> copy = copy_of_tensors();
  copy_to_host(cuda_.stream, std::span(&copy->guard, 1), b_.guard);
  if (fp8_) {
    fp8_->scaler.download();
    copy->recipe = fp8_->scaler.recipe();
  }
  copy->gemm_plans = cuda_.device->gemms->to_text(); // --deterministic resumes with these
  return copy;
}

std::unique_ptr<FlatSnapshot> GPT2Cuda::copy_of_tensors() {
  const std::shared_ptr<float> pinned = copier_ ? copier_->memory() : nullptr;
  std::unique_ptr<FlatSnapshot> pageable = pinned ? nullptr : std::make_unique<FlatSnapshot>(table_, owned_, trains());
  const FlatState host = pinned ? FlatSnapshot::lay_out(pinned.get(), table_, owned_, trains()) : pageable->spans();
  std::vector<StateCopier::Transfer> transfers;
  const auto fetch = [&](std::span<float> to, const float* from, std::span<const OwnedSlice> slices,
                         std::span<const OwnedSlice> held) {
    for (const auto [offset, count, at] : slices)
      transfers.push_back({&to[static_cast<size_t>(at)], from + compact_offset(held, offset), count});
  };
  fetch(host.params, b_.master, owned_, updated_);
  if (trains()) {
    fetch(host.adam_m, b_.adam_m, owned_, updated_);
    fetch(host.adam_v, b_.adam_v, second_moment_slices(table_, owned_), adamw_);
  }
  if (pinned)
    return std::make_unique<FlatSnapshot>(table_, owned_, trains(), pinned, copier_->copy(cuda_.stream, transfers));
  for (const auto& [to, from, count] : transfers)
    copy_to_host(cuda_.stream, std::span(to, static_cast<size_t>(count)), from);
  return pageable;
}

void GPT2Cuda::load_state(StateReader& reader) {
  FlatSnapshot state(table_, updated_, trains());
  const bool continues = load_tensors(reader, table_, updated_, state.spans());
  state.guard = load_guard(reader, continues);
  if (reader.has("matmul_plans")) cuda_.device->gemms->from_text(reader.read_text("matmul_plans"));
  if (fp8_) fp8_->scaler.recipe().load(reader);
  upload_state(state);
}

void GPT2Cuda::load_weights(StateReader& reader) {
  FlatSnapshot state(table_, updated_, trains()); // zero moments and counts
  gpt2::load_weights(reader, table_, updated_, state.spans().params);
  if (fp8_) fp8_->scaler.recipe() = Fp8RecipeState(options_.fp8, config_.layers);
  upload_state(state);
}

// Invalidates the graphs: the state may have other plans and other blocks in FP8.
void GPT2Cuda::upload_state(FlatSnapshot& state) {
  const FlatState host = state.spans();
  if (copier_) copier_->hold(cuda_.stream);
  copy_to_device(cuda_.stream, b_.master, std::span<const float>(host.params));
  if (trains()) {
    copy_to_device(cuda_.stream, b_.adam_m, std::span<const float>(host.adam_m));
    copy_to_device(cuda_.stream, b_.adam_v, std::span<const float>(host.adam_v));
  }
  copy_to_device(cuda_.stream, b_.guard, std::span<const GuardState>(&state.guard, 1));
  master_to_weights();
  invalidate_graphs();
  if (!fp8_) return;
  fp8_->scaler.upload();
  fp8_->weights = Fp8::Weights::stale;
}

std::vector<Fp8TensorStats> GPT2Cuda::fp8_stats() {
  if (!fp8_) return {};
  return fp8_->scaler.stats(config_, at_, step_tokens_, fp8_->stats_weights_sharded ? rank_count_ : 1);
}

NamedTensor GPT2Cuda::read_tensor(const ParameterTensor& tensor, TensorKind kind) {
  NamedTensor out{.name = tensor.name, .shape = tensor.shape(), .values = {}, .begin = 0};
  for (const OwnedSlice& slice : owned_) {
    const TensorSlice part = slice_of(tensor, slice);
    if (part.count == 0) continue;
    out.begin = part.begin;
    out.values.resize(static_cast<size_t>(part.count));
    const int64_t flat = tensor.offset + part.begin;
    const float* const source = kind == TensorKind::weight ? b_.master + (sharded_ ? part.at : flat) : b_.grad + flat;
    copy_to_host(cuda_.stream, std::span(out.values), source);
  }
  return out;
}

} // namespace gpt2
