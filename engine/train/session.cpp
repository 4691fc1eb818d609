#include "engine/train/session.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>

#include "engine/base/formatted.h"
#include "engine/base/hash.h"
#include "engine/data/dataset_folder.h"
#include "engine/data/dataset_manifest.h"
#include "engine/data/sample_text.h"
#include "engine/data/shard.h"
#include "engine/data/shard_overlap.h"
#include "engine/inference/task_scores.h"
#include "engine/io/checkpoint_names.h"
#include "engine/io/checkpoint_search.h"
#include "engine/train/many_ranks.h"
#include "engine/train/option_notes.h"
#include "engine/train/report.h"

namespace gpt2 {
namespace {

// ---- data ----

constexpr int64_t kTrainStories = 40000;
constexpr int64_t kValidationStories = 2000;
constexpr uint64_t kTrainStorySeed = 1, kValidationStorySeed = 2; // not --seed: the sample is always the same text

std::shared_ptr<const Dataset> open_shards(const std::string& patterns, const GPT2Config& config) {
  std::vector<std::unique_ptr<TokenSource>> shards;
  for (const std::string& path : expand_globs(patterns)) shards.push_back(open_shard(path));
  check_shards(shards, config.vocab);
  return std::make_shared<Dataset>(std::move(shards), config.seq_len, config.vocab);
}

std::shared_ptr<const Dataset> in_memory(const std::string& name, std::vector<uint16_t> tokens,
                                         const GPT2Config& config) {
  std::vector<std::unique_ptr<TokenSource>> shards;
  shards.push_back(memory_shard(name, std::move(tokens)));
  return std::make_shared<Dataset>(std::move(shards), config.seq_len, config.vocab);
}

// --train_data, or what --dataset stands for; a --val_data goes with either.
DatasetPatterns data_patterns(const Options& options) {
  if (!options.train_data.empty() || options.dataset.empty()) return {options.train_data, options.val_data};
  DatasetPatterns found = find_dataset(options.data_dir, options.dataset);
  if (!options.val_data.empty()) found.val = options.val_data;
  return found;
}

RunData built_in_sample(const GPT2Config& config) {
  RunData data;
  data.built_in = true;
  data.train_from = data.validation_from = "built-in sample";
  data.train = in_memory("built-in sample", sample_tokens(kTrainStorySeed, kTrainStories).tokens, config);
  SampleTokens validation = sample_tokens(kValidationStorySeed, kValidationStories);
  data.entropy = validation.entropy_per_token;
  data.validation = in_memory("built-in sample, validation", std::move(validation.tokens), config);
  data.notes.push_back(
      "no --train_data: training on the built-in sample, simple stories from a small grammar; "
      "for FineWeb-Edu see data/README.md and bin/prepare_data");
  return data;
}

// ---- folders ----

std::string new_run_name(const GPT2Config& config, Precision precision) { // "nano-fp32-20261115-014400"
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char date[32];
  std::strftime(date, sizeof date, "%Y%m%d-%H%M%S", &local);
  return config.name + "-" + to_string(precision) + "-" + date;
}

// Two writers of one run would replace each other's checkpoints; other runs have folders of their own.
std::optional<FolderLock> lock_logs(const std::string& folder, const RankGroup& group) {
  if (!group.leads()) return std::nullopt;
  return std::optional<FolderLock>(std::in_place, folder, "--run_name");
}

std::optional<FolderLock> lock_checkpoints(const std::string& folder, const std::string& locked_already,
                                           const RankGroup& group) {
  if (!group.leads()) return std::nullopt;
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (fs::weakly_canonical(folder, ignored) == fs::weakly_canonical(locked_already, ignored)) return std::nullopt;
  return std::optional<FolderLock>(std::in_place, folder, "--run_name");
}

CheckpointFolder open_checkpoints(const std::string& checkpoint_dir, const std::string& run_name, const RunStart& start,
                                  const GPT2Config& config, const RankGroup& group) {
  const Options& o = start.options;
  CheckpointFolder checkpoints(checkpoint_dir, run_name,
                               {.newest = o.keep_checkpoints, .every = o.keep_every, .due_every = o.checkpoint_freq});
  if (group.leads() && start.checkpoint.empty()) {
    refuse_taken_name(checkpoints.path());
    for (const std::string& dir : default_checkpoint_dirs())
      refuse_taken_name(dir + "/" + run_name); // logs share a name
  }
  if (group.leads()) checkpoints.check_writable(ParameterTable(config).size());
  return checkpoints;
}

// Rank 0 names the run; a rank that knows no name yet may read another second on its clock.
std::string agree_on_name(const Options& options, const std::string& checkpoint_dir, const GPT2Config& config,
                          Precision precision, RankGroup& group) {
  return group.broadcast(run_name_for(options, checkpoint_dir, config, precision));
}

std::string metrics_file(const Options& options, const RankGroup& group) {
  if (group.leads()) return "metrics.jsonl";
  char name[32];
  std::snprintf(name, sizeof name, "rank_%05d.jsonl", group.rank());
  return options.log_ranks ? name : "";
}

// Above the progress bar where there is one. The consoles of other ranks are mute.
Warn log_warnings(Console& console, const RankGroup& group) {
  if (!group.leads()) return log_warn;
  return [&console](const std::string& line) { console.line("warning: " + line, Style::warning); };
}

// ---- model ----

void say_where_it_resumes(Console& console, const std::string& checkpoint, const TrainState& state,
                          const ModelOptions& model) {
  console.line("resumed " + checkpoint + " at step " + std::to_string(state.step));
  const std::string precision = to_string(model.precision);
  if (state.precision == precision) return;
  const std::string so_far = "note: trained in " + state.precision + " so far, " + precision;
  if (model.precision != Precision::fp8)
    console.line(so_far + " from here on");
  else if (state.step < model.fp8.bf16_steps)
    console.line(so_far + " after step " + std::to_string(model.fp8.bf16_steps));
  else
    console.line(so_far + " from here on: the FP8 recipe calibrates at the first step");
}

// The plan as it will stand in checkpoints: a checkpoint's options start a run, they do not resume one.
RunPlan named_plan(RunPlan plan, const std::string& run_name) {
  plan.options.run_name = run_name;
  plan.options.resume.clear();
  return plan;
}

// Each rank reads only what it owns: a name that means other weights on another node would train a mixture.
void check_same_weights(WeightSource& weights, const ParameterTable& table, RankGroup& group) {
  if (group.alone()) return;
  constexpr int64_t kLookedAt = 4096; // elements of each tensor
  uint64_t hash = 0;
  for (const ParameterTensor& tensor : table.tensors()) {
    std::vector<float> values(static_cast<size_t>(std::min(kLookedAt, tensor.count())));
    weights.read_range("params/" + tensor.name, 0, values);
    hash = xxh64(std::as_bytes(std::span(values)), hash);
  }
  check_agreement(group, {{"weights of --init_from", "hash " + std::to_string(hash)}});
}

// What a validation loss is the loss of.
std::string validation_text(const RunData& data, const RunPlan& plan) {
  if (!data.validation) return "";
  const int64_t used = std::min<int64_t>(plan.eval_sequences, data.validation->sequences());
  return std::to_string(used) + " sequences of " + data.validation->fingerprint();
}

// A loss on other data says nothing about the next ones.
void forget_other_validation(TrainState& state, const std::string& validation, Console& console) {
  if (state.validation.empty() || validation.empty() || state.validation == validation) return;
  if (state.best_val_loss < kNoLoss)
    console.line("note: the validation data is not what it was: the best loss so far, " +
                     formatted("%.4f", state.best_val_loss) + ", no longer counts",
                 Style::warning);
  state.best_val_loss = kNoLoss;
}

TrainState open_state(const RunStart& start, const RunPlan& plan, const RunData& data, Model& model, RankGroup& group,
                      Console& console) {
  const std::string& checkpoint = start.checkpoint;
  const std::string trained_on = data.train->fingerprint(), validation = validation_text(data, plan);
  TrainState state;
  state.seed = plan.options.seed;
  if (start.weights) {
    check_same_weights(*start.weights, model.parameters(), group);
    model.load_weights(*start.weights);
    console.line("begins with the weights of " + start.weights->path());
  }
  if (!checkpoint.empty()) {
    const std::string note =
        check_same_data(checkpoint, read_checkpoint(checkpoint), trained_on, plan.options.allow_other_data);
    if (!note.empty()) console.line("note: " + note, Style::warning);
    state = load_checkpoint(checkpoint, model);
    say_where_it_resumes(console, checkpoint, state, plan.model);
    forget_other_validation(state, validation, console);
  }
  state.run_name = plan.options.run_name;
  state.precision = to_string(plan.model.precision);
  state.options_toml = to_toml(plan.options);
  state.data = trained_on;
  if (!validation.empty()) state.validation = validation;
  return state;
}

std::vector<HostBatch> open_validation(const RunData& data, const RunPlan& plan, RankGroup& group) {
  if (!data.validation || !plan.wants_evaluation()) return {};
  return validation_batches(*data.validation, plan.eval_sequences, plan.batch.batch_size, group.rank(), group.ranks());
}

// ---- what the user should know ----

std::vector<std::string> notes_of(const Session& session, const RunStart& start, const DeviceChoice& device) {
  std::vector<std::string> notes = start.notes;
  append_notes(notes, device.notes);
  append_notes(notes, session.data.notes);
  append_notes(notes, session.plan.notes);
  const Options& options = session.plan.options;
  append_notes(notes, notes_on_options_without_effect(start, session.plan, device.gpu, !session.validation.empty()));
  if (start.of_checkpoint) append_notes(notes, notes_on_resume(*start.of_checkpoint, options, session.state.step));
  if (!session.text.can_decode() && options.sample_tokens > 0) {
    notes.push_back("no BPE tables: samples are not printed; run tools/install_deps.sh or give --tokenizer DIR");
  }
  return notes;
}

} // namespace

RunData open_run_data(const Options& options, const GPT2Config& config) {
  const auto [train, val] = data_patterns(options);
  if (train.empty()) return built_in_sample(config);
  RunData data;
  data.train_from = train;
  data.validation_from = val;
  data.train = open_shards(train, config);
  if (!val.empty()) {
    refuse_shared_shards(expand_globs(train), expand_globs(val));
    data.validation = open_shards(val, config);
  } else if (options.eval_freq > 0) {
    data.notes.push_back("no --val_data: training without evaluation");
  }
  return data;
}

std::vector<Task> open_hellaswag(const Options& options, int seq_len, RankGroup& group) {
  if (options.hellaswag_freq == 0) return {};
  const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(options.tokenizer);
  std::vector<Task> tasks =
      read_tasks(TaskKind::hellaswag, options.hellaswag_data, *tokenizer, options.hellaswag_tasks);
  refuse_long_endings(tasks, seq_len);
  uint64_t hash = 0;
  for (const Task& task : tasks)
    for (const Candidate& candidate : task.candidates) hash = xxh64(std::as_bytes(std::span(candidate.tokens)), hash);
  check_agreement(group, {{"tasks of HellaSwag", std::to_string(tasks.size()) + ", hash " + std::to_string(hash)}});
  return tasks;
}

std::string run_name_for(const Options& options, const std::string& checkpoint_dir, const GPT2Config& config,
                         Precision precision) {
  if (!options.run_name.empty()) return options.run_name;
  return free_run_name(new_run_name(config, precision), checkpoint_dir, options.log_dir);
}

std::string check_same_data(const std::string& checkpoint, const TrainState& state, const std::string& data,
                            bool allowed) {
  if (state.data == data) return "";
  if (state.data.empty()) return checkpoint + " does not say which data it was trained on: not compared";
  const std::string difference = " was trained on other data: " + state.data + "; --train_data has " + data;
  if (allowed) return checkpoint + difference;
  throw Error(ExitCode::checkpoint, checkpoint + difference,
              "give it the data it was trained on, or --allow_other_data to go on all the same");
}

Session::Session(const RunStart& start, const DeviceChoice& device, Backend& backend, RankGroup& group,
                 Console& console)
    : backend(backend),
      group(group),
      console(console),
      config(resolve_config(start.options, device.gpu)),
      data(open_run_data(start.options, config)),
      checkpoint_dir(checkpoint_dir_for(start.options, device.precision)),
      run_name(agree_on_name(start.options, checkpoint_dir, config, device.precision, group)),
      log_folder(start.options.log_dir + "/" + run_name),
      log_lock(lock_logs(log_folder, group)),
      checkpoint_lock(lock_checkpoints(checkpoint_dir + "/" + run_name, log_folder, group)),
      checkpoints(open_checkpoints(checkpoint_dir, run_name, start, config, group)),
      plan(
          named_plan(agree_on_plan(start, config, device.precision, *data.train, data.validation.get(), backend, group),
                     run_name)),
      text(Tokenizer::find_folder(plan.options.tokenizer), data.built_in),
      prompt(text.encode(plan.options.prompt)),
      hellaswag(open_hellaswag(plan.options, plan.model.seq_len, group)),
      prompt_given(start.given.contains("prompt") && plan.options.sample_tokens > 0),
      model(backend.make_model(plan.model, group)),
      resumed(!start.checkpoint.empty()),
      resumed_from(start.checkpoint),
      state(open_state(start, plan, data, *model, group, console)),
      log(log_folder, plan.options.use_tensorboard && group.leads(), resumed ? state.step + 1 : 0,
          metrics_file(plan.options, group), log_warnings(console, group)),
      loader(data.train,
             {.batch_size = plan.batch.batch_size, .rank = group.rank(), .ranks = group.ranks(), .seed = state.seed},
             state.loader_position),
      validation(open_validation(data, plan, group)) {
  log.begin(state.step, plan, *model);
  for (const std::string& note : notes_of(*this, start, device)) console.line("note: " + note, Style::warning);
  if (plan.model.precision == Precision::fp8) console.line(fp8_line(*this));
  console.table(start_table(*this));
}

} // namespace gpt2
