#include "engine/options/flag_aliases.h"

#include <algorithm>
#include <iterator>

namespace gpt2 {
namespace {

constexpr const char* kAccumulation =
    "use --target_batch_size, sequences per step; accumulation follows from it and --batch_size";
constexpr const char* kWandb =
    "tools/wandb_sync RUN --follow sends a run to Weights & Biases; its logs are in --log_dir";
constexpr const char* kPrecision = "use --precision fp8, bf16 or fp32";
constexpr const char* kMinLr = "use --min_lr_ratio, the last rate divided by --max_lr: 0.1 for 6e-5 after 6e-4";

// Flags with the same meaning and unit are accepted as ours; the others are refused with the hint.
constexpr FlagAlias kFlagAliases[] = {
    // shape
    {"block_size", "seq_len", nullptr},
    {"max_seq_length", "seq_len", nullptr},
    {"max_seq_len", "seq_len", nullptr},
    {"seq_length", "seq_len", nullptr},
    {"sequence_length", "seq_len", nullptr},
    {"context_length", "seq_len", nullptr},
    {"n_layer", "layers", nullptr},
    {"num_layers", "layers", nullptr},
    {"n_head", "heads", nullptr},
    {"num_heads", "heads", nullptr},
    {"num_attention_heads", "heads", nullptr},
    {"n_embd", "channels", nullptr},
    {"hidden_size", "channels", nullptr},
    {"model_name", "model", nullptr},
    {"model_type", "model", nullptr},
    {"model_name_or_path", nullptr, "use --init_from for its weights, or --model for its shape alone"},
    {"dropout", nullptr, "no dropout: pretraining sees its data about once"},
    {"bias", nullptr, "GPT-2 always has biases"},

    // data
    {"train_file", nullptr, "make a data set of the text with bin/prepare_data, then use --dataset NAME"},
    {"train_bin", "train_data", nullptr},
    {"input_bin", "train_data", nullptr},
    {"input_val_bin", "val_data", nullptr},
    {"val_bin", "val_data", nullptr},
    {"num_workers", nullptr, "leave it out: two threads read ahead; --threads is for the CPU engine"},
    {"dataloader_num_workers", nullptr, "leave it out: two threads read ahead"},

    // batch
    {"per_device_train_batch_size", "batch_size", nullptr},
    {"micro_batch_size", "batch_size", nullptr},
    {"device_batch_size", "batch_size", nullptr},
    {"per_device_eval_batch_size", nullptr, "evaluation uses --batch_size; --eval_sequences sets the total"},
    {"auto_batch_size", nullptr, "--batch_size auto is the default; --max_batch_size bounds it"},
    {"target_effective_batch_size", "target_batch_size", nullptr},
    {"effective_batch_size", "target_batch_size", nullptr},
    {"global_batch_size", "target_batch_size", nullptr},
    {"total_batch_size", nullptr, "use --target_batch_size, in sequences: divide the tokens by --seq_len"},
    {"gradient_accumulation_steps", nullptr, kAccumulation},
    {"grad_accum_steps", nullptr, kAccumulation},
    {"accumulate_grad_batches", nullptr, kAccumulation},

    // duration
    {"steps", "max_steps", nullptr},
    {"num_steps", "max_steps", nullptr},
    {"train_steps", "max_steps", nullptr},
    {"max_iters", "max_steps", nullptr},
    {"num_iterations", "max_steps", nullptr},
    {"epochs", "num_epochs", nullptr},
    {"num_train_epochs", "num_epochs", nullptr},
    {"max_epochs", "num_epochs", nullptr},

    // optimizer
    {"lr", "max_lr", nullptr},
    {"learning_rate", "max_lr", nullptr},
    {"min_lr", nullptr, kMinLr},
    {"learning_rate_decay_frac", "min_lr_ratio", nullptr},
    {"warmup", "warmup_steps", nullptr},
    {"warmup_iters", "warmup_steps", nullptr},
    {"num_warmup_steps", "warmup_steps", nullptr},
    {"warmup_ratio", nullptr, "use --warmup_steps: the ratio times --max_steps"},
    {"lr_decay_iters", nullptr, "use --max_steps: the rate decays until the last step"},
    {"decay_lr", nullptr, "use --lr_schedule cosine, linear, wsd or constant"},
    {"lr_scheduler_type", "lr_schedule", nullptr},
    {"max_grad_norm", "grad_clip", nullptr},
    {"gradient_clip_val", "grad_clip", nullptr},
    {"wd", "weight_decay", nullptr},
    {"adam_beta1", "beta1", nullptr},
    {"adam_beta2", "beta2", nullptr},
    {"adam_epsilon", "adam_eps", nullptr},
    {"optim", nullptr, "use --optimizer adamw or muon"},

    // precision and device
    {"fp8", "use_fp8", nullptr},
    {"bf16", nullptr, "use --precision bf16"},
    {"fp16", nullptr, "no FP16: use --precision bf16, which needs no loss scaling, or fp8"},
    {"tf32", nullptr, kPrecision},
    {"dtype", nullptr, kPrecision},
    {"mixed_precision", nullptr, kPrecision},
    {"gpu", nullptr, "use --device cuda; CUDA_VISIBLE_DEVICES chooses which"},
    {"num_gpus", "gpus", nullptr},
    {"nproc_per_node", "gpus", nullptr},
    {"zero_stage", "zero", nullptr},
    {"gradient_checkpointing", nullptr, "use --recompute block"},
    {"activation_checkpointing", nullptr, "use --recompute block"},
    {"compile", nullptr, "leave it out: kernels are built in, and --cuda_graph is on"},
    {"flash_attention", nullptr, "use --attention cudnn or own; auto takes the faster one"},

    // evaluation, logs, checkpoints
    {"eval_interval", "eval_freq", nullptr},
    {"eval_steps", "eval_freq", nullptr},
    {"val_every", "eval_freq", nullptr},
    {"val_loss_every", "eval_freq", nullptr},
    {"eval_iters", nullptr, "use --eval_sequences: validation sequences per evaluation"},
    {"val_max_steps", nullptr, "use --eval_sequences: validation sequences per evaluation"},
    {"sample_every", "sample_freq", nullptr},
    {"max_new_tokens", "sample_tokens", nullptr},
    {"save_steps", "checkpoint_freq", nullptr},
    {"save_interval", "checkpoint_freq", nullptr},
    {"save_every", "checkpoint_freq", nullptr},
    {"checkpoint_every", "checkpoint_freq", nullptr},
    {"always_save_checkpoint", nullptr, "use --checkpoint_freq: steps between checkpoints"},
    {"save_total_limit", "keep_checkpoints", nullptr},
    {"out_dir", nullptr, "use --checkpoint_dir for checkpoints and --log_dir for logs"},
    {"output_dir", nullptr, "use --checkpoint_dir for checkpoints and --log_dir for logs"},
    {"logging_dir", "log_dir", nullptr},
    {"log_interval", "log_freq", nullptr},
    {"logging_steps", "log_freq", nullptr},
    {"tensorboard", "use_tensorboard", nullptr},
    {"resume_from_checkpoint", "resume", nullptr},
    {"use_wandb", nullptr, kWandb},
    {"no_wandb", nullptr, kWandb},
    {"wandb", nullptr, kWandb},
    {"wandb_log", nullptr, kWandb},
    {"wandb_project", nullptr, kWandb},
    {"report_to", nullptr, kWandb},

    // llm.c's letters; -h is help here
    {"i", nullptr, "use --train_data"},
    {"j", nullptr, "use --val_data"},
    {"o", nullptr, "use --log_dir for logs and --checkpoint_dir for checkpoints"},
    {"e", nullptr,
     "use --model gpt2, gpt2-medium, gpt2-large, gpt2-xl or dN for new weights, --init_from FILE.bin for llm.c's"},
    {"b", nullptr, "use --batch_size: sequences per micro-batch"},
    {"t", nullptr, "use --seq_len"},
    {"d", nullptr, "use --target_batch_size, in sequences: llm.c's tokens divided by --seq_len"},
    {"x", nullptr, "use --max_steps"},
    {"l", nullptr, "use --max_lr"},
    {"u", nullptr, "use --warmup_steps"},
    {"q", nullptr, "use --min_lr_ratio"},
    {"k", nullptr, "use --lr_schedule"},
    {"c", nullptr, "use --weight_decay"},
    {"v", nullptr, "use --eval_freq"},
    {"m", nullptr, "use --eval_sequences, in sequences: llm.c's batches times --batch_size"},
    {"s", nullptr, "use --sample_freq"},
    {"g", nullptr, "use --sample_tokens"},
    {"n", nullptr, "use --checkpoint_freq"},
    {"y", nullptr, "use --resume latest"},
    {"r", nullptr, "use --recompute none, gelu or block"},
    {"z", nullptr, "use --zero 1, the default with several ranks, or --zero 0"},
    {"a", nullptr, "use --max_steps and a small data set to overfit"},
    {"f", nullptr, "tensor cores are always used; use --precision for the format"},
    {"w", nullptr, "master weights are always kept in FP32"},
    {"sl", nullptr, "use --skip_loss_z"},
    {"sg", nullptr, "use --skip_grad_z"},
    {"nk", nullptr, "use --keep_checkpoints"},
    {"ge", nullptr, "the GELU is fused where the library can; use --recompute gelu to recompute it"},
};

// Suggested, not accepted: FP16 is not BF16.
constexpr struct {
  const char *theirs, *ours;
} kValueAliases[] = {
    {"gpu", "cuda"},      {"float16", "bf16"}, {"fp16", "bf16"},  {"half", "bf16"},
    {"bfloat16", "bf16"}, {"float32", "fp32"}, {"float8", "fp8"}, {"constant_with_warmup", "constant"},
};

} // namespace

std::span<const FlagAlias> flag_aliases() { return kFlagAliases; }

const FlagAlias* find_flag_alias(const std::string& name) {
  const auto* const found = std::find_if(std::begin(kFlagAliases), std::end(kFlagAliases),
                                         [&](const FlagAlias& flag) { return name == flag.name; });
  return found == std::end(kFlagAliases) ? nullptr : found;
}

const char* find_value_alias(const std::string& word) {
  for (const auto& value : kValueAliases) {
    if (word == value.theirs) return value.ours;
  }
  return nullptr;
}

} // namespace gpt2
