#include "engine/cpu/gpt2_cpu.h"

#include <omp.h>

#include <algorithm>
#include <stdexcept>

#include "engine/base/error.h"
#include "engine/base/formatted.h"

namespace gpt2 {
namespace {

const ModelOptions& validated(const ModelOptions& options) {
  validate(options);
  if (options.precision == Precision::bf16) {
    throw Error(ExitCode::usage, "the CPU engine computes in FP32 or emulated FP8, not in BF16",
                "use --precision fp32, or --precision fp8 to emulate FP8");
  }
  return options;
}

bool trains(const ModelOptions& options) { return options.purpose == Purpose::training; }

std::optional<Fp8RecipeState> make_recipe(const ModelOptions& options) {
  if (options.precision != Precision::fp8) return std::nullopt;
  return Fp8RecipeState(options.fp8, options.config.layers);
}

int64_t moment_bytes(const ParameterTable& table, std::span<const OwnedSlice> updated) {
  const int64_t floats = compact_size(updated) + compact_size(second_moment_slices(table, updated));
  return floats * static_cast<int64_t>(sizeof(float));
}

} // namespace

std::unique_ptr<Model> make_cpu_model(const ModelOptions& options, std::unique_ptr<Communicator> communicator,
                                      const SharingOptions& sharing) {
  return std::make_unique<GPT2Cpu>(options, std::move(communicator), sharing);
}

std::vector<MemoryLine> cpu_model_memory(const ModelOptions& options, int ranks, const SharingOptions& sharing) {
  const ParameterTable table(options.config, ranks, options.optimizer);
  const int64_t parameters = table.size() * int64_t{sizeof(float)}, trained = trains(options) ? parameters : 0;
  const bool sharded = ranks > 1 && sharing.shard_optimizer, muon = options.optimizer == Optimizer::muon;
  const int64_t moments = moment_bytes(table, sharded ? table.shard(0) : whole(table));
  std::vector<MemoryLine> lines = {{"parameters", parameters},
                                   {"gradients", trained},
                                   {muon ? "moments" : "Adam moments", trains(options) ? moments : 0},
                                   {"activations", CpuActivations::bytes_for(options)}};
  if (muon && trains(options)) lines.push_back({"Muon's workspace", MuonCpu::bytes(table, sharded ? ranks : 1)});
  if (options.precision == Precision::fp8) lines.push_back({"FP8 weights (emulated)", parameters});
  return lines;
}

GPT2Cpu::GPT2Cpu(const ModelOptions& options, std::unique_ptr<Communicator> communicator, const SharingOptions& sharing)
    : options_(validated(options)),
      communicator_(std::move(communicator)),
      sharing_(sharing),
      sharded_(communicator_->ranks() > 1 && sharing.shard_optimizer),
      config_(options.config),
      table_(config_, communicator_->ranks(), options.optimizer),
      at_(table_),
      owned_(table_.shard(communicator_->rank())),
      updated_(sharded_ ? owned_ : whole(table_)),
      adamw_(second_moment_slices(table_, updated_)),
      params_(table_.size()),
      grads_(trains(options) ? table_.size() : 0),
      adam_m_(trains(options) ? compact_size(updated_) : 0),
      adam_v_(trains(options) ? compact_size(adamw_) : 0),
      quantized_weights_(options.precision == Precision::fp8 ? table_.size() : 0),
      decay_mask_(make_decay_mask(table_)),
      activations_(options),
      recipe_(make_recipe(options)),
      linears_(cpu_,
               {.params = params_.data(),
                .grads = grads_.data(),
                .quantized_weights = quantized_weights_.data(),
                .scratch = activations_.quantized},
               recipe_, *communicator_) {
  if (trains(options) && options.optimizer == Optimizer::muon)
    muon_.emplace(table_, updated_, *communicator_, sharded_);
  initialize_parameters(params_.span(), table_, config_, options.seed, options.init_projections);
}

std::string GPT2Cpu::device_name() const { return "CPU, " + counted(omp_get_max_threads(), "thread"); }

// ---- one step ----

void GPT2Cpu::quantize_weights() {
  for (int layer = 0; layer < config_.layers; ++layer) {
    for (const Fp8Site site : {Fp8Site::qkv, Fp8Site::proj, Fp8Site::fc, Fp8Site::fcproj}) {
      linears_.quantize_weight(linear(layer, site));
    }
  }
  linears_.quantize_weight(linear(config_.layers, Fp8Site::lm_head));
  weights_stale_ = false;
}

void GPT2Cpu::forward_backward(const Batch& batch) {
  find_documents(batch);
  forward(batch);
  head(batch, true);
  backward(batch);
}

// A cold FP8 recipe runs the first micro-batch once for its amaxes alone; its gradients and loss are discarded.
void GPT2Cpu::begin_step(const Batch& first) {
  step_watch_ = {};
  waited_before_ = communicator_->waited_seconds();
  scalars_ = {};
  grads_.zero();
  if (!recipe_) return;
  if (recipe_before_) recipe_ = recipe_before_; // the last step was discarded
  recipe_before_ = recipe_;
  recipe_->begin_step();
  if (recipe_->calibration_due()) {
    linears_.begin_pass(Fp8Pass::calibrating);
    quantize_weights();
    forward_backward(first);
    recipe_->end_calibration();
    grads_.zero();
  }
  linears_.begin_pass(Fp8Pass::training);
  quantize_weights();
}

void GPT2Cpu::micro_step(const Batch& batch, int index, int /*count*/) {
  if (!trains(options_)) throw std::logic_error("a model made for inference cannot train");
  check_batch(batch, options_);
  first_token_ = (int64_t{index} * communicator_->ranks() + communicator_->rank()) * batch.tokens();
  if (index == 0) begin_step(batch);
  linears_.begin_pass(Fp8Pass::training);
  forward_backward(batch);
  accumulate_loss(
      cpu_,
      {.sums = &scalars_.sums, .losses = activations_.losses, .targets = batch.targets.data(), .rows = batch.tokens()});
}

// Sums gradients over ranks; sharded: each rank gets its own slices alone.
void GPT2Cpu::reduce_gradients() {
  for (const Bucket& bucket : table_.buckets()) {
    const int64_t part = bucket.count / communicator_->ranks();
    communicator_->reduce_scatter(grads_.data() + bucket.offset, part, sharing_.grad_exchange);
  }
  if (!sharded_) gather_buckets(*communicator_, table_.buckets(), grads_);
}

// Norm, verdict, Muon and AdamW on this rank's slices, with collectives before, between and after.
void GPT2Cpu::update(const UpdateSettings& settings) {
  const AdamWSettings& adam = settings.adamw;
  reduce_gradients();
  for (const auto [offset, count, at] : owned_)
    gradient_norm(cpu_, {.sums = &scalars_.sums, .grad = grads_.data() + offset, .count = count});
  scalars_.sums.stops = settings.stop_requested ? 1 : 0;
  communicator_->all_reduce_sum(&scalars_.sums.loss, sizeof(StepSums) / sizeof(double));
  judge(cpu_, {.scalars = &scalars_, .guard = &guard_, .limits = settings.limits, .grad_clip = settings.grad_clip});
  if (muon_)
    muon_->update(cpu_, settings.muon,
                  {.params = params_.data(),
                   .momentum = adam_m_.data(),
                   .grad = grads_.data(),
                   .scalars = &scalars_,
                   .guard = &guard_});
  for (const auto [offset, count, at] : adamw_) {
    adamw(cpu_, {.master = params_.data() + offset,
                 .weights = nullptr,
                 .m = adam_m_.data() + compact_offset(updated_, offset),
                 .v = adam_v_.data() + at,
                 .grad = grads_.data() + offset,
                 .decay_mask = decay_mask_.data() + offset / kDecayGranule,
                 .scalars = &scalars_,
                 .guard = &guard_,
                 .count = count,
                 .lr = adam.lr,
                 .beta1 = adam.beta1,
                 .beta2 = adam.beta2,
                 .eps = adam.eps,
                 .weight_decay = adam.weight_decay,
                 .update_square = muon_ ? &scalars_.updates.adamw : nullptr});
  }
  if (muon_ && sharded_) communicator_->all_reduce_sum(&scalars_.updates.matrices, 2);
  if (sharded_) gather_buckets(*communicator_, table_.buckets(), params_);
  if (recipe_) {
    std::vector<uint32_t> amaxes = recipe_->amaxes();
    communicator_->all_reduce_max(amaxes.data(), static_cast<int64_t>(amaxes.size()));
    recipe_->adopt_amaxes(amaxes);
    recipe_->end_step(scalars_.verdict == Verdict::applied);
    recipe_before_.reset();
  }
  weights_stale_ = true;
  own_seconds_ = step_watch_.seconds() - (communicator_->waited_seconds() - waited_before_);
}

// ---- forward only ----

void GPT2Cpu::begin_inference() {
  linears_.begin_pass(Fp8Pass::inference);
  if (recipe_ && weights_stale_) quantize_weights();
}

void GPT2Cpu::evaluate(const Batch& batch, std::span<LossSum> rows) {
  check_batch(batch, options_);
  begin_inference();
  find_documents(batch);
  forward(batch);
  head(batch, false);
  sum_rows(batch, {activations_.losses, static_cast<size_t>(batch.tokens())}, rows);
}

void GPT2Cpu::next_token_logits(std::span<const int32_t> tokens, std::span<float> logits) {
  if (static_cast<int>(logits.size()) != config_.vocab) throw std::invalid_argument("wrong size of the logits buffer");
  read_text(tokens, logits, [](int) {});
}

// ---- state ----

std::unique_ptr<StateSnapshot> GPT2Cpu::snapshot() {
  auto copy = std::make_unique<FlatSnapshot>(table_, owned_, trains(options_));
  const FlatState own = copy->spans();
  for (const auto [offset, count, at] : owned_) {
    std::copy_n(params_.data() + offset, count, own.params.begin() + at);
    if (trains(options_))
      std::copy_n(adam_m_.data() + compact_offset(updated_, offset), count, own.adam_m.begin() + at);
  }
  if (trains(options_)) {
    for (const auto [offset, count, at] : second_moment_slices(table_, owned_))
      std::copy_n(adam_v_.data() + compact_offset(adamw_, offset), count, own.adam_v.begin() + at);
  }
  copy->guard = guard_;
  copy->recipe = recipe_before_ ? recipe_before_ : recipe_;
  return copy;
}

// `own`: compact weights of updated_. Gathers the other ranks' slices.
void GPT2Cpu::adopt_weights(std::span<const float> own) {
  for (const auto [offset, count, at] : updated_) std::copy_n(own.begin() + at, count, params_.data() + offset);
  if (sharded_) gather_buckets(*communicator_, table_.buckets(), params_);
  scalars_ = {};
  recipe_before_.reset();
  weights_stale_ = true;
}

void GPT2Cpu::load_state(StateReader& reader) {
  std::vector<float> own(static_cast<size_t>(compact_size(updated_)));
  const bool continues =
      load_tensors(reader, table_, updated_, {.params = own, .adam_m = adam_m_.span(), .adam_v = adam_v_.span()});
  adopt_weights(own);
  guard_ = load_guard(reader, continues);
  if (recipe_) recipe_->load(reader);
}

void GPT2Cpu::load_weights(StateReader& reader) {
  std::vector<float> own(static_cast<size_t>(compact_size(updated_)));
  gpt2::load_weights(reader, table_, updated_, own);
  adopt_weights(own);
  adam_m_.zero();
  adam_v_.zero();
  guard_ = {};
  recipe_ = make_recipe(options_);
}

NamedTensor GPT2Cpu::read_tensor(const ParameterTensor& tensor, TensorKind kind) {
  NamedTensor out{.name = tensor.name, .shape = tensor.shape(), .values = {}, .begin = 0};
  for (const OwnedSlice& slice : owned_) {
    const TensorSlice part = slice_of(tensor, slice);
    if (part.count == 0) continue;
    const float* const values = (kind == TensorKind::weight ? params_ : grads_).data() + tensor.offset + part.begin;
    out.values.assign(values, values + part.count);
    out.begin = part.begin;
  }
  return out;
}

void GPT2Cpu::leave_in_bf16(int layer) {
  if (recipe_) recipe_->leave_in_bf16(layer);
}

} // namespace gpt2
