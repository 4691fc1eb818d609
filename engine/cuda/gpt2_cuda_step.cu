// Around the architecture: tokens up, the captured micro-step, the optimizer, results down, state.
#include <cuda_bf16.h>

#include <algorithm>
#include <cstring>

#include "engine/base/log.h"
#include "engine/cuda/gpt2_cuda_model.h"
#include "engine/model/model_state.h"
#include "kernels/optimizer.h"

namespace gpt2 {

namespace {

constexpr size_t kTokenSlots = 4; // micro-batches that may be on their way up at a time

CudaOptions backend_options(const CudaModelOptions& options) {
  return {.device = options.device,
          .deterministic = options.deterministic,
          .plan_cache = options.plan_cache,
          .attention = options.attention};
}

std::string pci_bus_id(int device) {
  char id[32] = "";
  CUDA_CHECK(cudaDeviceGetPCIBusId(id, sizeof id, device));
  return id;
}

} // namespace

// ---- life ----

int cuda_runtime_version() {
  int version = 0;
  cudaRuntimeGetVersion(&version);
  return version;
}

CudaDeviceInfo probe_cuda_device(int device) {
  CudaDeviceInfo info;
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status == cudaErrorInsufficientDriver) {
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    info.why_not = driver == 0 ? "no NVIDIA driver"
                               : "the NVIDIA driver (CUDA " + std::to_string(driver / 1000) + "." +
                                     std::to_string(driver % 1000 / 10) + ") is older than this program's CUDA " +
                                     std::to_string(runtime / 1000) + "." + std::to_string(runtime % 1000 / 10);
    return info;
  }
  if (status != cudaSuccess || devices == 0) {
    info.why_not = status == cudaSuccess || status == cudaErrorNoDevice ? "no GPU" : cudaGetErrorString(status);
    return info;
  }
  if (device < 0 || device >= devices) {
    info.why_not = "there is no GPU " + std::to_string(device) + ": this process sees " + std::to_string(devices);
    return info;
  }
  cudaDeviceProp properties{};
  size_t free = 0, total = 0;
  if (cudaSetDevice(device) != cudaSuccess || cudaGetDeviceProperties(&properties, device) != cudaSuccess ||
      cudaMemGetInfo(&free, &total) != cudaSuccess) {
    info.why_not = cudaGetErrorString(cudaGetLastError());
    return info;
  }
  info.name = properties.name;
  info.compute_capability = properties.major * 10 + properties.minor;
  info.free_bytes = static_cast<int64_t>(free);
  info.usable = info.compute_capability >= 80;
  if (!info.usable) info.why_not = info.name + " has compute capability below 8.0, which BF16 needs";
  if (info.usable) require_device_code(device);
  return info;
}

int64_t cuda_model_bytes(const ModelOptions& options, const CudaModelOptions& cuda_options) {
  Arena count(nullptr);
  lay_out(count, options, ParameterTable(options.config), cuda_options.recompute);
  return static_cast<int64_t>(count.size() + backend_options(cuda_options).scratch_bytes);
}

std::unique_ptr<Model> make_cuda_model(const ModelOptions& options, const CudaModelOptions& cuda_options) {
  return std::make_unique<GPT2Cuda>(options, cuda_options);
}

GPT2Cuda::GPT2Cuda(const ModelOptions& options, const CudaModelOptions& cuda_options)
    : config_(options.config),
      options_(options),
      table_(config_),
      at_(table_),
      recompute_(cuda_options.recompute),
      use_graph_(cuda_options.cuda_graph),
      // --recompute gelu, and a block in BF16 among FP8 ones, make GELU's output again with our kernel, whose bits are
      // not those of cuBLASLt's epilogue: forward then uses our kernel too, so that backward reads what forward used.
      fuse_gelu_(cuda_options.fuse_gelu && recompute_ != Recompute::gelu && options.precision != Precision::fp8),
      cuda_(backend_options(cuda_options)),
      nvml_(pci_bus_id(cuda_.options.device)) {
  cudaDeviceProp properties{};
  CUDA_CHECK(cudaGetDeviceProperties(&properties, cuda_.options.device));
  device_name_ = properties.name;

  if (options.precision == Precision::fp8) check_fp8_shape(config_.channels, options.seq_len);
  Arena count(nullptr);
  lay_out(count, options, table_, recompute_);
  size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  if (count.size() > free) {
    throw Error(ExitCode::device,
                "the model needs " + format_bytes(static_cast<int64_t>(count.size())) + " of GPU memory and " +
                    format_bytes(static_cast<int64_t>(free)) + " of " + format_bytes(static_cast<int64_t>(total)) +
                    " are free",
                "use a smaller --batch_size (accumulation keeps the step the same), or --recompute gelu or block");
  }
  memory_ = std::make_unique<DeviceMemory>(count.size());
  Arena arena(memory_->data());
  b_ = lay_out(arena, options, table_, recompute_);
  memory_report_ = arena.report();
  memory_report_.push_back({"library workspace", static_cast<int64_t>(cuda_.scratch_bytes)});

  const size_t tokens = 2 * static_cast<size_t>(options.batch_size) * options.seq_len;
  for (size_t i = 0; i < kTokenSlots; ++i) slots_.push_back({Pinned<int32_t>(tokens), Event()});

  const std::vector<uint8_t> decay = make_decay_mask(table_);
  CUDA_CHECK(cudaMemcpy(b_.decay_mask, decay.data(), decay.size(), cudaMemcpyHostToDevice));
  for (float* buffer : {b_.master, b_.grad, b_.adam_m, b_.adam_v})
    CUDA_CHECK(cudaMemsetAsync(buffer, 0, table_.size() * sizeof(float), cuda_.stream));
  CUDA_CHECK(cudaMemsetAsync(b_.guard, 0, sizeof(GuardState), cuda_.stream));
  initialize_recipe();
  initialize_on_device();
}

GPT2Cuda::~GPT2Cuda() { cudaStreamSynchronize(cuda_.stream); } // the buffers are in use until then

// ---- one step ----

void GPT2Cuda::check(const Batch& batch) const {
  const size_t tokens = static_cast<size_t>(batch.tokens());
  if (batch.batch_size > options_.batch_size || batch.seq_len > options_.seq_len || batch.inputs.size() != tokens ||
      batch.targets.size() != tokens)
    throw std::logic_error("batch of " + std::to_string(batch.batch_size) + " x " + std::to_string(batch.seq_len) +
                           " does not fit the shape the model was built for");
  // Kernels index by token: a foreign id would be an access out of bounds on the device.
  const auto foreign = [&](int32_t token) { return token >= config_.vocab || token < 0; };
  const auto input = std::find_if(batch.inputs.begin(), batch.inputs.end(), foreign);
  const auto target = std::find_if(batch.targets.begin(), batch.targets.end(),
                                   [&](int32_t token) { return token != kIgnoredTarget && foreign(token); });
  if (input == batch.inputs.end() && target == batch.targets.end()) return;
  throw Error(ExitCode::data,
              "token " + std::to_string(input != batch.inputs.end() ? *input : *target) +
                  " is outside the vocabulary of " + std::to_string(config_.vocab),
              "tokenise the data with GPT-2's tables");
}

void GPT2Cuda::upload(const Batch& batch) {
  check(batch);
  TokenSlot& slot = slots_[next_slot_++ % slots_.size()];
  slot.copied.wait(); // returns at once unless the host is kTokenSlots micro-batches ahead
  const size_t bytes = batch.inputs.size_bytes();
  int32_t* const host_targets = slot.tokens.get() + batch.inputs.size();
  std::memcpy(slot.tokens.get(), batch.inputs.data(), bytes);
  std::memcpy(host_targets, batch.targets.data(), bytes);
  CUDA_CHECK(cudaMemcpyAsync(b_.inputs, slot.tokens.get(), bytes, cudaMemcpyHostToDevice, cuda_.stream));
  CUDA_CHECK(cudaMemcpyAsync(b_.targets, host_targets, bytes, cudaMemcpyHostToDevice, cuda_.stream));
  slot.copied.record(cuda_.stream);
}

void GPT2Cuda::forward_and_head(int B, int T, StepScalars* scalars, bool backward) {
  const int64_t R = static_cast<int64_t>(B) * T;
  forward(B, T);
  if (fp8() && options_.fp8.lm_head)
    head_fp8(R, scalars, backward);
  else
    head(R, scalars, backward);
}

void GPT2Cuda::forward_backward(int B, int T) {
  forward_and_head(B, T, b_.step, true);
  backward(B, T);
}

void GPT2Cuda::begin_step(int B, int T) {
  const auto zero = [&] {
    CUDA_CHECK(cudaMemsetAsync(b_.grad, 0, table_.size() * sizeof(float), cuda_.stream));
    CUDA_CHECK(cudaMemsetAsync(b_.step, 0, sizeof(StepScalars), cuda_.stream));
  };
  zero();
  step_tokens_ = 0;
  if (!fp8()) return;
  if (recipe_->calibration_due()) {
    calibrate(B, T);
    zero();
  }
  if (weights_stale_) quantize_weights();
}

// The first micro-step of a shape runs eagerly, because plans are made then; the second is captured and replayed.
void GPT2Cuda::micro_step(const Batch& batch, int index, int /*count*/) {
  const int B = batch.batch_size, T = batch.seq_len;
  upload(batch);
  if (index == 0) begin_step(B, T);
  step_tokens_ += batch.tokens();
  const bool warm = B == warm_batch_ && T == warm_seq_;
  if (!use_graph_ || cuda_.profile || !warm) {
    if (!warm) micro_step_graph_.reset();
    forward_backward(B, T);
    warm_batch_ = B;
    warm_seq_ = T;
    return;
  }
  if (!micro_step_graph_) micro_step_graph_.capture(cuda_.stream, [&] { forward_backward(B, T); });
  micro_step_graph_.launch(cuda_.stream);
}

void GPT2Cuda::update(const UpdateSettings& settings) {
  const AdamWSettings& a = settings.adamw;
  gradient_norm(cuda_, {.scalars = b_.step, .grad = b_.grad, .count = table_.size()});
  judge(cuda_, {.scalars = b_.step, .guard = b_.guard, .limits = settings.limits, .grad_clip = settings.grad_clip});
  adamw(cuda_, {.master = b_.master,
                .weights = b_.weights,
                .m = b_.adam_m,
                .v = b_.adam_v,
                .grad = b_.grad,
                .decay_mask = b_.decay_mask,
                .scalars = b_.step,
                .guard = b_.guard,
                .count = table_.size(),
                .lr = a.lr,
                .beta1 = a.beta1,
                .beta2 = a.beta2,
                .eps = a.eps,
                .weight_decay = a.weight_decay});
  if (fp8()) fp8_end_step(cuda_, b_.fp8.scales, b_.step);
  weights_stale_ = true;
  StepOutcome* const outcome = outcome_.get();
  CUDA_CHECK(cudaMemcpyAsync(&outcome->scalars, b_.step, sizeof(StepScalars), cudaMemcpyDeviceToHost, cuda_.stream));
  CUDA_CHECK(cudaMemcpyAsync(&outcome->guard, b_.guard, sizeof(GuardState), cudaMemcpyDeviceToHost, cuda_.stream));
  outcome_ready_.record(cuda_.stream);
}

StepResult GPT2Cuda::step_result() {
  outcome_ready_.wait();
  const StepOutcome& outcome = *outcome_.get();
  if (fp8()) recipe_->note_skips(outcome.guard.skipped_in_a_row);
  return {.loss = outcome.scalars.loss,
          .grad_norm = outcome.scalars.grad_norm,
          .tokens = outcome.scalars.tokens,
          .verdict = outcome.scalars.verdict,
          .adam_step = outcome.guard.adam_step};
}

// ---- forward only ----

// Evaluation leaves no trace in the FP8 meters; before the first step there are no scales yet, and it takes its own.
void GPT2Cuda::prepare_evaluation() {
  if (!fp8()) return;
  const bool cold = recipe_->calibration_due();
  current_scaling_ = cold || options_.fp8.current_scaling;
  if (weights_stale_) quantize_weights();
  silent_ = !current_scaling_;
}

void GPT2Cuda::finish_evaluation() {
  if (!fp8()) return;
  if (!silent_) fp8_forget(cuda_, b_.fp8.scales);
  if (!silent_) weights_stale_ = true;
  silent_ = false;
  current_scaling_ = options_.fp8.current_scaling;
}

void GPT2Cuda::evaluate(const Batch& batch, std::span<LossSum> rows) {
  upload(batch);
  prepare_evaluation();
  forward_and_head(batch.batch_size, batch.seq_len, b_.eval, false);
  finish_evaluation();
  std::vector<float> losses(batch.inputs.size()); // 4 bytes a token: nothing beside the pass that made them
  CUDA_CHECK(
      cudaMemcpyAsync(losses.data(), b_.losses, losses.size() * sizeof(float), cudaMemcpyDeviceToHost, cuda_.stream));
  CUDA_CHECK(cudaStreamSynchronize(cuda_.stream));
  sum_rows(batch, losses, rows);
}

// Always at full length: attention is causal, so what stands behind the last token changes nothing, and one shape
// needs one set of plans.
void GPT2Cuda::next_token_logits(std::span<const int32_t> tokens, std::span<float> logits) {
  const int T = options_.seq_len, C = config_.channels;
  std::vector<int32_t> inputs(T, 0), targets(T, kIgnoredTarget);
  std::copy(tokens.begin(), tokens.end(), inputs.begin());
  upload({.batch_size = 1, .seq_len = T, .inputs = inputs, .targets = targets});
  prepare_evaluation();
  forward(1, T);
  layernorm(b_.h_final, final_layernorm_layer(), T); // in BF16: FP8 products want 16 rows, and this is one
  finish_evaluation();
  const bf16* const last = b_.h_final + (static_cast<int64_t>(tokens.size()) - 1) * C;
  linear(b_.logits, last, lm_head_layer(), 1); // (1, C) -> (1, Vp)
  std::vector<bf16> values(logits.size());
  CUDA_CHECK(
      cudaMemcpyAsync(values.data(), b_.logits, values.size() * sizeof(bf16), cudaMemcpyDeviceToHost, cuda_.stream));
  CUDA_CHECK(cudaStreamSynchronize(cuda_.stream));
  std::transform(values.begin(), values.end(), logits.begin(), [](bf16 value) { return __bfloat162float(value); });
}

} // namespace gpt2
