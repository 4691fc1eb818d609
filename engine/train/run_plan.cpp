#include "engine/train/run_plan.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <set>

#include "engine/base/divisors.h"
#include "engine/base/error.h"

namespace gpt2 {
namespace {

// ---- batches ----

// The multiples of `unit` around `number`, as "480 or 528".
std::string nearest_multiples(int number, int unit) {
  const int below = number / unit * unit;
  const std::string above = std::to_string(below + unit);
  return below > 0 ? std::to_string(below) + " or " + above : above;
}

// Sequences per step on each rank.
int target_per_rank(int target_batch_size, int ranks) {
  if (target_batch_size % ranks != 0) {
    throw Error(ExitCode::usage,
                std::to_string(ranks) + " ranks cannot share --target_batch_size " + std::to_string(target_batch_size) +
                    " sequences evenly",
                "use --target_batch_size " + nearest_multiples(target_batch_size, ranks));
  }
  return target_batch_size / ranks;
}

// ---- lists of blocks ----

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts{""};
  for (const char c : text) {
    if (c == separator)
      parts.emplace_back();
    else if (c != ' ')
      parts.back() += c;
  }
  return parts;
}

std::optional<int> block_of(const std::string& word, int layers) {
  if (word == "first") return 0;
  if (word == "last") return layers - 1;
  int number = -1;
  const auto [end, status] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (status != std::errc() || end != word.data() + word.size() || number < 0 || number >= layers) return std::nullopt;
  return number;
}

// ---- what "auto" stands for ----

Fp8Options fp8_options(const Options& options, int layers) {
  Fp8Options fp8;
  fp8.format = options.fp8_format;
  fp8.margin = options.fp8_margin;
  fp8.interval = options.fp8_interval;
  fp8.amax_history = options.fp8_amax_history;
  fp8.lm_head = options.fp8_lm_head;
  fp8.current_scaling = options.fp8_recipe == Fp8Scaling::current;
  fp8.bf16_layers = parse_layer_list("--fp8_bf16_layers", options.fp8_bf16_layers, layers);
  return fp8;
}

int64_t resolve_steps(const Options& options, const ModelDefaults& defaults, int64_t train_sequences, int target) {
  if (options.max_steps > 0) return options.max_steps;
  if (options.num_epochs > 0) {
    return std::max<int64_t>(
        1, std::llround(std::ceil(options.num_epochs * static_cast<double>(train_sequences) / target)));
  }
  return defaults.max_steps;
}

// A tenth of a run shorter than the model's usual one, but no fewer than 10 steps unless they are half of it: 124M at
// the full rate from its second step on overshoots, and a run of 12 steps ends above where it began.
int64_t automatic_warmup(const ModelDefaults& defaults, int64_t max_steps) {
  const int64_t least = std::min<int64_t>(10, max_steps / 2);
  return std::min(defaults.warmup_steps, std::max(max_steps / 10, least));
}

Schedule resolve_schedule(const Options& options, const ModelDefaults& defaults, int64_t max_steps) {
  Schedule schedule;
  schedule.decay = options.lr_schedule;
  schedule.max_lr = options.max_lr > 0 ? options.max_lr : defaults.max_lr;
  schedule.min_lr_ratio = options.min_lr_ratio;
  schedule.warmup_steps = options.warmup_steps >= 0 ? options.warmup_steps : automatic_warmup(defaults, max_steps);
  schedule.max_steps = max_steps;
  schedule.wsd_decay_ratio = options.wsd_decay_ratio;
  return schedule;
}

} // namespace

BatchPlan plan_batches(int target_batch_size, int batch_size, int ranks) {
  const int per_rank = target_per_rank(target_batch_size, ranks);
  if (per_rank % batch_size == 0) return {batch_size, per_rank / batch_size};

  std::string sizes = std::to_string(largest_divisor_at_most(per_rank, batch_size));
  for (int above = batch_size + 1; above <= per_rank; ++above) {
    if (per_rank % above == 0) {
      sizes += " or " + std::to_string(above);
      break;
    }
  }
  throw Error(ExitCode::usage,
              "--target_batch_size " + std::to_string(target_batch_size) + " is not a multiple of --batch_size " +
                  std::to_string(batch_size) + (ranks > 1 ? " on " + std::to_string(ranks) + " ranks" : ""),
              "use --batch_size " + sizes + ", or --target_batch_size " +
                  nearest_multiples(target_batch_size, batch_size * ranks));
}

std::vector<int> parse_layer_list(const std::string& flag, const std::string& list, int layers) {
  std::set<int> blocks;
  if (list.empty()) return {};
  for (const std::string& item : split(list, ',')) {
    const std::vector<std::string> ends = split(item, '-');
    const std::optional<int> first = block_of(ends.front(), layers), last = block_of(ends.back(), layers);
    if (!first || !last || ends.size() > 2 || *first > *last) {
      throw Error(ExitCode::usage, flag + ": '" + item + "' names no block of this model",
                  "give first, last, numbers from 0 to " + std::to_string(layers - 1) + " and ranges, as first,2-3");
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

BackendOptions backend_options(const Options& o) {
  const char* const home = std::getenv("HOME");
  const bool in_home = o.plan_cache.rfind("~/", 0) == 0 && home;
  return {.device = o.device,
          .precision = o.precision,
          .mxfp8 = o.fp8_scenario == Fp8Scenario::mxfp8,
          .threads = o.threads,
          .cuda = {.deterministic = o.deterministic,
                   .cuda_graph = o.cuda_graph,
                   .recompute = o.recompute,
                   .attention = o.attention,
                   .plan_cache = in_home ? home + o.plan_cache.substr(1) : o.plan_cache}};
}

RunPlan make_plan(const Options& options, const GPT2Config& config, Precision precision, int64_t train_sequences,
                  Backend& backend, int ranks) {
  if (backend.is_gpu() && precision == Precision::fp8) check_fp8_shape(config.channels, config.seq_len);
  const ModelDefaults defaults = defaults_for(config);
  RunPlan plan;
  plan.model.config = config;
  plan.model.precision = precision;
  plan.model.fp8 = fp8_options(options, config.layers);
  plan.model.seq_len = config.seq_len;
  plan.model.seed = options.seed;

  plan.target_batch_size = options.target_batch_size > 0 ? options.target_batch_size : defaults.target_batch_size;
  const int batch_size = options.batch_size > 0
                             ? options.batch_size
                             : backend.choose_batch_size(plan.model, target_per_rank(plan.target_batch_size, ranks),
                                                         options.max_batch_size);
  plan.batch = plan_batches(plan.target_batch_size, batch_size, ranks);
  plan.model.batch_size = plan.batch.batch_size;

  plan.max_steps = resolve_steps(options, defaults, train_sequences, plan.target_batch_size);
  plan.schedule = resolve_schedule(options, defaults, plan.max_steps);
  // Enough for a steady number, little beside the steps between two evaluations.
  plan.eval_sequences =
      options.eval_sequences > 0 ? options.eval_sequences : std::clamp(4 * plan.target_batch_size, 64, 256);

  Options& resolved = plan.options = options;
  if (resolved.model == "auto") resolved.model = backend.is_gpu() ? "gpt2" : "nano";
  resolved.seq_len = config.seq_len;
  resolved.batch_size = plan.batch.batch_size;
  resolved.target_batch_size = plan.target_batch_size;
  resolved.max_steps = plan.max_steps;
  resolved.num_epochs = 0;
  resolved.max_lr = plan.schedule.max_lr;
  resolved.warmup_steps = plan.schedule.warmup_steps;
  resolved.eval_sequences = static_cast<int>(plan.eval_sequences);
  return plan;
}

} // namespace gpt2
