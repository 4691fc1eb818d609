#include "engine/options/run_plan.h"

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <optional>
#include <set>
#include <thread>

#include "engine/base/divisors.h"
#include "engine/base/error.h"
#include "engine/base/formatted.h"
#include "engine/base/parse_number.h"
#include "engine/base/split.h"
#include "engine/checkpoint/names.h"

namespace gpt2 {
namespace {

// ---- batches ----

// The multiples of `unit` around `number` that fit an int, as "480 or 528"; "": none.
std::string nearest_multiples(int number, int64_t unit) {
  const int64_t below = number / unit * unit, above = below + unit;
  std::string multiples = below > 0 ? std::to_string(below) : "";
  if (above <= INT_MAX) multiples += (below > 0 ? " or " : "") + std::to_string(above);
  return multiples;
}

// Sequences per step on each rank.
int target_per_rank(int target_batch_size, int ranks) {
  if (target_batch_size % ranks != 0) {
    throw Error(ExitCode::usage,
                concat(ranks, " ranks cannot share --target_batch_size ", target_batch_size, " sequences evenly"),
                "use --target_batch_size " + nearest_multiples(target_batch_size, ranks));
  }
  return target_batch_size / ranks;
}

// ---- lists of blocks ----

std::optional<int> block_of(const std::string& word, int layers) {
  if (word == "first") return 0;
  if (word == "last") return layers - 1;
  const std::optional<int> number = parse_number<int>(word);
  return number && *number >= 0 && *number < layers ? number : std::nullopt;
}

// ---- "auto" ----

Fp8Options fp8_options(const Options& options, int layers) {
  Fp8Options fp8;
  fp8.format = options.fp8_format;
  fp8.margin = options.fp8_margin;
  fp8.interval = options.fp8_interval;
  fp8.amax_history = options.fp8_amax_history;
  fp8.lm_head = options.fp8_lm_head;
  fp8.scaling = options.fp8_recipe;
  fp8.current_steps = std::max<int64_t>(options.fp8_current_steps, 0); // auto: set by make_plan()
  fp8.bf16_layers = parse_layer_list(options.fp8_bf16_layers, layers);
  return fp8;
}

// A step uses each sequence at most once.
void check_target(const std::string& flag, int target, int64_t train_sequences, int64_t unit) {
  if (target <= train_sequences) return;
  const int64_t largest = train_sequences / unit * unit;
  throw Error(ExitCode::usage,
              concat(flag, target, " is more than the ", train_sequences, " sequences of the training data"),
              (largest > 0 ? concat("use ", flag, largest, " or less") : "use a smaller --batch_size") +
                  ", a smaller --seq_len, or more data");
}

// A step of every phase is a whole number of micro-batches on every rank.
void check_ramp(const BatchRamp& ramp, int batch_size, int ranks) {
  const int64_t unit = int64_t{ranks} * batch_size;
  for (const auto& [sequences, first] : ramp.phases()) {
    if (sequences % unit == 0) continue;
    const std::string multiples = nearest_multiples(sequences, unit);
    throw Error(ExitCode::usage,
                concat("--batch_ramp: ", sequences, "@", first, " is not a multiple of ",
                       batch_size > 1 ? concat("--batch_size ", batch_size) : "",
                       batch_size > 1 && ranks > 1 ? " x " : "", ranks > 1 ? concat(ranks, " ranks") : ""),
                "use " + multiples + " sequences there" + (batch_size > 1 ? ", or another --batch_size" : ""));
  }
}

// Sequences per step. The model's default is halved while an epoch has fewer than 8 steps of it and a half can be cut
// into the micro-batches that were asked for: 512 sequences of a text that has 293 would be one step over and over. A
// default that is no multiple of --batch_size becomes the nearest one.
int resolve_target(const Options& options, const ModelDefaults& defaults, int64_t train_sequences, int ranks,
                   std::vector<std::string>& notes) {
  constexpr int kFewestStepsPerEpoch = 8;
  const int64_t unit = int64_t{ranks} * std::max(1, options.batch_size);
  if (options.target_batch_size > 0 || !options.batch_ramp.empty()) {
    const BatchRamp ramp = ramp_of(options);
    const std::string flag = options.batch_ramp.empty() ? "--target_batch_size " : "--batch_ramp: ";
    for (const BatchRamp::Phase& phase : ramp.phases()) check_target(flag, phase.sequences, train_sequences, unit);
    return ramp.last();
  }
  int target = defaults.target_batch_size;
  const bool round = options.batch_size > 0 && target % unit != 0 && unit <= INT_MAX;
  while (target > train_sequences / kFewestStepsPerEpoch && target % 2 == 0 && (round || target / 2 % unit == 0))
    target /= 2;
  const bool halved = target < defaults.target_batch_size;
  if (round) target = static_cast<int>(std::max<int64_t>(1, (target + unit / 2) / unit) * unit);
  check_target("--target_batch_size ", target, train_sequences, unit);
  if (halved) {
    notes.push_back(concat("the data has ", train_sequences, " sequences: a step takes ", target, " of them, not ",
                           defaults.target_batch_size, "; --target_batch_size overrides it"));
  } else if (round) {
    notes.push_back(concat("a step has ", target, " sequences, the multiple of --batch_size ", options.batch_size,
                           ranks > 1 ? concat(" x ", ranks, " ranks") : "", " nearest to ", defaults.target_batch_size,
                           "; --target_batch_size sets another number"));
  }
  return target;
}

// Without a given length a run has at most 40 epochs: beyond some tens a model memorizes its data.
int64_t resolve_steps(const Options& options, const ModelDefaults& defaults, int64_t train_sequences,
                      const BatchRamp& ramp, std::vector<std::string>& notes) {
  constexpr int kMostEpochs = 40;
  constexpr int64_t kFewestSteps = 100; // even of a few sequences: the loss needs them to fall
  if (options.max_steps > 0) return options.max_steps;
  const auto epoch = static_cast<double>(train_sequences);
  if (options.num_epochs > 0) return ramp.steps_for(options.num_epochs * epoch);
  const int64_t enough = std::max(kFewestSteps, ramp.steps_for(kMostEpochs * epoch));
  if (defaults.max_steps <= enough) return defaults.max_steps;
  const auto epochs = [&](int64_t steps) { return static_cast<int64_t>(ramp.sequences_before(steps) / epoch); };
  notes.push_back(concat("the default of ", defaults.max_steps, " steps would pass over this data ",
                         epochs(defaults.max_steps), " times: stopping after ", enough, " steps, ", epochs(enough),
                         " epochs; --max_steps or --num_epochs overrides it"));
  return enough;
}

// Steps between checkpoints that are kept: a fifth of the run, rounded up to a multiple of checkpoint_freq.
int64_t milestones(int64_t checkpoint_freq, int64_t max_steps) {
  constexpr int64_t kMilestones = 5;
  if (checkpoint_freq == 0) return 0;
  const int64_t saves = (max_steps - 1) / kMilestones / checkpoint_freq + 1;
  int64_t steps = 0;
  return __builtin_mul_overflow(saves, checkpoint_freq, &steps) ? 0 : steps;
}

// The model's default; in a short run a tenth of it, at least 10 steps, at most half of it. Fewer steps overshoot: 124M
// at the full rate from its second step on ends a run of 12 steps above its first loss.
int64_t automatic_warmup(const ModelDefaults& defaults, int64_t max_steps) {
  const int64_t least = std::min<int64_t>(10, max_steps / 2);
  return std::min(defaults.warmup_steps, std::max(max_steps / 10, least));
}

} // namespace

BatchRamp ramp_of(const Options& options) {
  return options.batch_ramp.empty() ? BatchRamp(std::max(1, options.target_batch_size)) : BatchRamp(options.batch_ramp);
}

BatchPlan plan_batches(int target_batch_size, int batch_size, int ranks) {
  const int per_rank = target_per_rank(target_batch_size, ranks);
  if (per_rank % batch_size == 0) return {batch_size, per_rank / batch_size};

  int64_t above = int64_t{batch_size} + 1;
  while (above < per_rank && per_rank % above != 0) ++above;
  const std::string sizes =
      concat(largest_divisor_at_most(per_rank, batch_size), above <= per_rank ? concat(" or ", above) : "");
  const std::string targets = nearest_multiples(target_batch_size, int64_t{batch_size} * ranks);
  throw Error(ExitCode::usage,
              concat("--target_batch_size ", target_batch_size, " is not a multiple of --batch_size ", batch_size,
                     ranks > 1 ? concat(" on ", ranks, " ranks") : ""),
              "use --batch_size " + sizes + (targets.empty() ? "" : ", or --target_batch_size " + targets));
}

std::vector<int> parse_layer_list(const std::string& list, int layers) {
  std::set<int> blocks;
  if (list.empty()) return {};
  std::string plain = list;
  std::erase(plain, ' ');
  for (const std::string& item : split(plain, ',')) {
    const std::vector<std::string> ends = split(item, '-');
    const std::optional<int> first = block_of(ends.front(), layers), last = block_of(ends.back(), layers);
    if (!first || !last || ends.size() > 2 || *first > *last) {
      throw Error(ExitCode::usage, "--fp8_bf16_layers: '" + item + "' is not a block of this model",
                  "use first, last, numbers from 0 to " + std::to_string(layers - 1) + " and ranges, as first,2-3");
    }
    for (int block = *first; block <= *last; ++block) blocks.insert(block);
  }
  return {blocks.begin(), blocks.end()};
}

GPT2Config resolve_config(const Options& options, bool gpu) {
  const std::string name = options.model != "auto" ? options.model : gpu ? "gpt2" : "nano";
  GPT2Config named = config_by_name(name);
  if (options.seq_len > 0) named.seq_len = options.seq_len;
  return with_shape(named, options.layers, options.heads, options.channels);
}

BackendOptions backend_options(const Options& o, const RankGroup& group) {
  const char* const home = std::getenv("HOME");
  const bool in_home = o.plan_cache.rfind("~/", 0) == 0 && home;
  BackendOptions backend{.device = o.device,
                         .precision = o.precision,
                         .mxfp8 = o.fp8_scenario == Fp8Scenario::mxfp8,
                         .threads = o.threads,
                         .cuda = {.deterministic = o.deterministic,
                                  .cuda_graph = o.cuda_graph,
                                  .recompute = o.recompute,
                                  .attention = o.attention,
                                  .kernels = o.kernels,
                                  .memory_limit = static_cast<int64_t>(o.memory_limit * (int64_t{1} << 30)),
                                  .plan_cache = in_home ? home + o.plan_cache.substr(1) : o.plan_cache,
                                  .sharing = {.shard_optimizer = o.zero == 1, .grad_exchange = o.grad_reduce},
                                  .share_device = o.share_gpu,
                                  .timeline = o.timeline},
                         .self_check = true};
  if (group.alone()) return backend;
  const int gpus = o.device == DeviceKind::cpu ? 0 : gpu_count();
  if (gpus > 1 && group.local_rank() >= gpus && !o.share_gpu) {
    throw Error(ExitCode::communication,
                concat(group.name_of(group.rank()), " is the ", group.local_rank() + 1, "th of its machine, which has ",
                       gpus, " GPUs"),
                "start one rank for each GPU");
  }
  if (!group.leads()) backend.cuda.timeline.clear();
  if (gpus > 1) backend.cuda.device = group.local_rank() % gpus; // a launcher may expose one GPU per rank
  if (backend.threads == 0) {
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    backend.threads = std::max(1, cores / group.local_ranks());
  }
  return backend;
}

KeepRule keep_rule(const Options& resolved) {
  KeepRule rule{
      .newest = resolved.keep_checkpoints, .every = resolved.keep_every, .due_every = resolved.checkpoint_freq};
  if (rule.newest < 0) { // auto
    rule.newest = 3;
    if (rule.every == 0) rule.every = milestones(resolved.checkpoint_freq, resolved.max_steps);
  }
  if (const int64_t start = cooldown_start(schedule_of(resolved)); rule.due_every > 0 && start < resolved.max_steps)
    rule.before_cooldown = start;
  return rule;
}

std::string checkpoint_dir_for(const Options& options, Precision precision) {
  return options.checkpoint_dir.empty() ? default_checkpoint_dir(precision) : options.checkpoint_dir;
}

Schedule schedule_of(const Options& resolved) {
  return {.decay = resolved.lr_schedule,
          .max_lr = resolved.max_lr,
          .min_lr_ratio = resolved.min_lr_ratio,
          .warmup_steps = resolved.warmup_steps,
          .max_steps = resolved.max_steps,
          .wsd_decay_ratio = resolved.wsd_decay_ratio,
          .ramp = resolved.batch_ramp_lr ? ramp_of(resolved) : BatchRamp()};
}

// FP8 from step 1 may diverge from BF16 during the first, largest weight updates and stay apart: docs/fp8.md measures
// the gain of 30 BF16 steps. At most a tenth of a short run.
int64_t automatic_bf16_steps(int64_t warmup_steps, int64_t max_steps) {
  return std::min({int64_t{30}, warmup_steps, max_steps / 10});
}

ModelOptions steady_state(ModelOptions options) {
  options.fp8.bf16_steps = 0;
  return options;
}

float adamw_rate(const Options& resolved, float lr) {
  return resolved.optimizer == Optimizer::muon ? lr * (resolved.adamw_lr / resolved.max_lr) : lr;
}

UpdateSettings update_settings(const Options& o, float lr) {
  return {.adamw = {.lr = adamw_rate(o, lr),
                    .beta1 = o.beta1,
                    .beta2 = o.beta2,
                    .eps = o.adam_eps,
                    .weight_decay = o.weight_decay},
          .muon = {.lr = lr,
                   .momentum = o.muon_momentum,
                   .weight_decay = o.weight_decay,
                   .momentum_warmup = o.muon_momentum_warmup,
                   .cautious_decay = o.muon_cautious_decay},
          .grad_clip = o.grad_clip,
          .limits = {.loss_z = o.skip_loss_z, .norm_z = o.skip_grad_z}};
}

RunPlan make_plan(const Options& options, const GPT2Config& config, Precision precision, int64_t train_sequences,
                  Backend& backend, int ranks) {
  if (backend.is_gpu() && precision == Precision::fp8) check_fp8_shape(config.channels, config.seq_len);
  if (backend.is_gpu() && options.document_mask && options.attention == AttentionKind::cudnn)
    throw Error(ExitCode::usage, "--attention cudnn has no mask of documents",
                "use --attention auto, or no --document_mask");
  const ModelDefaults defaults = defaults_for(config);
  RunPlan plan;
  Options& resolved = plan.options = options;
  if (resolved.model == "auto") resolved.model = backend.is_gpu() ? "gpt2" : "nano";
  resolved.seq_len = config.seq_len;
  resolved.checkpoint_dir = checkpoint_dir_for(options, precision);

  plan.model.config = config;
  plan.model.precision = precision;
  plan.model.fp8 = fp8_options(options, config.layers);
  plan.model.documents = {.mask = options.document_mask, .positions = options.document_positions};
  plan.model.seq_len = config.seq_len;
  plan.model.seed = options.seed;
  plan.model.optimizer = options.optimizer;
  plan.model.init_projections = options.init_projections;

  resolved.target_batch_size = resolve_target(options, defaults, train_sequences, ranks, plan.notes);
  plan.target_batch_size = resolved.target_batch_size;
  plan.ramp = ramp_of(resolved);
  if (!options.batch_ramp.empty()) check_ramp(plan.ramp, std::max(1, options.batch_size), ranks);
  if (options.batch_size == 0)
    resolved.batch_size = backend.choose_batch_size(plan.model, target_per_rank(plan.ramp.common_divisor(), ranks),
                                                    options.max_batch_size);
  plan.batch = plan_batches(plan.target_batch_size, resolved.batch_size, ranks);
  plan.model.batch_size = resolved.batch_size;

  plan.max_steps = resolved.max_steps = resolve_steps(options, defaults, train_sequences, plan.ramp, plan.notes);
  resolved.num_epochs = 0;
  if (options.eval_sequences == 0) // enough for a stable loss, cheap next to the steps between evaluations
    resolved.eval_sequences = static_cast<int>(std::clamp<int64_t>(int64_t{4} * plan.target_batch_size, 64, 256));
  plan.eval_sequences = resolved.eval_sequences;

  const bool muon = options.optimizer == Optimizer::muon;
  if (resolved.max_lr == 0) resolved.max_lr = muon ? defaults.muon_lr : defaults.max_lr;
  if (resolved.adamw_lr == 0 && muon) resolved.adamw_lr = defaults.muon_adamw_lr;
  if (resolved.warmup_steps < 0) resolved.warmup_steps = automatic_warmup(defaults, plan.max_steps);
  if (resolved.fp8_bf16_steps < 0)
    resolved.fp8_bf16_steps = automatic_bf16_steps(resolved.warmup_steps, plan.max_steps);
  if (resolved.fp8_current_steps < 0)
    resolved.fp8_current_steps = std::max<int64_t>(resolved.warmup_steps - resolved.fp8_bf16_steps, 0);
  plan.model.fp8.bf16_steps = resolved.fp8_bf16_steps; // after choose_batch_size(), which assumes FP8
  plan.model.fp8.current_steps = resolved.fp8_current_steps;
  plan.schedule = schedule_of(resolved);
  return plan;
}

std::vector<std::string> checkpoint_dirs(const Options& options) {
  if (options.checkpoint_dir.empty()) return default_checkpoint_dirs();
  return {options.checkpoint_dir};
}

} // namespace gpt2
