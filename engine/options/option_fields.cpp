#include "engine/options/option_fields.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>

#include "engine/base/formatted.h"
#include "engine/base/nearest_name.h"
#include "engine/base/parse_number.h"
#include "engine/base/toml.h"
#include "engine/checkpoint/names.h"
#include "engine/options/flag_aliases.h"

namespace gpt2 {
namespace {

template <typename Number>
Number as_whole(double value, const std::string& text) {
  constexpr double kExact = 9007199254740992.0; // 2^53: up to here a double holds every integer
  if (value != std::floor(value)) throw BadValue("'" + text + "' is not a whole number");
  if (std::abs(value) > std::min(kExact, static_cast<double>(std::numeric_limits<Number>::max())))
    throw BadValue(text + " is too large");
  if (value < 0 && std::is_unsigned_v<Number>) throw BadValue("'" + text + "' is not a whole number");
  return static_cast<Number>(value);
}

template <typename Number>
Number read(const std::string& text) {
  Number value{};
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status == std::errc::result_out_of_range) throw BadValue(text + " is too large");
  if constexpr (std::is_integral_v<Number>) {
    if (text.find_first_of("eE") != std::string::npos) return as_whole<Number>(read<double>(text), text); // "1e3"
  }
  if (status != std::errc() || end != text.data() + text.size()) {
    throw BadValue("'" + text + "' is not " + (std::is_integral_v<Number> ? "a whole number" : "a number"));
  }
  if constexpr (std::is_floating_point_v<Number>) {
    if (!std::isfinite(value)) throw BadValue(text + " is not a finite number");
  }
  return value;
}

// ---- checks: the valid numbers and texts ----

struct Check {
  std::function<bool(double)> holds;
  std::string words; // complete "must be ..."
};

Check at_least(double low) {
  return {[=](double v) { return v >= low; }, "at least " + shortest_text(low)};
}
Check above_zero() {
  return {[](double v) { return v > 0; }, "above 0"};
}
Check within(double low, double high) {
  return {[=](double v) { return v >= low && v <= high; },
          "between " + shortest_text(low) + " and " + shortest_text(high)};
}
Check below_one() {
  return {[](double v) { return v >= 0 && v < 1; }, "at least 0 and below 1"};
}

void any_text(const std::string&) {}

void not_empty(const std::string& given) {
  if (given.empty()) throw BadValue("must not be empty; use . for the current folder");
}

// A relative path of one to three folders.
void relative_folder(const std::string& given) {
  const std::filesystem::path path(given);
  if (path.is_absolute() || std::find(path.begin(), path.end(), "..") != path.end())
    throw BadValue("'" + given + "' must be a relative path without ..");
  for (const std::filesystem::path& part : path) {
    if (is_reserved_name(part.string())) throw BadValue("'" + part.string() + "' is reserved for checkpoints");
    if (is_number(part.string())) throw BadValue("'" + part.string() + "' would be taken for a step");
    if (part.string().starts_with('.')) throw BadValue("'" + part.string() + "' would be hidden");
  }
  if (std::distance(path.begin(), path.end()) > 3) throw BadValue("must not be more than three folders deep");
  if (std::ranges::any_of(given, [](unsigned char c) { return c < ' '; }))
    throw BadValue("must not contain line breaks or other control characters");
}

void valid_ramp(const std::string& given) {
  try {
    if (!given.empty()) BatchRamp{given};
  } catch (const std::invalid_argument& invalid) {
    throw BadValue(invalid.what());
  }
}

class FieldList {
 public:
  void group(std::string name) { group_ = std::move(name); }
  void not_stored(bool yes) { not_stored_ = yes; } // the options that follow

  void text(const std::string& name, std::string Options::*member, const std::string& value_name,
            const std::string& help, void (*check)(const std::string&) = any_text) {
    add(name, member, value_name, help, std::identity(), [=](const std::string& given) {
      check(given);
      return given;
    });
  }

  // "" is "auto" inside the program; a folder of that name is ./auto.
  void folder_or_auto(const std::string& name, std::string Options::*member, const std::string& help) {
    add(
        name, member, "DIR|auto", help, [](const std::string& value) { return value.empty() ? "auto" : value; },
        [](const std::string& given) {
          not_empty(given);
          return given == "auto" ? "" : given;
        });
  }

  template <class Enum>
  void choice(const std::string& name, Enum Options::*member, const std::string& help) {
    std::vector<std::string> words;
    for (const auto& entry : names_of(Enum{})) words.emplace_back(entry.name);
    const std::string joined = listed(words, "|");
    add(name, member, joined, help, name_of<Enum>, [words, joined](const std::string& given) {
      const std::string word = lower_case(given); // HYBRID, as Transformer Engine writes it
      if (const std::optional<Enum> chosen = value_named<Enum>(word)) return *chosen;
      const char* const known = suggested_value(word); // before nearest_name(): gpu means cuda, not cpu
      const bool ours = known && std::ranges::find(words, known) != words.end();
      const std::string near = ours ? known : nearest_name(word, words);
      throw BadValue("'" + given + "' is not one of " + joined + (near.empty() ? "" : "; did you mean " + near + "?"));
    });
  }

  void toggle(const std::string& name, bool Options::*member, const std::string& help) {
    add(
        name, member, "", help, [](bool value) { return value ? "true" : "false"; },
        [](const std::string& given) {
          const std::string word = lower_case(given); // Python's True
          if (word == "true" || word == "1" || word == "on") return true;
          if (word == "false" || word == "0" || word == "off") return false;
          throw BadValue("'" + given + "' is neither true nor false");
        });
  }

  template <typename Number>
  void number(const std::string& name, Number Options::*member, const Check& check, const std::string& help) {
    number_or_words(name, member, {}, check, help);
  }

  // `automatic` is "auto" inside the program.
  template <typename Number>
  void number_or_auto(const std::string& name, Number Options::*member, std::type_identity_t<Number> automatic,
                      const Check& check, const std::string& help) {
    number_or_words(name, member, {{"auto", automatic}}, check, help);
  }

  // `words`: {text, value inside the program}.
  template <typename Number>
  void number_or_words(const std::string& name, Number Options::*member,
                       const std::vector<std::pair<std::string, std::type_identity_t<Number>>>& words,
                       const Check& check, const std::string& help) {
    using Word = std::pair<std::string, Number>;
    std::string value_name = std::is_integral_v<Number> ? "INT" : "FLOAT", valid = check.words;
    for (const auto& [word, value] : words) value_name += "|" + word, valid += " or " + word;
    add(
        name, member, value_name, help,
        [=](Number value) {
          const auto found = std::ranges::find(words, value, &Word::second);
          return found == words.end() ? shortest_text(value) : found->first;
        },
        [=](const std::string& given) {
          if (const auto found = std::ranges::find(words, given, &Word::first); found != words.end())
            return found->second;
          const Number number = read<Number>(given);
          if (!check.holds(static_cast<double>(number))) throw BadValue("must be " + valid + ", not " + given);
          return number;
        });
  }

  std::vector<OptionField> take() { return std::move(fields_); }

 private:
  template <typename Value, class Print, class Read>
  void add(const std::string& name, Value Options::*member, const std::string& value_name, const std::string& help,
           Print print, Read read) {
    fields_.push_back({.name = name,
                       .group = group_,
                       .value_name = value_name,
                       .help = help,
                       .text = [=](const Options& options) { return std::string(print(options.*member)); },
                       .set = [=](Options& options, const std::string& given) { options.*member = read(given); },
                       .is_number = std::is_arithmetic_v<Value>,
                       .not_stored = not_stored_});
  }

  std::string group_;
  bool not_stored_ = false;
  std::vector<OptionField> fields_;
};

std::vector<OptionField> make_fields() {
  using O = Options;
  FieldList f;

  f.group("Model");
  f.text("model", &O::model, "NAME",
         "nano, gpt2 (124M), gpt2-medium, gpt2-large, gpt2-xl, or dN by depth; "
         "auto: gpt2 on a GPU, nano on the CPU");
  f.number_or_auto("layers", &O::layers, 0, within(1, kMaxModelLayers), "transformer blocks; auto: the model's");
  f.number_or_auto("heads", &O::heads, 0, within(1, kMaxModelChannels), "attention heads; auto: the model's");
  f.number_or_auto("channels", &O::channels, 0, within(1, kMaxModelChannels),
                   "width, a multiple of --heads; auto: the model's");
  f.number_or_auto("seq_len", &O::seq_len, 0, within(1, kMaxSequenceLength),
                   "tokens per sequence; auto: the model's (1024)");

  f.group("Data");
  f.text("dataset", &O::dataset, "NAME",
         "dataset made by bin/prepare_data: train_* and val_* in DATA_DIR/NAME; empty: none");
  f.text("data_dir", &O::data_dir, "DIR", "parent folder of the datasets", not_empty);
  f.text("train_data", &O::train_data, "GLOB",
         "training shards (.bin or .h5), commas between globs; empty: --dataset, or the built-in sample");
  f.text("val_data", &O::val_data, "GLOB",
         "validation shards; empty: those of --dataset or of the built-in sample, else none");
  f.text("tokenizer", &O::tokenizer, "DIR",
         "folder with encoder.json and vocab.bpe, to print samples and read prompts; empty: the folder that make "
         "installs");
  f.number("seed", &O::seed, at_least(0), "seed of initialization and data order");
  f.toggle("document_mask", &O::document_mask,
           "attention stays within a document; a document begins with <|endoftext|>");
  f.choice("document_positions", &O::document_positions,
           "with --document_mask, positions counted from the document's start or the sequence's");

  f.group("Batch");
  f.number_or_auto(
      "batch_size", &O::batch_size, 0, at_least(1),
      "sequences per micro-batch on each rank; auto: the fastest that fits on the GPU, the model's on the CPU");
  f.number_or_auto("max_batch_size", &O::max_batch_size, 0, at_least(1), "upper bound for --batch_size auto");
  f.number_or_auto(
      "target_batch_size", &O::target_batch_size, 0, at_least(1),
      "sequences per optimizer step over all ranks, met exactly by gradient accumulation; auto: the model's (512)");
  f.text("batch_ramp", &O::batch_ramp, "LIST",
         "sequences per step from a step on, instead of --target_batch_size, as 128@0,256@2000,512@6000; empty: none",
         valid_ramp);
  f.toggle("batch_ramp_lr", &O::batch_ramp_lr,
           "the learning rate grows with the square root of the batch, up to --max_lr at the last one of --batch_ramp");

  f.group("Duration");
  f.number_or_auto("max_steps", &O::max_steps, 0, at_least(1),
                   "optimizer steps; auto: from --num_epochs, or the model's");
  f.number_or_auto("num_epochs", &O::num_epochs, 0, above_zero(),
                   "passes over the training data, instead of --max_steps");

  f.group(option_group::kOptimizer);
  f.choice("optimizer", &O::optimizer,
           "muon: Muon for the blocks' matrices, AdamW for embeddings, positions, LayerNorms and biases");
  f.number_or_auto("max_lr", &O::max_lr, 0, above_zero(),
                   "peak learning rate, with Muon that of the blocks' matrices; auto: the model's");
  f.number_or_auto("adamw_lr", &O::adamw_lr, 0, above_zero(),
                   "with Muon, peak learning rate of the parameters that AdamW updates; auto: the model's");
  f.number("min_lr_ratio", &O::min_lr_ratio, within(0, 1), "last learning rate divided by --max_lr");
  f.number_or_auto("warmup_steps", &O::warmup_steps, -1, at_least(0),
                   "steps of linear warm-up; auto: the model's, less in a short run");
  f.choice("lr_schedule", &O::lr_schedule, "learning rate after the warm-up");
  f.number("wsd_decay_ratio", &O::wsd_decay_ratio, within(0, 1), "wsd: share of all steps spent cooling down");
  f.number("weight_decay", &O::weight_decay, at_least(0), "on all 2-D tensors");
  f.number("beta1", &O::beta1, below_one(), "decay rate of AdamW's first moment");
  f.number("beta2", &O::beta2, below_one(), "decay rate of AdamW's second moment");
  f.number("adam_eps", &O::adam_eps, above_zero(), "AdamW's epsilon");
  f.number("grad_clip", &O::grad_clip, at_least(0), "largest global gradient norm; 0: no clipping");
  f.number("muon_momentum", &O::muon_momentum, below_one(), "Muon's momentum");
  f.number("muon_momentum_warmup", &O::muon_momentum_warmup, at_least(0),
           "applied steps in which Muon's momentum grows from 0.85; 0: constant");
  f.toggle("muon_cautious_decay", &O::muon_cautious_decay,
           "Muon decays a weight only where its update has the same sign");
  f.choice("init_projections", &O::init_projections,
           "initial weights of the projections into the residual stream: GPT-2's, or zero");

  f.group("Precision and device");
  f.choice("device", &O::device, "auto: the GPU if there is one");
  f.choice("precision", &O::precision, "auto: bf16 on a GPU, fp32 on the CPU; fp8 is emulated on the CPU");
  f.toggle("use_fp8", &O::use_fp8, "same as --precision fp8");
  f.choice("fp8_format", &O::fp8_format,
           "hybrid: E4M3 forward, E5M2 gradients; e4m3: all but the logits' gradient; e5m2: activations and gradients, "
           "weights and the weight gradient's activations stay E4M3");
  f.number("fp8_margin", &O::fp8_margin, within(0, kMaxFp8Margin),
           "headroom: scales are 2^margin below the largest that fits");
  f.number("fp8_interval", &O::fp8_interval, at_least(1), "steps between updates of the scales");
  f.number("fp8_amax_history", &O::fp8_amax_history, within(1, kMaxAmaxHistory),
           "steps of amax history behind each scale");
  f.toggle("fp8_lm_head", &O::fp8_lm_head, "LM head in FP8 as well");
  f.choice(
      "fp8_recipe", &O::fp8_recipe,
      "delayed: scales from the amax of past steps; current: from the tensor itself, in a second pass; current_grads, "
      "current_activations, current_weights: current for these, delayed for the others");
  f.number_or_auto("fp8_bf16_steps", &O::fp8_bf16_steps, -1, at_least(0),
                   "steps in BF16 before FP8 begins; auto: the least of the warm-up, 30 steps and a tenth of the run");
  f.number_or_auto("fp8_current_steps", &O::fp8_current_steps, -1, at_least(0),
                   "first FP8 steps with current scaling, before --fp8_recipe; auto: to the end of the warm-up");
  f.choice("fp8_scenario", &O::fp8_scenario, kMxfp8Sentence);
  f.text("fp8_bf16_layers", &O::fp8_bf16_layers, "LIST",
         "blocks that stay in BF16: first, last, numbers from 0 and ranges, as first,last,3-5; empty: none");
  f.toggle("fp8_auto_fallback", &O::fp8_auto_fallback, "a block that saturates repeatedly continues in BF16");
  f.number_or_auto("threads", &O::threads, 0, within(1, 4096), "CPU threads; auto: all cores");

  f.group(option_group::kGpu);
  f.toggle("deterministic", &O::deterministic,
           "bitwise reproducible runs: no timing of plans, and cuDNN's slower deterministic algorithms");
  f.toggle("cuda_graph", &O::cuda_graph, "capture the micro-step in a CUDA graph");
  f.choice("recompute", &O::recompute,
           "activations recomputed in the backward pass to save memory; auto: block if the model does not fit without");
  f.choice("attention", &O::attention, "auto: our kernel on Hopper, elsewhere cuDNN if it is installed");
  f.choice("kernels", &O::kernels, "auto: Hopper's own where there is one; general: those that run on every GPU");
  f.number_or_auto("memory_limit", &O::memory_limit, 0, within(0.5, 65536),
                   "GiB of GPU memory that a rank may allocate, besides CUDA's own; auto: all that is free");
  f.text("plan_cache", &O::plan_cache, "FILE", "tuned GEMM plans; empty: none are kept");
  f.text("timeline", &O::timeline, "FILE",
         "Chrome trace (ui.perfetto.dev) of steps 4 and 5 of rank 0, counted from where FP8 begins: blocks and "
         "collectives of each stream");

  f.group(option_group::kEvaluation);
  f.number("eval_freq", &O::eval_freq, at_least(0), "steps between evaluations; 0: never");
  f.number_or_auto("eval_sequences", &O::eval_sequences, 0, at_least(1),
                   "validation sequences per evaluation, always the first ones; auto: four steps' worth, 64 to 256");
  f.toggle("eval_at_start", &O::eval_at_start, "also evaluate before the first step");
  f.number("hellaswag_freq", &O::hellaswag_freq, at_least(0),
           "steps between scores on HellaSwag, and one at the end; 0: never");
  f.text("hellaswag_data", &O::hellaswag_data, "FILE", "HellaSwag tasks in the authors' format (hellaswag_val.jsonl)");
  f.number("hellaswag_tasks", &O::hellaswag_tasks, at_least(0), "number of HellaSwag tasks, the first ones; 0: all");
  f.number("sample_freq", &O::sample_freq, at_least(0), "steps between text samples; 0: only at the end");
  f.text("prompt", &O::prompt, "TEXT", "text that every sample continues");
  f.number("sample_tokens", &O::sample_tokens, at_least(0), "tokens per sample; 0: no samples");
  f.number("temperature", &O::temperature, at_least(0), "sampling temperature; 0: always the likeliest token");
  f.number("top_k", &O::top_k, at_least(0), "sample among the k likeliest tokens; 0: all");
  f.number("sample_seed", &O::sample_seed, at_least(0), "seed of samples");

  f.group(option_group::kLogs);
  f.number_or_auto("log_freq", &O::log_freq, 0, at_least(1),
                   "steps between printed lines; auto: about one line a second on a terminal, every step in "
                   "a file; metrics.jsonl and TensorBoard get every step");
  f.toggle("use_tensorboard", &O::use_tensorboard, "write TensorBoard event files");
  f.number_or_auto("histogram_freq", &O::histogram_freq, -1, at_least(0),
                   "steps between histograms of weights and gradients; 0: never; auto: with every evaluation, "
                   "or every 250 steps without one");
  f.toggle(
      "fp8_detail", &O::fp8_detail,
      "with every histogram, log each kind of FP8 tensor, and each tensor in metrics.jsonl; print a table at the end; "
      "off: only summaries, and the table if a tensor needs attention");
  f.text("run_name", &O::run_name, "NAME", "folder under --log_dir and --checkpoint_dir; empty: MODEL-PRECISION-DATE",
         relative_folder);
  f.text("log_dir", &O::log_dir, "DIR", "parent folder of the runs' logs", not_empty);

  f.group(option_group::kCheckpoints);
  f.folder_or_auto("checkpoint_dir", &O::checkpoint_dir,
                   "parent folder of the runs' checkpoints; auto: checkpoints_fp8, checkpoints_bf16 or "
                   "checkpoints_fp32, by precision; --resume and --list_checkpoints search all three");
  f.number("checkpoint_freq", &O::checkpoint_freq, at_least(0),
           "steps between checkpoints; 0: only at the end and, with --save_best, at a new best");
  f.number_or_words("keep_checkpoints", &O::keep_checkpoints, {{"auto", -1}, {"all", 0}}, at_least(0),
                    "keep the newest N of this run and the best; older ones are removed once a newer one is "
                    "verified; auto: the newest 3 and, without --keep_every, one for each fifth of the run");
  f.number("keep_every", &O::keep_every, at_least(0),
           "also keep the checkpoints of steps that are multiples of N; 0: none");
  f.toggle("save_best", &O::save_best,
           "also save at every new best validation loss, replacing the earlier best; off: only when due");
  f.toggle(
      "strict_saves", &O::strict_saves,
      "end with exit code 8 when a checkpoint cannot be written; off: warn, keep training, retry when the next is due");
  f.text("init_from", &O::init_from, "PATH|NAME",
         "initial weights: a Hugging Face folder or .safetensors, an llm.c .bin, one of our checkpoints, or a name in "
         "--hf_cache (gpt2)");
  f.text("hf_cache", &O::hf_cache, "FOLDER",
         "cache of the Hugging Face hub, in which names are looked up; empty: the default of its tools");
  f.text("resume", &O::resume, "latest|best|STEP|RUN|RUN/STEP|PATH",
         "continue from a checkpoint, with its options unless given again");
  f.not_stored(true);
  f.toggle("allow_other_data", &O::allow_other_data,
           "allow --resume on other training data than the checkpoint's, at the same position in its order");
  f.not_stored(false);

  f.group(option_group::kAnomalies);
  f.number("skip_loss_z", &O::skip_loss_z, at_least(0),
           "skip a step whose loss is this many standard deviations high; 0: off");
  f.number("skip_grad_z", &O::skip_grad_z, at_least(0),
           "skip a step whose gradient norm is this many standard deviations high; 0: off");
  f.number("max_skipped", &O::max_skipped, at_least(1),
           "consecutive skipped steps before the run ends with exit code 5");

  f.group("Many ranks (docs/cluster.md)");
  f.number("zero", &O::zero, within(0, 1),
           "1: shard master weights and moments over ranks (ZeRO-1); 0: replicate them");
  f.choice("grad_reduce", &O::grad_reduce, "format of the gradient all-reduce; bf16 halves the bytes, sums stay FP32");
  f.number("nccl_timeout", &O::nccl_timeout, at_least(1),
           "seconds to wait for a missing or stalled rank before all ranks end with exit code 7");
  f.toggle("log_ranks", &O::log_ranks, "ranks other than 0 write rank_NNNNN.jsonl into the run's folder");
  f.not_stored(true);
  f.text("gpus", &O::gpus, "INT|all", "start one rank on each of N GPUs of this machine, without a launcher");
  f.number_or_auto("ranks", &O::ranks, 0, at_least(1),
                   "number of ranks, without a known launcher; needs --rank and --master");
  f.number_or_auto("rank", &O::rank, -1, at_least(0), "index of this process, from 0");
  f.text("master", &O::master, "HOST[:PORT]|file:PATH",
         "address of rank 0, or a shared file to which rank 0 writes it");
  f.toggle("share_gpu", &O::share_gpu, "several ranks may use one GPU: slow, for tests");

  return f.take();
}

} // namespace

std::string OptionField::toml(const Options& options) const {
  const std::string value = text(options);
  const bool bare = is_number && (is_switch() || std::isalpha(static_cast<unsigned char>(value.front())) == 0);
  return bare ? value : toml_string(value); // "auto" is text
}

const std::vector<OptionField>& option_fields() {
  static const std::vector<OptionField> fields = make_fields();
  return fields;
}

const OptionField* find_field(const std::string& name) {
  const auto& fields = option_fields();
  const auto found = std::ranges::find(fields, name, &OptionField::name);
  return found == fields.end() ? nullptr : &*found;
}

} // namespace gpt2
