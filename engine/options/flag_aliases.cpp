#include "engine/options/flag_aliases.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/formatted.h"

namespace gpt2 {
namespace {

using enum AliasKind;

// ---- one row per flag ----

constexpr FlagAlias same(const char* name, const char* option) {
  return {.name = name, .kind = renamed, .option = option};
}
constexpr FlagAlias implies(const char* name, const char* option, const char* value) {
  return {.name = name, .kind = implied, .is_switch = true, .option = option, .value = value};
}
constexpr FlagAlias ignored(const char* name, const char* why) {
  return {.name = name, .kind = without_effect, .sentence = why};
}
constexpr FlagAlias ignored_switch(const char* name, const char* why) {
  return {.name = name, .kind = without_effect, .is_switch = true, .sentence = why};
}
constexpr FlagAlias refused(const char* name, const char* hint) {
  return {.name = name, .kind = unsupported, .sentence = hint};
}
constexpr FlagAlias micro_batches(const char* name) { return {.name = name, .kind = accumulation}; }
constexpr FlagAlias part_of_dataset(const char* name) {
  return {.name = name,
          .kind = dataset_part,
          .sentence = "use --dataset NAME: bin/prepare_data makes it from text or .parquet"};
}

constexpr const char* kReadAhead = "two threads read ahead";
constexpr const char* kWandb = "tools/wandb_sync RUN --follow --project P --name N sends a run to Weights & Biases";
constexpr const char* kPrecision = "use --precision fp8, bf16 or fp32";
constexpr const char* kBuiltIn = "the FP8 kernels are built in, without Transformer Engine: use --use_fp8";
constexpr const char* kMinLr = "use --min_lr_ratio, the last rate divided by --max_lr: 0.1 for 6e-5 after 6e-4";

constexpr FlagAlias kFlagAliases[] = {
    // shape
    same("block_size", "seq_len"),
    same("max_seq_length", "seq_len"),
    same("max_seq_len", "seq_len"),
    same("seq_length", "seq_len"),
    same("sequence_length", "seq_len"),
    same("context_length", "seq_len"),
    same("n_layer", "layers"),
    same("num_layers", "layers"),
    same("n_head", "heads"),
    same("num_heads", "heads"),
    same("num_attention_heads", "heads"),
    same("n_embd", "channels"),
    same("hidden_size", "channels"),
    same("model_name", "model"),
    same("model_type", "model"),
    refused("model_name_or_path", "use --init_from for its weights, or --model for its shape alone"),
    refused("dropout", "no dropout: pretraining sees its data about once"),
    refused("bias", "GPT-2 always has biases"),

    // data
    refused("train_file", "make a data set of the text with bin/prepare_data, then use --dataset NAME"),
    same("train_bin", "train_data"),
    same("input_bin", "train_data"),
    same("input_val_bin", "val_data"),
    same("val_bin", "val_data"),
    ignored("num_workers", kReadAhead),
    ignored("dataloader_num_workers", kReadAhead),
    same("dataset_name", "dataset"),
    part_of_dataset("split_name"),
    part_of_dataset("split"),
    part_of_dataset("dataset_config_name"),

    // batch
    same("per_device_train_batch_size", "batch_size"),
    same("micro_batch_size", "batch_size"),
    same("device_batch_size", "batch_size"),
    refused("per_device_eval_batch_size", "evaluation uses --batch_size; --eval_sequences sets the total"),
    implies("auto_batch_size", "batch_size", "auto"),
    same("target_effective_batch_size", "target_batch_size"),
    same("effective_batch_size", "target_batch_size"),
    same("global_batch_size", "target_batch_size"),
    refused("total_batch_size", "use --target_batch_size, in sequences: divide the tokens by --seq_len"),
    micro_batches("gradient_accumulation_steps"),
    micro_batches("grad_accum_steps"),
    micro_batches("accumulate_grad_batches"),

    // duration
    same("steps", "max_steps"),
    same("num_steps", "max_steps"),
    same("train_steps", "max_steps"),
    same("max_iters", "max_steps"),
    same("num_iterations", "max_steps"),
    same("total_steps", "max_steps"),
    same("epochs", "num_epochs"),
    same("num_train_epochs", "num_epochs"),
    same("max_epochs", "num_epochs"),

    // optimizer
    same("lr", "max_lr"),
    same("learning_rate", "max_lr"),
    refused("min_lr", kMinLr),
    same("learning_rate_decay_frac", "min_lr_ratio"),
    same("warmup", "warmup_steps"),
    same("warmup_iters", "warmup_steps"),
    same("num_warmup_steps", "warmup_steps"),
    refused("warmup_ratio", "use --warmup_steps: the ratio times --max_steps"),
    refused("lr_decay_iters", "use --max_steps: the rate decays until the last step"),
    refused("decay_lr", "use --lr_schedule cosine, linear, wsd or constant"),
    same("lr_scheduler_type", "lr_schedule"),
    same("max_grad_norm", "grad_clip"),
    same("gradient_clip_val", "grad_clip"),
    same("wd", "weight_decay"),
    same("adam_beta1", "beta1"),
    same("adam_beta2", "beta2"),
    same("adam_epsilon", "adam_eps"),
    same("optim", "optimizer"),

    // precision and device
    same("fp8", "use_fp8"),
    implies("bf16", "precision", "bf16"),
    refused("fp16", "no FP16: use --precision bf16, which needs no loss scaling, or fp8"),
    refused("tf32", kPrecision),
    refused("dtype", kPrecision),
    same("mixed_precision", "precision"),
    refused("use_te", kBuiltIn),
    refused("fp8_backend", kBuiltIn),
    refused("load_in_fp8", "checkpoints hold FP32 master weights; --use_fp8 trains any of them in FP8"),
    refused("penalty_weight", "the loss has no penalty term; --fp8_margin and --fp8_auto_fallback handle outliers"),
    refused("gpu", "use --device cuda; CUDA_VISIBLE_DEVICES chooses which"),
    same("num_gpus", "gpus"),
    same("nproc_per_node", "gpus"),
    same("zero_stage", "zero"),
    refused("deepspeed", "--zero 1 shards master weights and moments, --gpus 8 starts the ranks"),
    refused("sharding_mode",
            "use --zero 1, the default with several ranks, which shards master weights and moments, or --zero 0"),
    refused("empty_cache_freq", "memory is allocated once, at the start: there is no cache to empty"),
    implies("gradient_checkpointing", "recompute", "block"),
    implies("activation_checkpointing", "recompute", "block"),
    ignored_switch("compile", "all kernels are compiled, and --cuda_graph is on"),
    refused("flash_attention", "use --attention cudnn or own; auto takes the faster one"),

    // evaluation, logs, checkpoints
    same("eval_interval", "eval_freq"),
    same("eval_steps", "eval_freq"),
    same("val_every", "eval_freq"),
    same("val_loss_every", "eval_freq"),
    refused("eval_iters", "use --eval_sequences: validation sequences per evaluation"),
    refused("val_max_steps", "use --eval_sequences: validation sequences per evaluation"),
    same("sample_every", "sample_freq"),
    same("max_new_tokens", "sample_tokens"),
    same("save_steps", "checkpoint_freq"),
    same("save_interval", "checkpoint_freq"),
    same("save_every", "checkpoint_freq"),
    same("checkpoint_every", "checkpoint_freq"),
    refused("always_save_checkpoint", "use --checkpoint_freq: steps between checkpoints"),
    same("save_total_limit", "keep_checkpoints"),
    refused("out_dir", "use --checkpoint_dir for checkpoints and --log_dir for logs"),
    refused("output_dir", "use --checkpoint_dir for checkpoints and --log_dir for logs"),
    same("logging_dir", "log_dir"),
    same("tensorboard_dir", "log_dir"),
    same("log_interval", "log_freq"),
    same("logging_steps", "log_freq"),
    same("tensorboard", "use_tensorboard"),
    same("resume_from_checkpoint", "resume"),
    ignored_switch("use_wandb", kWandb),
    ignored_switch("wandb", kWandb),
    ignored_switch("wandb_log", kWandb),
    ignored("wandb_project", kWandb),
    ignored("wandb_run_name", kWandb),
    ignored("wandb_name", kWandb),
    ignored("wandb_entity", kWandb),
    ignored("wandb_mode", kWandb),
    ignored("report_to", kWandb),

    // llm.c's letters; -h is help here
    refused("i", "use --train_data"),
    refused("j", "use --val_data"),
    refused("o", "use --log_dir for logs and --checkpoint_dir for checkpoints"),
    refused(
        "e",
        "use --model gpt2, gpt2-medium, gpt2-large, gpt2-xl or dN for new weights, --init_from FILE.bin for llm.c's"),
    refused("b", "use --batch_size: sequences per micro-batch"),
    refused("t", "use --seq_len"),
    refused("d", "use --target_batch_size, in sequences: llm.c's tokens divided by --seq_len"),
    refused("x", "use --max_steps"),
    refused("l", "use --max_lr"),
    refused("u", "use --warmup_steps"),
    refused("q", "use --min_lr_ratio"),
    refused("k", "use --lr_schedule"),
    refused("c", "use --weight_decay"),
    refused("v", "use --eval_freq"),
    refused("m", "use --eval_sequences, in sequences: llm.c's batches times --batch_size"),
    refused("s", "use --sample_freq"),
    refused("g", "use --sample_tokens"),
    refused("n", "use --checkpoint_freq"),
    refused("y", "use --resume latest"),
    refused("r", "use --recompute none, gelu or block"),
    refused("z", "use --zero 1, the default with several ranks, or --zero 0"),
    refused("a", "use --max_steps and a small data set to overfit"),
    refused("f", "tensor cores are always used; use --precision for the format"),
    refused("w", "master weights are always kept in FP32"),
    refused("sl", "use --skip_loss_z"),
    refused("sg", "use --skip_grad_z"),
    refused("nk", "use --keep_checkpoints"),
    refused("ge", "the GELU is fused where the library can; use --recompute gelu to recompute it"),
};

// ---- values ----

struct ValueAlias {
  const char *theirs, *ours;
};

// Values that an alias takes as ours.
struct TakenValue {
  const char *flag, *theirs, *ours;
  const char* remark = ""; // after the note
};
constexpr const char* kAutoPrecision = ": bf16 on a GPU, fp32 on the CPU";
constexpr TakenValue kTaken[] = {
    {"mixed_precision", "no", "auto", kAutoPrecision},
    {"mixed_precision", "false", "auto", kAutoPrecision}, // YAML's no
    {"dataset_name", "HuggingFaceFW/fineweb-edu", "fineweb-edu"},
    {"dataset_name", "Skylion007/openwebtext", "openwebtext"},
};

// Values that an error suggests but never takes: FP16 is not BF16.
constexpr ValueAlias kSuggested[] = {
    {"gpu", "cuda"},
    {"float16", "bf16"},
    {"fp16", "bf16"},
    {"half", "bf16"},
    {"bfloat16", "bf16"},
    {"float32", "fp32"},
    {"float8", "fp8"},
    {"constant_with_warmup", "constant"},
    {"adamw_torch", "adamw"},
    {"adamw_torch_fused", "adamw"},
    {"delayedscaling", "delayed"},
    {"float8currentscaling", "current"},
};

// Parts of HuggingFaceFW/fineweb-edu, and the names that bin/prepare_data gives them.
constexpr ValueAlias kParts[] = {{"sample-10BT", "fineweb-edu"}, {"sample-100BT", "fineweb-edu-100B"}};

const char* find_word(std::span<const ValueAlias> aliases, const std::string& word) {
  const auto found = std::ranges::find_if(aliases, [&](const ValueAlias& alias) { return word == alias.theirs; });
  return found == aliases.end() ? nullptr : found->ours;
}

// nullptr: the value has the same meaning here.
const TakenValue* find_taken(const FlagAlias& alias, const std::string& value) {
  const auto* const found = std::ranges::find_if(kTaken, [&](const TakenValue& taken) {
    return std::string_view(taken.flag) == alias.name && value == taken.theirs;
  });
  return found == std::end(kTaken) ? nullptr : found;
}

bool is_off(const std::string& value) {
  const std::set<std::string> off{"", "0", "false", "off", "no", "none", "disabled", "tensorboard"};
  return off.contains(lower_case(value)); // tensorboard: of --report_to
}

} // namespace

std::span<const FlagAlias> flag_aliases() { return kFlagAliases; }

const FlagAlias* find_flag_alias(const std::string& name) {
  const auto* const found =
      std::ranges::find_if(kFlagAliases, [&](const FlagAlias& alias) { return name == alias.name; });
  return found == std::end(kFlagAliases) ? nullptr : found;
}

const char* suggested_value(const std::string& word) { return find_word(kSuggested, word); }

std::pair<std::string, std::string> translate(const GivenAlias& given, const std::string& dashes,
                                              std::vector<std::string>& notes, Unresolved& unresolved) {
  const auto& [alias, shown, value] = given;
  const auto taken_as = [&](const std::string& typed, const std::string& ours) {
    notes.push_back(typed + " is " + dashes + ours + " here");
  };
  const std::string option = alias->option ? alias->option : "";
  switch (alias->kind) {
    case AliasKind::renamed:
      if (const TakenValue* const taken = find_taken(*alias, value)) {
        taken_as(shown + " " + value, option + " " + taken->ours);
        notes.back() += taken->remark;
        return {option, taken->ours};
      }
      taken_as(shown, option);
      return {option, value};
    case AliasKind::implied:
      if (is_off(value)) break;
      taken_as(shown, option + " " + alias->value);
      return {option, alias->value};
    case AliasKind::without_effect:
      if (!is_off(value) &&
          std::ranges::none_of(notes, [&](const auto& note) { return note.ends_with(given.alias->sentence); }))
        notes.push_back(shown + " has no effect: " + alias->sentence);
      break;
    case AliasKind::accumulation:
      unresolved.accumulation = given;
      break;
    case AliasKind::dataset_part:
      unresolved.dataset_part = given;
      break;
    case AliasKind::unsupported:
      break; // refused by the caller
  }
  return {};
}

std::string dataset_with_part(const GivenAlias& part, const std::string& dataset, std::vector<std::string>& notes) {
  if (!part.alias || part.value == "train") return "";
  const char* const named = find_word(kParts, part.value);
  if (!named)
    throw Error(ExitCode::usage, part.shown + ": no data set is known by '" + part.value + "'", part.alias->sentence);
  if (!dataset.empty() && dataset != "fineweb-edu") {
    notes.push_back(part.shown + " has no effect: it is a part of fineweb-edu, and the data set is " + dataset);
    return "";
  }
  if (dataset != named) notes.push_back(part.shown + " " + part.value + " is --dataset " + named + " here");
  return named;
}

} // namespace gpt2
