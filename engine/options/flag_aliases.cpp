#include "engine/options/flag_aliases.h"

#include <algorithm>
#include <iterator>

#include "engine/base/error.h"
#include "engine/base/formatted.h"
#include "engine/base/split.h"

namespace gpt2 {
namespace {

using enum AliasKind;

// ---- one row per option, note or refusal ----

constexpr FlagAlias same(const char* option, const char* names) {
  return {.names = names, .kind = renamed, .option = option};
}
constexpr FlagAlias implies(const char* names, const char* option, const char* value) {
  return {.names = names, .kind = implied, .is_switch = true, .option = option, .value = value};
}
constexpr FlagAlias ignored(const char* names, const char* why) {
  return {.names = names, .kind = without_effect, .sentence = why};
}
constexpr FlagAlias ignored_switch(const char* names, const char* why) {
  return {.names = names, .kind = without_effect, .is_switch = true, .sentence = why};
}
constexpr FlagAlias refused(const char* names, const char* hint) {
  return {.names = names, .kind = unsupported, .sentence = hint};
}

constexpr const char* kWandb = "tools/wandb_sync RUN --follow --project P --name N sends a run to Weights & Biases";

constexpr FlagAlias kFlagAliases[] = {
    // shape
    same("seq_len", "block_size max_seq_length max_seq_len seq_length sequence_length context_length"),
    same("layers", "n_layer num_layers"),
    same("heads", "n_head num_heads num_attention_heads"),
    same("channels", "n_embd hidden_size"),
    same("model", "model_name model_type"),
    refused("model_name_or_path", "use --init_from for its weights, or --model for its shape alone"),
    refused("dropout", "no dropout: pretraining sees its data about once"),
    refused("bias", "GPT-2 always has biases"),

    // data
    refused("train_file", "make a dataset of the text with bin/prepare_data, then use --dataset NAME"),
    same("train_data", "train_bin input_bin"),
    same("val_data", "val_bin input_val_bin"),
    ignored("num_workers dataloader_num_workers", "two threads read ahead"),
    same("dataset", "dataset_name"),
    {.names = "split_name split dataset_config_name",
     .kind = dataset_part,
     .sentence = "use --dataset NAME: bin/prepare_data makes it from text or .parquet"},

    // batch
    same("batch_size", "per_device_train_batch_size micro_batch_size device_batch_size"),
    refused("per_device_eval_batch_size", "evaluation uses --batch_size; --eval_sequences sets the total"),
    implies("auto_batch_size", "batch_size", "auto"),
    same("target_batch_size", "target_effective_batch_size effective_batch_size global_batch_size"),
    refused("total_batch_size", "use --target_batch_size, in sequences: divide the tokens by --seq_len"),
    {.names = "gradient_accumulation_steps grad_accum_steps accumulate_grad_batches", .kind = accumulation},

    // duration
    same("max_steps", "steps num_steps train_steps total_steps max_iters num_iterations"),
    same("num_epochs", "epochs num_train_epochs max_epochs"),

    // optimizer
    same("max_lr", "lr learning_rate"),
    refused("min_lr", "use --min_lr_ratio, the last rate divided by --max_lr: 0.1 for 6e-5 after 6e-4"),
    same("min_lr_ratio", "learning_rate_decay_frac"),
    same("warmup_steps", "warmup warmup_iters num_warmup_steps"),
    refused("warmup_ratio", "use --warmup_steps: the ratio times --max_steps"),
    refused("lr_decay_iters", "use --max_steps: the rate decays until the last step"),
    refused("decay_lr", "use --lr_schedule cosine, linear, wsd or constant"),
    same("lr_schedule", "lr_scheduler_type"),
    same("grad_clip", "max_grad_norm gradient_clip_val"),
    same("weight_decay", "wd"),
    same("beta1", "adam_beta1"),
    same("beta2", "adam_beta2"),
    same("adam_eps", "adam_epsilon"),
    same("optimizer", "optim"),

    // precision and device
    same("use_fp8", "fp8"),
    implies("bf16", "precision", "bf16"),
    refused("fp16", "no FP16: use --precision bf16, which needs no loss scaling, or fp8"),
    refused("tf32 dtype", "use --precision fp8, bf16 or fp32"),
    same("precision", "mixed_precision"),
    refused("use_te fp8_backend", "the FP8 kernels are built in, without Transformer Engine: use --use_fp8"),
    refused("load_in_fp8", "checkpoints hold FP32 master weights; --use_fp8 trains any of them in FP8"),
    refused("penalty_weight", "the loss has no penalty term; --fp8_margin and --fp8_auto_fallback handle outliers"),
    refused("gpu", "use --device cuda; CUDA_VISIBLE_DEVICES chooses which"),
    same("gpus", "num_gpus nproc_per_node"),
    same("zero", "zero_stage"),
    refused("deepspeed", "--zero 1 shards master weights and moments, --gpus 8 starts the ranks"),
    refused("sharding_mode",
            "use --zero 1, the default with several ranks, which shards master weights and moments, or --zero 0"),
    refused("empty_cache_freq", "memory is allocated once, at the start: there is no cache to empty"),
    implies("gradient_checkpointing activation_checkpointing", "recompute", "block"),
    ignored_switch("compile", "all kernels are compiled, and --cuda_graph is on"),
    refused("flash_attention", "use --attention cudnn or own; auto takes the faster one"),

    // evaluation, logs, checkpoints
    same("eval_freq", "eval_interval eval_steps val_every val_loss_every"),
    refused("eval_iters val_max_steps", "use --eval_sequences: validation sequences per evaluation"),
    same("sample_freq", "sample_every"),
    same("sample_tokens", "max_new_tokens"),
    same("checkpoint_freq", "save_steps save_interval save_every checkpoint_every"),
    refused("always_save_checkpoint", "use --checkpoint_freq: steps between checkpoints"),
    same("keep_checkpoints", "save_total_limit"),
    refused("out_dir output_dir", "use --checkpoint_dir for checkpoints and --log_dir for logs"),
    same("log_dir", "logging_dir tensorboard_dir"),
    same("log_freq", "log_interval logging_steps"),
    same("use_tensorboard", "tensorboard"),
    same("resume", "resume_from_checkpoint"),
    ignored_switch("use_wandb wandb wandb_log", kWandb),
    ignored("wandb_project wandb_run_name wandb_name wandb_entity wandb_mode report_to", kWandb),

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
    refused("c", "--config FILE reads an option file; llm.c's -c is --weight_decay"),
    refused("v", "--version prints the version; llm.c's -v is --eval_freq"),
    refused("m", "use --eval_sequences, in sequences: llm.c's batches times --batch_size"),
    refused("s", "use --sample_freq"),
    refused("g", "use --sample_tokens"),
    refused("n", "llm.c's -n is --checkpoint_freq; steps of a run: --max_steps"),
    refused("y", "use --resume latest"),
    refused("r", "use --recompute none, gelu or block"),
    refused("z", "use --zero 1, the default with several ranks, or --zero 0"),
    refused("a", "use --max_steps and a small dataset to overfit"),
    refused("f", "tensor cores are always used; use --precision for the format"),
    refused("w", "master weights are always kept in FP32"),
    refused("sl", "use --skip_loss_z"),
    refused("sg", "use --skip_grad_z"),
    refused("nk", "use --keep_checkpoints"),
    refused("ge", "the GELU is fused where the library can; use --recompute gelu to recompute it"),
};

// ---- values ----

struct ValueAlias {
  const char *theirs, *ours; // theirs: with spaces between
};

// Values that another name of `option` takes as ours.
struct TakenValue {
  const char *option, *theirs, *ours;
  const char* remark = ""; // after the note
};
constexpr const char* kAutoPrecision = ": bf16 on a GPU, fp32 on the CPU";
constexpr TakenValue kTaken[] = {
    {"precision", "no", "auto", kAutoPrecision},
    {"precision", "false", "auto", kAutoPrecision}, // YAML's no
    {"dataset", "HuggingFaceFW/fineweb-edu", "fineweb-edu"},
    {"dataset", "Skylion007/openwebtext", "openwebtext"},
};

// Values that an error suggests but never takes: FP16 is not BF16.
constexpr ValueAlias kSuggested[] = {
    {"gpu", "cuda"},
    {"float16 fp16 half bfloat16", "bf16"},
    {"float32", "fp32"},
    {"float8", "fp8"},
    {"constant_with_warmup", "constant"},
    {"adamw_torch adamw_torch_fused", "adamw"},
    {"delayedscaling", "delayed"},
    {"float8currentscaling", "current"},
};

// Parts of HuggingFaceFW/fineweb-edu, and the names that bin/prepare_data gives them.
constexpr ValueAlias kParts[] = {{"sample-10BT", "fineweb-edu"}, {"sample-100BT", "fineweb-edu-100B"}};

bool is_listed(const std::string& word, const char* words) { return std::ranges::count(split(words, ' '), word) > 0; }

const char* find_word(std::span<const ValueAlias> aliases, const std::string& word) {
  const auto found = std::ranges::find_if(aliases, [&](const auto& alias) { return is_listed(word, alias.theirs); });
  return found == aliases.end() ? nullptr : found->ours;
}

// nullptr: the value has the same meaning here.
const TakenValue* find_taken(const std::string& option, const std::string& value) {
  const auto* const found = std::ranges::find_if(
      kTaken, [&](const TakenValue& taken) { return option == taken.option && value == taken.theirs; });
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
      std::ranges::find_if(kFlagAliases, [&](const FlagAlias& alias) { return is_listed(name, alias.names); });
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
      if (const TakenValue* const taken = find_taken(option, value)) {
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

void take_dataset_part(const GivenAlias& part, std::string& dataset, std::set<std::string>& given,
                       std::vector<std::string>& notes) {
  if (!part.alias || part.value == "train") return;
  const char* const named = find_word(kParts, part.value);
  if (!named)
    throw Error(ExitCode::usage, part.shown + ": no dataset has the name '" + part.value + "'", part.alias->sentence);
  if (!dataset.empty() && dataset != "fineweb-edu") {
    notes.push_back(part.shown + " has no effect: it is a part of fineweb-edu, and the dataset is " + dataset);
    return;
  }
  if (dataset != named) notes.push_back(part.shown + " " + part.value + " is --dataset " + named + " here");
  dataset = named;
  given.insert("dataset");
}

} // namespace gpt2
