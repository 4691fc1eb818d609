// A training step around the architecture: memory, token upload, the captured micro-step, the optimizer, results.
#include <cuda_bf16.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "engine/base/log.h"
#include "engine/cuda/gpt2_cuda_model.h"
#include "kernels/cuda/attention_cudnn.h"
#include "kernels/cuda/gemm_plans.h"
#include "kernels/cuda/open_device.h"
#include "kernels/fill.h"
#include "kernels/layernorm.h"
#include "kernels/optimizer.h"
#include "kernels/sm90/attention.h"
#include "kernels/sm90/gemm_fp8_weight_stationary.h"
#include "kernels/sm90/wgrad_gemm_splitk.h"

namespace gpt2 {

namespace {

constexpr size_t kTokenSlots = 4; // micro-batches in flight to the device

CudaOptions backend_options(const CudaModelOptions& options) {
  return {.device = options.device,
          .deterministic = options.deterministic,
          .plan_cache = options.plan_cache,
          .attention = options.attention,
          .kernels = options.kernels};
}

std::string pci_bus_id(int device) {
  char id[32] = "";
  CUDA_CHECK(cudaDeviceGetPCIBusId(id, sizeof id, device));
  return id;
}

// FP8 never saves GELU's output, so --recompute gelu would not help.
std::string memory_hint(const ModelOptions& options) {
  return "use a smaller --batch_size (accumulation keeps the step the same), or --recompute " +
         std::string(options.precision == Precision::fp8 ? "block" : "gelu or block");
}

// Send and receive buffers of the gradient exchange in BF16.
size_t exchange_bytes(const ParameterTable& table, const SharingOptions& sharing, int ranks) {
  if (ranks == 1 || sharing.grad_exchange != GradExchange::bf16) return 0;
  return 2 * static_cast<size_t>(table.largest_bucket()) * sizeof(bf16);
}

MemoryLine copy_for_checkpoints(const ParameterTable& table, std::span<const OwnedSlice> owned) {
  return {"copy for checkpoints", int64_t{sizeof(float)} * FlatSnapshot::floats(table, owned, true), true};
}

// Workspace that cuDNN allocates at the first step; 0 with our attention kernels.
size_t attention_bytes(const ModelOptions& options, const CudaModelOptions& cuda_options) {
  const int planned = cuda_options.compute_capability;
  const bool sm90_kernels =
      uses_sm90_kernels(planned ? planned : compute_capability_of(cuda_options.device), cuda_options.kernels);
  if (sm90::can_implement_attention(sm90_kernels, cuda_options.attention, options.batch_size, options.seq_len,
                                    options.config.head_dim()))
    return 0;
  if (options.documents.mask) return 0; // cuDNN has no mask of documents
  return attention_workspace_bytes(cuda_options.attention, cuda_options.deterministic, options.batch_size,
                                   options.seq_len, options.config.heads, options.config.head_dim());
}

std::unique_ptr<DeviceMemory> allocate(const ModelOptions& options, const CudaModelOptions& cuda_options,
                                       const ParameterTable& table, bool sharded, size_t exchange) {
  Arena count(nullptr);
  lay_out(count, options, table, cuda_options.recompute, sharded);
  const size_t needed = count.size() + attention_bytes(options, cuda_options) + exchange;
  size_t free = 0, total = 0;
  CUDA_CHECK(device_memory_info(&free, &total));
  if (needed > free) {
    throw Error(ExitCode::device,
                "the model needs " + format_bytes(static_cast<double>(needed)) + " of GPU memory and " +
                    format_bytes(static_cast<double>(free)) + " of " + format_bytes(static_cast<double>(total)) +
                    (cuda_options.memory_limit ? " (--memory_limit) are free" : " are free"),
                memory_hint(options));
  }
  return std::make_unique<DeviceMemory>(count.size());
}

CudaBuffers lay_out_in(DeviceMemory& memory, const ModelOptions& options, const ParameterTable& table,
                       Recompute recompute, bool sharded, std::vector<MemoryLine>& report) {
  Arena arena(memory.data());
  const CudaBuffers buffers = lay_out(arena, options, table, recompute, sharded);
  report = arena.report();
  return buffers;
}

const ModelOptions& checked(const ModelOptions& options) {
  validate(options);
  const int channels = options.config.channels;
  if (channels % 8 != 0 || channels > kMaxGpuChannels) {
    throw Error(ExitCode::usage, "--channels " + std::to_string(channels) + " is not supported on the GPU",
                "choose a multiple of 8, at most " + std::to_string(kMaxGpuChannels));
  }
  if (options.precision == Precision::fp8) check_fp8_shape(options.config.channels, options.seq_len);
  return options;
}

} // namespace

// ---- construction ----

int64_t cuda_model_bytes(const ModelOptions& options, const CudaModelOptions& cuda_options) {
  return device_bytes(cuda_model_memory(options, cuda_options, 1));
}

std::vector<MemoryLine> cuda_model_memory(const ModelOptions& options, const CudaModelOptions& cuda_options,
                                          int ranks) {
  if (cuda_options.recompute == Recompute::automatic) // as settled() where memory is plenty
    return cuda_model_memory(options, settled(options, cuda_options, INT64_MAX, ranks), ranks);
  const ParameterTable table(checked(options).config, ranks, options.optimizer);
  const bool sharded = ranks > 1 && cuda_options.sharing.shard_optimizer;
  Arena count(nullptr);
  lay_out(count, options, table, cuda_options.recompute, sharded);
  std::vector<MemoryLine> lines = count.report();
  lines.push_back({"library workspace", static_cast<int64_t>(backend_options(cuda_options).bytes_per_stream() +
                                                             attention_bytes(options, cuda_options))});
  if (const size_t exchange = exchange_bytes(table, cuda_options.sharing, ranks))
    lines.push_back({"gradients in BF16", static_cast<int64_t>(exchange)});
  if (options.purpose == Purpose::training) lines.push_back(copy_for_checkpoints(table, table.shard(0)));
  return lines;
}

CudaModelOptions settled(const ModelOptions& options, CudaModelOptions cuda_options, int64_t free_bytes, int ranks) {
  if (cuda_options.recompute != Recompute::automatic) return cuda_options;
  cuda_options.recompute = Recompute::none;
  if (device_bytes(cuda_model_memory(options, cuda_options, ranks)) > free_bytes)
    cuda_options.recompute = Recompute::block;
  return cuda_options;
}

std::unique_ptr<Model> make_cuda_model(const ModelOptions& options, const CudaModelOptions& cuda_options) {
  RankGroup alone;
  return make_cuda_model(options, cuda_options, alone);
}

std::unique_ptr<Model> make_cuda_model(const ModelOptions& options, const CudaModelOptions& cuda_options,
                                       RankGroup& group) {
  if (cuda_options.recompute != Recompute::automatic) return std::make_unique<GPT2Cuda>(options, cuda_options, group);
  const CudaModelOptions chosen =
      settled(options, cuda_options, probe_cuda_device(cuda_options.device).free_bytes, group.ranks());
  if (chosen.recompute == Recompute::block && options.purpose == Purpose::training)
    log_info(
        "note: --recompute auto is block: the activations do not fit, and a second forward pass costs about a "
        "quarter of the speed");
  return std::make_unique<GPT2Cuda>(options, chosen, group);
}

GPT2Cuda::GPT2Cuda(const ModelOptions& options, const CudaModelOptions& cuda_options, RankGroup& group)
    : config_(options.config),
      options_(checked(options)),
      table_(config_, group.ranks(), options.optimizer),
      at_(table_),
      owned_(table_.shard(group.rank())),
      sharded_(!group.alone() && cuda_options.sharing.shard_optimizer),
      updated_(sharded_ ? owned_ : whole(table_)),
      adamw_(second_moment_slices(table_, updated_)),
      recompute_(cuda_options.recompute),
      fuse_gelu_(cuda_options.fuse_gelu),
      use_graph_(cuda_options.cuda_graph),
      cuda_(open_device(backend_options(cuda_options))),
      memory_(allocate(options, cuda_options, table_, sharded_,
                       exchange_bytes(table_, cuda_options.sharing, group.ranks()))),
      b_(lay_out_in(*memory_, options, table_, recompute_, sharded_, memory_report_)),
      context_{cuda_, config_, b_},
      linears_(context_),
      norms_(context_),
      attention_(context_),
      embedding_(context_, at_),
      losses_(context_),
      rank_(group.rank()),
      rank_count_(group.ranks()),
      timeline_path_(cuda_options.timeline),
      nvml_(pci_bus_id(cuda_options.device)) {
  cuda_.device->gemms->add(sm90::gemm_fp8_weight_stationary());
  cuda_.device->gemms->add(sm90::wgrad_gemm_splitk());
  memory_report_.push_back({"library workspace", static_cast<int64_t>(cuda_.device->options.bytes_per_stream() +
                                                                      attention_bytes(options, cuda_options))});
  const size_t tokens = 2 * static_cast<size_t>(options.batch_size) * options.seq_len;
  for (size_t i = 0; i < kTokenSlots; ++i) slots_.push_back({Pinned<int32_t>(tokens), Pinned<int64_t>(1), Event()});

  const auto zero = [&](float* buffer, int64_t count) {
    CUDA_CHECK(cudaMemsetAsync(buffer, 0, static_cast<size_t>(count) * sizeof(float), cuda_.stream));
  };
  const int64_t owned = compact_size(updated_);
  CUDA_CHECK(cudaMemsetAsync(b_.guard, 0, sizeof(GuardState), cuda_.stream));
  zero(b_.master, owned); // padding between tensors and padded vocabulary rows stay zero
  if (trains()) {
    copy_to_device(cuda_.stream, b_.decay_mask, std::span<const uint8_t>(make_decay_mask(table_)));
    zero(b_.grad, table_.size());
    zero(b_.adam_m, owned);
    zero(b_.adam_v, compact_size(adamw_));
  }
  if (!group.alone()) ranks_ = std::make_unique<CudaRanks>(group, cuda_, cuda_options.sharing, table_, b_);
  if (options.precision == Precision::fp8) fp8_ = std::make_unique<Fp8>(context_, options.fp8, ranks_.get());
  if (trains()) {
    if (options.optimizer == Optimizer::muon)
      muon_ = std::make_unique<MuonCuda>(cuda_, b_, table_, updated_, adamw_, sharded_ ? ranks_.get() : nullptr, rank_);
    copier_ = std::make_unique<StateCopier>(cuda_.device->options.device, FlatSnapshot::floats(table_, owned_, true));
    memory_report_.push_back(copy_for_checkpoints(table_, owned_));
  }
  initialize_on_device();
  if (ranks_) tune(group);
}

GPT2Cuda::~GPT2Cuda() {
  if (ranks_) ranks_->abort_if_lost();
  cudaStreamSynchronize(cuda_.stream); // the stream still uses the buffers
  if (ranks_) cudaStreamSynchronize(ranks_->stream().stream);
  try {
    if (timeline_) timeline_->write(timeline_path_); // the run ended while recording
  } catch (const Error&) {
  }
}

// Rank 0 finds a plan for every GEMM with a micro-batch of zeros and broadcasts the plans: ranks do not disturb each
// other's timing, and all compute the same bits.
void GPT2Cuda::tune(RankGroup& group) {
  if (group.leads()) {
    const auto busy = group.busy();
    const int B = options_.batch_size, T = options_.seq_len;
    for (int32_t* tokens : {b_.inputs, b_.targets})
      CUDA_CHECK(cudaMemsetAsync(tokens, 0, static_cast<size_t>(B) * T * sizeof(int32_t), cuda_.stream));
    run_all_gemms(B, T);
    if (fp8_ && fp8_->scaler.recipe().inactive()) { // also the GEMMs after --fp8_bf16_steps
      fp8_->scaler.set_inactive(false);
      run_all_gemms(B, T);
      fp8_->scaler.set_inactive(true);
    }
    if (muon_) muon_->run_all_gemms();
  }
  const std::string plans = group.broadcast(cuda_.device->gemms->to_text());
  if (!group.leads()) cuda_.device->gemms->from_text(plans);
}

// Fp8Pass::recomputing: no statistics, no collectives.
void GPT2Cuda::run_all_gemms(int B, int T) {
  if (fp8_) quantize_weights(Fp8Pass::recomputing);
  forward_backward(B, T, Fp8Pass::recomputing, Exchange::none);
  if (fp8_) run_calibration_gemms(int64_t{B} * T);
}

// ---- one step ----

void GPT2Cuda::upload(const Batch& batch, int64_t first_token) {
  check_batch(batch, options_);
  TokenSlot& slot = slots_[next_slot_++ % slots_.size()];
  slot.copied.wait(); // returns at once unless the host is kTokenSlots micro-batches ahead
  const size_t bytes = batch.inputs.size_bytes();
  int32_t* const host_targets = slot.tokens.get() + batch.inputs.size();
  std::memcpy(slot.tokens.get(), batch.inputs.data(), bytes);
  std::memcpy(host_targets, batch.targets.data(), bytes);
  CUDA_CHECK(cudaMemcpyAsync(b_.inputs, slot.tokens.get(), bytes, cudaMemcpyHostToDevice, cuda_.stream));
  CUDA_CHECK(cudaMemcpyAsync(b_.targets, host_targets, bytes, cudaMemcpyHostToDevice, cuda_.stream));
  if (fp8_) { // keys stochastic rounding
    *slot.first_token.get() = first_token;
    CUDA_CHECK(
        cudaMemcpyAsync(b_.first_token, slot.first_token.get(), sizeof(int64_t), cudaMemcpyHostToDevice, cuda_.stream));
  }
  slot.copied.record(cuda_.stream);
}

// Generated text is one document: separator kNoSeparator.
void GPT2Cuda::find_documents(int B, int T, int32_t separator) {
  if (!options_.documents.mask) return;
  gpt2::find_documents(cuda_, {.begin = b_.document_begin,
                               .end = b_.document_end,
                               .positions = b_.positions,
                               .tokens = b_.inputs,
                               .B = B,
                               .T = T,
                               .separator = separator});
}

void GPT2Cuda::forward_and_losses(int B, int T, bool backward, Fp8Pass pass, Exchange exchange) {
  const int64_t R = static_cast<int64_t>(B) * T;
  find_documents(B, T, options_.documents.separator);
  forward(B, T, pass, exchange);
  if (fp8_head())
    head_fp8(R, backward, pass);
  else
    head(R, backward);
}

void GPT2Cuda::forward_backward(int B, int T, Fp8Pass pass, Exchange exchange) {
  forward_and_losses(B, T, true, pass, exchange);
  losses_.accumulate(&b_.step->sums, static_cast<int64_t>(B) * T);
  backward(B, T, pass, exchange);
}

void GPT2Cuda::begin_step(int B, int T) {
  const auto zero = [&] {
    CUDA_CHECK(cudaMemsetAsync(b_.grad, 0, table_.size() * sizeof(float), cuda_.stream));
    CUDA_CHECK(cudaMemsetAsync(b_.step, 0, sizeof(StepScalars), cuda_.stream));
  };
  zero();
  step_tokens_ = 0;
  if (fp8_ && fp8_->scaler.begin_step()) invalidate_graphs(); // the captured graph has the other precision
  if (before_fp8()) return;
  if (!timeline_path_.empty()) record_timeline();
  if (!fp8_) return;
  // The captured graph has the other scaling.
  if (const bool now = fp8_->scaler.recipe().in_current_steps(); now != fp8_->captured_current_steps) {
    fp8_->captured_current_steps = now;
    invalidate_graphs();
  }
  if (fp8_->scaler.recipe().calibration_due()) {
    gather_weights(); // calibration reads the BF16 weights of all blocks
    calibrate(B, T);
    zero();
  }
  if (fp8_->weights != Fp8::Weights::stale) return;
  if (ranks_) ranks_->await_all();
  quantize_weights(Fp8Pass::training);
  fp8_->weights = Fp8::Weights::whole;
}

// The first micro-step of a shape runs eagerly, to make GEMM plans; the second is captured and replayed.
void GPT2Cuda::micro_step(const Batch& batch, int index, int count) {
  if (!trains()) throw std::logic_error("a model made for inference cannot train");
  const int B = batch.batch_size, T = batch.seq_len;
  upload(batch, (int64_t{index} * rank_count_ + rank_) * batch.tokens());
  if (index == 0) begin_step(B, T);
  micro_steps_ = count;
  step_tokens_ += batch.tokens();
  const Exchange exchange = ranks_ && index == count - 1 ? Exchange::reduce_gradients : Exchange::await_weights;
  const bool warm = B == warm_batch_ && T == warm_seq_;
  if (!use_graph_ || cuda_.profile || timeline_ || !warm) {
    if (!warm) {
      for (Graph& graph : micro_step_graphs_) graph.reset();
    }
    forward_backward(B, T, Fp8Pass::training, exchange);
    // NCCL connects at its first collective, which must not be captured.
    if (ranks_ && exchange != Exchange::reduce_gradients) return;
    warm_batch_ = B;
    warm_seq_ = T;
    return;
  }
  Graph& graph = micro_step_graphs_[exchange == Exchange::reduce_gradients];
  if (!graph) graph.capture(cuda_.stream, [&] { forward_backward(B, T, Fp8Pass::training, exchange); });
  graph.launch(cuda_.stream);
}

// The next micro-step runs eagerly and the one after is captured.
void GPT2Cuda::invalidate_graphs() { warm_batch_ = warm_seq_ = 0; }

void GPT2Cuda::leave_in_bf16(int layer) {
  if (!fp8_) return;
  fp8_->scaler.leave_in_bf16(layer);
  if (gathers_fp8_weights()) gather_weights(); // the block's BF16 weights are stale: ranks gathered FP8 alone
  invalidate_graphs();
}

// Norm, verdict, Muon and AdamW on this rank's slices, with collectives in between.
void GPT2Cuda::update(const UpdateSettings& settings) {
  const AdamWSettings& a = settings.adamw;
  const Timeline::Span span(timeline_.get(), cuda_.stream, "compute", "update");
  for (const auto [offset, count, at] : owned_)
    gradient_norm(cuda_, {.sums = &b_.step->sums, .grad = b_.grad + offset, .count = count});
  if (ranks_) {
    if (settings.stop_requested) fill_constant(cuda_, {.out = &b_.step->sums.stops, .count = 1, .value = 1.0});
    ranks_->all_reduce_sum(&b_.step->sums);
    if (fp8_) ranks_->all_reduce_max(b_.fp8.scales.amaxes, b_.fp8.scales.count);
  }
  judge(cuda_, {.scalars = b_.step, .guard = b_.guard, .limits = settings.limits, .grad_clip = settings.grad_clip});
  if (fp8_) {
    fp8_->scaler.end_step(b_.step);
    fp8_->stats_weights_sharded = fp8_->weights == Fp8::Weights::sharded;
    fp8_->weights = Fp8::Weights::stale;
  }
  if (copier_) copier_->hold(cuda_.stream);
  if (muon_) {
    muon_->update_matrices(settings.muon);
    muon_->update_rest(a);
    if (sharded_) ranks_->all_reduce_sum(&b_.step->updates);
  } else {
    adamw_everything(a);
  }
  if (sharded_) gather_update();
  StepOutcome* const outcome = outcome_.get();
  CUDA_CHECK(cudaMemcpyAsync(&outcome->scalars, b_.step, sizeof(StepScalars), cudaMemcpyDeviceToHost, cuda_.stream));
  CUDA_CHECK(cudaMemcpyAsync(&outcome->guard, b_.guard, sizeof(GuardState), cudaMemcpyDeviceToHost, cuda_.stream));
  if (fp8_)
    CUDA_CHECK(cudaMemcpyAsync(&outcome->fp8_applied_steps, b_.fp8.scales.applied_steps, sizeof(int64_t),
                               cudaMemcpyDeviceToHost, cuda_.stream));
  outcome_ready_.record(cuda_.stream);
}

void GPT2Cuda::adamw_everything(const AdamWSettings& a) {
  for (const auto [offset, count, at] : updated_) adamw_segment(cuda_, b_, {offset, at, at, count}, a);
}

StepResult GPT2Cuda::step_result() {
  if (ranks_)
    ranks_->wait(outcome_ready_, !(fp8_ && fp8_->scaler.recipe().measures_in_training()));
  else
    outcome_ready_.wait();
  if (copier_) copier_->start_pinning();
  const StepOutcome& outcome = *outcome_.get();
  if (fp8_) {
    fp8_->scaler.recipe().note_skips(outcome.guard.skipped_in_a_row);
    fp8_->scaler.recipe().note_applied(outcome.fp8_applied_steps);
  }
  return step_result_of(outcome.scalars, outcome.guard, ranks_ ? micro_steps_ * ranks_->own_seconds() : 0);
}

// Records two steps once plans and connections exist: the second shows the first one's weights arriving.
void GPT2Cuda::record_timeline() {
  constexpr int64_t kFirst = 4;
  const int64_t step = ++timeline_steps_;
  if (step == kFirst) timeline_ = std::make_unique<Timeline>();
  if (step == kFirst + 2) std::exchange(timeline_, nullptr)->write(timeline_path_);
  if (ranks_) ranks_->record(timeline_.get());
}

// ---- all-gather of weights ----

// In BF16: initial weights, a checkpoint's weights, and before calibration.
void GPT2Cuda::gather_weights() {
  if (!sharded_) return;
  ranks_->begin_gather();
  ranks_->gather_vectors();
  for (int bucket = 0; bucket <= config_.layers; ++bucket) {
    ranks_->gather_weights(table_.buckets()[static_cast<size_t>(bucket)]);
    ranks_->record_arrival(bucket);
  }
  ranks_->await_all();
  ranks_->wait_for_stream(); // here, so that time spent waiting for other ranks is counted as such
}

// After an update: FP8 blocks in E4M3, half the bytes, transposed by each rank; all other weights in BF16. The next
// forward pass waits for them block by block.
void GPT2Cuda::gather_update() {
  const bool in_fp8 = gathers_fp8_weights();
  if (in_fp8) {
    for (int layer = 0; layer < config_.layers; ++layer) {
      if (fp8_block(layer)) quantize_owned(layer, owned_[static_cast<size_t>(ParameterTable::block_bucket(layer))]);
    }
  }
  ranks_->begin_gather();
  ranks_->gather_vectors();
  ranks_->gather_weights(table_.buckets()[ParameterTable::kEmbeddings]);
  if (in_fp8 && fp8_head()) receive_lm_head();
  ranks_->record_arrival(ParameterTable::kEmbeddings);
  for (int layer = 0; layer < config_.layers; ++layer) {
    const int index = ParameterTable::block_bucket(layer);
    const Bucket& bucket = table_.buckets()[static_cast<size_t>(index)];
    if (in_fp8 && fp8_block(layer)) {
      ranks_->gather_fp8_weights(bucket);
      receive_block(layer);
    } else {
      ranks_->gather_weights(bucket);
    }
    ranks_->record_arrival(index);
  }
  if (in_fp8) fp8_->weights = Fp8::Weights::sharded;
}

// ---- forward only ----

// Weights quantized with the recipe's scales also serve the next step, so their statistics count there. Weights
// quantized with current scales (calibration due, or current scaling) serve inference alone.
void GPT2Cuda::prepare_inference() {
  if (ranks_) ranks_->await_all();
  if (!fp8_ || fp8_->weights != Fp8::Weights::stale) return;
  const bool measures = fp8_->scaler.recipe().measures(Fp8Pass::inference, Fp8Role::weight);
  quantize_weights(measures ? Fp8Pass::inference : Fp8Pass::training);
  fp8_->weights = measures ? Fp8::Weights::stale : Fp8::Weights::whole;
}

void GPT2Cuda::evaluate(const Batch& batch, std::span<LossSum> rows) {
  upload(batch);
  prepare_inference();
  forward_and_losses(batch.batch_size, batch.seq_len, false, Fp8Pass::inference, Exchange::none);
  std::vector<float> losses(batch.inputs.size()); // 4 bytes per token: negligible next to the forward pass
  copy_to_host(cuda_.stream, std::span(losses), b_.losses);
  sum_rows(batch, losses, rows);
}

// Always at full length: attention is causal, so padding after the last token has no effect, and one shape needs one
// set of plans.
void GPT2Cuda::next_token_logits(std::span<const int32_t> tokens, std::span<float> logits) {
  const int T = options_.seq_len, C = config_.channels;
  if (tokens.empty() || tokens.size() > static_cast<size_t>(T))
    throw std::invalid_argument("empty text, or longer than the model's seq_len");
  std::vector<int32_t> inputs(T, 0), targets(T, kIgnoredTarget);
  std::copy(tokens.begin(), tokens.end(), inputs.begin());
  upload({.batch_size = 1, .seq_len = T, .inputs = inputs, .targets = targets});
  prepare_inference();
  find_documents(1, T, kNoSeparator);
  forward(1, T, Fp8Pass::inference, Exchange::none);
  norms_.forward(b_.h_final, final_layernorm_layer(), T); // in BF16: FP8 GEMMs need 16 rows
  const bf16* const last = b_.h_final + (static_cast<int64_t>(tokens.size()) - 1) * C;
  linears_.forward(b_.logits, last, lm_head_layer(), 1); // (1, C) -> (1, Vp)
  std::vector<bf16> values(logits.size());
  copy_to_host(cuda_.stream, std::span(values), b_.logits);
  std::transform(values.begin(), values.end(), logits.begin(), [](bf16 value) { return __bfloat162float(value); });
}

} // namespace gpt2
