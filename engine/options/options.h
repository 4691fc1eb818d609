// Every setting of a run, with its default: flags, config files, checkpoints and the start-up table use this struct.
// option_fields.cpp gives each field its flag, unit and check. docs/checkpoints.md: which source wins.
#pragma once

#include <cstdint>
#include <string>

#include "engine/backend/backend.h"
#include "engine/base/enum_names.h"
#include "engine/options/lr_schedule.h"

namespace gpt2 {

enum class Fp8Scenario { standard, mxfp8 };

// Names of every choice, in flags, files and messages.
constexpr auto names_of(DeviceKind) {
  using enum DeviceKind;
  return std::to_array<EnumName<DeviceKind>>({{automatic, "auto"}, {cuda, "cuda"}, {cpu, "cpu"}});
}
constexpr auto names_of(PrecisionChoice) {
  using enum PrecisionChoice;
  return std::to_array<EnumName<PrecisionChoice>>({{automatic, "auto"}, {fp8, "fp8"}, {bf16, "bf16"}, {fp32, "fp32"}});
}
constexpr auto names_of(Decay) {
  using enum Decay;
  return std::to_array<EnumName<Decay>>({{cosine, "cosine"}, {linear, "linear"}, {constant, "constant"}, {wsd, "wsd"}});
}
constexpr auto names_of(Optimizer) {
  using enum Optimizer;
  return std::to_array<EnumName<Optimizer>>({{adamw, "adamw"}, {muon, "muon"}});
}
constexpr auto names_of(InitProjections) {
  using enum InitProjections;
  return std::to_array<EnumName<InitProjections>>({{normal, "normal"}, {zero, "zero"}});
}
constexpr auto names_of(DocumentPositions) {
  using enum DocumentPositions;
  return std::to_array<EnumName<DocumentPositions>>({{restart, "restart"}, {absolute, "absolute"}});
}
constexpr auto names_of(Fp8Scenario) {
  using enum Fp8Scenario;
  return std::to_array<EnumName<Fp8Scenario>>({{standard, "default"}, {mxfp8, "mxfp8"}});
}
constexpr auto names_of(Recompute) {
  using enum Recompute;
  return std::to_array<EnumName<Recompute>>({{automatic, "auto"}, {none, "none"}, {gelu, "gelu"}, {block, "block"}});
}
constexpr auto names_of(AttentionKind) {
  using enum AttentionKind;
  return std::to_array<EnumName<AttentionKind>>({{automatic, "auto"}, {cudnn, "cudnn"}, {handwritten, "own"}});
}
constexpr auto names_of(KernelChoice) {
  using enum KernelChoice;
  return std::to_array<EnumName<KernelChoice>>({{automatic, "auto"}, {general, "general"}});
}
constexpr auto names_of(GradExchange) {
  using enum GradExchange;
  return std::to_array<EnumName<GradExchange>>({{fp32, "fp32"}, {bf16, "bf16"}});
}

struct Options {
  // model
  std::string model = "auto";              // nano on the CPU, gpt2 on a GPU
  int layers = 0, heads = 0, channels = 0; // explicit shape; 0: from --model
  int seq_len = 0;                         // 0: the model's default (1024; nano 256)

  // data
  std::string dataset, data_dir = "data"; // by name: DATA_DIR/DATASET/train_*, val_*
  std::string train_data, val_data;       // globs, override `dataset`; both empty: the built-in sample
  std::string tokenizer;                  // folder with encoder.json and vocab.bpe
  uint64_t seed = 1337;
  bool document_mask = false; // attention within documents
  DocumentPositions document_positions = DocumentPositions::restart;

  // batch
  int batch_size = 0;         // sequences per micro-batch; 0: auto
  int max_batch_size = 0;     // bound for auto; 0: none
  int target_batch_size = 0;  // sequences per step over all ranks; 0: the model's default (512), fewer on little data
  std::string batch_ramp;     // "128@0,256@2000": sequences per step from a step on; empty: always target_batch_size
  bool batch_ramp_lr = false; // max_lr x sqrt(sequences of the step / those of the last phase)

  // duration
  int64_t max_steps = 0; // 0: from num_epochs, or the model's default up to 40 epochs
  double num_epochs = 0;

  // optimizer
  Optimizer optimizer = Optimizer::adamw;
  float max_lr = 0;   // with Muon, of the blocks' matrices; 0: the model's default (6e-4 for gpt2, ...)
  float adamw_lr = 0; // with Muon, of all other parameters; 0: the model's default
  float min_lr_ratio = 0.1f;
  int64_t warmup_steps = -1; // -1: the model's default, less in a short run
  Decay lr_schedule = Decay::cosine;
  float wsd_decay_ratio = 0.2f; // wsd: share of the steps spent cooling down
  float weight_decay = 0.1f, beta1 = 0.9f, beta2 = 0.95f, adam_eps = 1e-8f, grad_clip = 1.0f;
  float muon_momentum = 0.95f;
  int64_t muon_momentum_warmup = 0; // applied steps; 0: off
  bool muon_cautious_decay = false;
  InitProjections init_projections = InitProjections::normal;

  // precision and device
  DeviceKind device = DeviceKind::automatic;
  PrecisionChoice precision = PrecisionChoice::automatic;
  bool use_fp8 = false;
  Fp8FormatChoice fp8_format = Fp8FormatChoice::hybrid;
  int fp8_margin = 1, fp8_interval = 1, fp8_amax_history = 16;
  bool fp8_lm_head = true;
  Fp8ScalingRecipe fp8_recipe = Fp8ScalingRecipe::delayed;
  int64_t fp8_bf16_steps = -1;   // at the start of a run; -1: the warm-up or a part of it
  int64_t fp8_current_steps = 0; // after those; -1: the rest of the warm-up
  Fp8Scenario fp8_scenario = Fp8Scenario::standard;
  std::string fp8_bf16_layers; // "first,last,3-5"; empty: none
  bool fp8_auto_fallback = true;
  int threads = 0; // CPU engine; 0: all cores

  // GPU: no effect on the CPU engine
  bool deterministic = false;
  bool cuda_graph = true;
  Recompute recompute = Recompute::automatic;
  AttentionKind attention = AttentionKind::automatic;
  KernelChoice kernels = KernelChoice::automatic;
  double memory_limit = 0;                                      // GiB; 0: all of the GPU's memory
  std::string plan_cache = "~/.cache/train_gpt2_fp8/plans.txt"; // empty: none
  std::string timeline;                                         // file for a trace of two steps; empty: off

  // evaluation and sampling
  int64_t eval_freq = 250; // steps; 0: never
  int eval_sequences = 0;  // sequences evaluated; 0: four steps' worth, 64 to 256
  bool eval_at_start = false;
  int64_t hellaswag_freq = 0; // steps; 0: never
  std::string hellaswag_data = "data/hellaswag/hellaswag_val.jsonl";
  int64_t hellaswag_tasks = 0; // the first N; 0: all
  int64_t sample_freq = 1000;  // steps; 0: only at the end
  std::string prompt;
  int sample_tokens = 64; // tokens per sample; 0: no samples
  float temperature = 0.8f;
  int top_k = 50;
  uint64_t sample_seed = 1;

  // logs
  int64_t log_freq = 0; // steps between printed lines; 0: every step in a file, fewer on a terminal
  bool use_tensorboard = true;
  int64_t histogram_freq = -1; // steps; 0: never; -1: as eval_freq, or 250 without evaluation
  bool fp8_detail = false;     // each kind of quantized tensor, and each tensor in metrics.jsonl
  std::string run_name;        // empty: <model>-<precision>-<date>
  std::string log_dir = "runs";

  // checkpoints
  std::string checkpoint_dir;     // empty: checkpoints_PRECISION
  int64_t checkpoint_freq = 1000; // steps; 0: only at the end
  int64_t keep_checkpoints = -1;  // the newest N of this run; 0: all; -1: 3 and each fifth of the run
  int64_t keep_every = 0;         // steps: multiples of it are kept; 0: none
  bool save_best = true;          // also at every new best validation loss
  bool strict_saves = false;      // a failed save ends the run
  std::string init_from;          // initial weights; empty: GPT-2's initialization
  std::string hf_cache;           // cache of the Hugging Face hub; empty: the default of its tools
  std::string resume;             // latest, best, a step, a run, a path
  bool allow_other_data = false;  // one start only: training data may differ from the checkpoint's

  // anomaly guard
  float skip_loss_z = 0, skip_grad_z = 0; // standard deviations; 0: off
  int max_skipped = 10;                   // consecutive, then exit 5

  // many ranks
  int zero = 1;                                  // ZeRO stage: 1 shards the optimizer state, 0 does not
  GradExchange grad_reduce = GradExchange::fp32; // format of the gradient all-reduce
  int nccl_timeout = 120;                        // seconds to wait for another rank
  bool log_ranks = false;                        // one metrics file per rank
  // of one start, not stored with the run
  std::string gpus;         // ranks to start; "all": one per GPU
  int ranks = 0, rank = -1; // without a known launcher
  std::string master;       // address of rank 0
  bool share_gpu = false;   // several ranks may use one GPU

  // actions
  bool list_checkpoints = false, print_config = false, eval_only = false, plan = false;
  double measure = 0;   // --plan: seconds to train to measure the speed; 0: off
  bool json = false;    // --plan
  std::string plan_for; // --plan: name of a GPU that may not be here; empty: this machine's

  bool operator==(const Options&) const = default;
};

} // namespace gpt2
