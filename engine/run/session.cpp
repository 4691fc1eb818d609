#include "engine/run/session.h"

#include <algorithm>

#include "engine/base/formatted.h"
#include "engine/checkpoint/search.h"
#include "engine/data/dataset_folder.h"
#include "engine/data/dataset_manifest.h"
#include "engine/data/shard.h"
#include "engine/options/parse_options.h"
#include "engine/run/checkpoint_cost.h"
#include "engine/run/multi_rank.h"
#include "engine/run/option_notes.h"
#include "engine/run/summary.h"
#include "engine/system/content_hash.h"
#include "engine/text/sample_text.h"
#include "engine/text/task_scores.h"

namespace gpt2 {
namespace {

// ---- data ----

constexpr int64_t kTrainStories = 40000;
constexpr int64_t kValidationStories = 2000;
constexpr uint64_t kTrainStorySeed = 1, kValidationStorySeed = 2; // independent of --seed: always the same text

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

// --train_data, or the globs of --dataset; --val_data overrides the validation shards of either.
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

std::optional<UnusedFolders> note_unused(const RunPlace& place, const RankGroup& group) {
  if (!group.leads()) return std::nullopt;
  return std::optional<UnusedFolders>(std::in_place, std::vector{place.logs(), place.checkpoints()});
}

// Two writers of one run would replace each other's checkpoints.
std::optional<FolderLock> lock_if(bool wanted, const std::string& folder) {
  if (!wanted) return std::nullopt;
  return std::optional<FolderLock>(std::in_place, folder, "--run_name");
}

bool one_folder(const RunPlace& place) { return canonical_path(place.checkpoints()) == canonical_path(place.logs()); }

std::string metrics_file(const Options& options, const RankGroup& group) {
  if (group.leads()) return "metrics.jsonl";
  return options.log_ranks ? formatted("rank_%05d.jsonl", group.rank()) : "";
}

// ---- model ----

void print_resume_point(Console& console, const ResumePoint& point, const ModelOptions& model, int ranks) {
  console.line(concat("resumed ", point.checkpoint, " at step ", point.step));
  if (point.ranks != ranks)
    console.line(concat("note: saved by ", counted(point.ranks, "rank"), ", resumed by ", ranks));
  const std::string precision = to_string(model.precision);
  if (point.precision == precision) return;
  const std::string so_far = "note: trained in " + point.precision + " so far, " + precision;
  if (model.precision != Precision::fp8)
    console.line(so_far + " from here on");
  else if (point.step < model.fp8.bf16_steps)
    console.line(concat(so_far, " after step ", model.fp8.bf16_steps));
  else
    console.line(so_far + " from here on: the FP8 recipe calibrates at the first step");
}

// The plan as checkpoints store it. A taken or unwritable folder is refused before batch sizes are timed.
RunPlan open_plan(const RunPlace& place, const RunSettings& settings, const GPT2Config& config, Precision precision,
                  const RunData& data, Backend& backend, RankGroup& group) {
  if (group.leads()) {
    refuse_taken_name(place);
    const StopSignal stop;
    stop.defer(); // until the probe file is removed
    CheckpointFolder(place.checkpoint_dir, place.run_name).check_writable(ParameterTable(config).size());
    if (group.alone()) stop.answer_at_once();
  }
  RunPlan plan = agree_on_plan(settings, config, precision, *data.train, data.validation.get(), backend, group);
  plan.options.run_name = place.run_name;
  plan.options.checkpoint_dir = place.checkpoint_dir;
  return plan;
}

// Each rank reads only its shard: a name that means other weights on another node would train a mixture.
void check_same_weights(WeightSource& weights, const ParameterTable& table, RankGroup& group) {
  if (group.alone()) return;
  constexpr int64_t kHashed = 4096; // elements of each tensor
  uint64_t hash = 0;
  for (const ParameterTensor& tensor : table.tensors()) {
    std::vector<float> values(static_cast<size_t>(std::min(kHashed, tensor.count())));
    weights.read_range("params/" + tensor.name, 0, values);
    hash = xxh64(std::as_bytes(std::span(values)), hash);
  }
  check_agreement(group, {{"weights of --init_from", concat("hash ", hash)}});
}

// Identifies the validation sequences of a loss.
std::string validation_text(const RunData& data, const RunPlan& plan) {
  if (!data.validation) return "";
  const int64_t used = std::min<int64_t>(plan.eval_sequences, data.validation->sequences());
  return concat(used, " sequences of ", data.validation->fingerprint());
}

// Losses on other data are not comparable.
void forget_other_validation(TrainState& state, const std::string& validation, Console& console) {
  if (state.validation.empty() || validation.empty() || state.validation == validation) return;
  if (state.best_val_loss < kNoLoss)
    console.line("note: the validation data has changed: the best loss so far, " +
                 formatted("%.4f", state.best_val_loss) + ", no longer counts");
  state.best_val_loss = kNoLoss;
}

TrainState open_state(const RunSettings& settings, const RunPlan& plan, const RunData& data, Model& model,
                      RankGroup& group, Console& console) {
  const std::string trained_on = data.train->fingerprint(), validation = validation_text(data, plan);
  TrainState state;
  state.seed = plan.options.seed;
  if (settings.weights) {
    check_same_weights(*settings.weights, model.parameters(), group);
    model.load_weights(*settings.weights);
    console.line("starting from the weights of " + settings.weights->path());
  }
  if (const auto& point = settings.resumed) {
    const std::string note = check_same_data(*point, trained_on, plan.options.allow_other_data);
    if (!note.empty()) console.line("note: " + note);
    state = load_checkpoint(point->checkpoint, model);
    print_resume_point(console, *point, plan.model, group.ranks());
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

// A resumed run does what its stop prevented, so that its curves have no gap.
MissingWork find_missing(const Session& session) {
  if (!session.resumed) return {};
  const Options& o = session.plan.options;
  const TrainState& state = session.state;
  const int64_t step = state.step, last = session.plan.max_steps;
  const bool evaluation_due =
      o.eval_freq > 0 && (step < last ? step % o.eval_freq == 0 : step == last && !session.prompt_given);
  return {.evaluation = evaluation_due && state.last_val_step != step && !session.validation.empty(),
          .hellaswag = state.hellaswag_due && o.hellaswag_freq > 0,
          .sample = state.sample_due && o.sample_tokens > 0};
}

// From here on a stop signal makes Trainer::run() return, and ~RunLog() removes the log of a run without a step.
RunLog open_log(const Session& session) {
  session.stop.defer();
  return RunLog(session.place.logs(), session.plan.options.use_tensorboard && session.group.leads(),
                session.place.continues ? session.state.step + 1 : 0,
                session.work_left() ? metrics_file(session.plan.options, session.group) : "", session.warn);
}

// ---- notes ----

std::vector<std::string> notes_of(const Session& session, const RunSettings& settings, const DeviceChoice& device) {
  std::vector<std::string> notes = settings.notes;
  append_notes(notes, session.place.notes);
  append_notes(notes, device.notes);
  append_notes(notes, session.data.notes);
  append_notes(notes, session.plan.notes);
  const Options& options = session.plan.options;
  append_notes(notes, notes_on_options_without_effect(settings, session.plan, device.gpu, !session.validation.empty()));
  if (settings.resumed) append_notes(notes, notes_on_resume(settings.resumed->options, options, session.state.step));
  if (!session.text.can_decode() && options.sample_tokens > 0) {
    notes.push_back("no BPE tables: samples are not printed; run tools/install_deps.sh or use --tokenizer DIR");
  }
  return notes;
}

void warn_of_full_disk(const Session& session, Console& console) {
  const std::string& folder = session.checkpoints.path();
  const int64_t done = std::min(session.state.step, session.plan.max_steps);
  const CheckpointCost cost = checkpoint_cost(session.plan, done, !session.validation.empty());
  int64_t free = free_disk_space(folder);
  if (session.place.continues && cost.bytes() > free) // it replaces checkpoints that are on the disk already
    for (const std::string& checkpoint : checkpoints_in(folder)) free += bytes_of(checkpoint);
  const std::string warning = checkpoint_space_warning(cost, folder, free);
  if (!warning.empty()) console.line("warning: " + warning, Style::warning);
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
  std::vector<Task> tasks = read_hellaswag(options.hellaswag_data, *tokenizer, options.hellaswag_tasks);
  refuse_long_endings(tasks, seq_len);
  uint64_t hash = 0;
  for (const Task& task : tasks)
    for (const Candidate& candidate : task.candidates) hash = xxh64(std::as_bytes(std::span(candidate.tokens)), hash);
  check_agreement(group, {{"tasks of HellaSwag", concat(tasks.size(), ", hash ", hash)}});
  return tasks;
}

std::string check_same_data(const ResumePoint& point, const std::string& data, bool allowed) {
  if (point.data == data) return "";
  if (point.data.empty()) return point.checkpoint + " does not record its training data: not compared";
  const std::string difference =
      point.checkpoint + " was trained on other data: " + point.data + "; this run has " + data;
  if (allowed) return difference;
  throw Error(ExitCode::checkpoint, difference,
              "use the data it was trained on, or --allow_other_data to resume anyway");
}

Session::Session(const RunSettings& settings, const DeviceChoice& device, Backend& backend, RankGroup& group,
                 Console& console)
    : backend(backend),
      group(group),
      console(console),
      warn(group.leads() ? [&console](const std::string& line) { console.line("warning: " + line, Style::warning); }
                         : Warn(log_warn)),
      config(resolve_config(settings.options, device.gpu)),
      data(open_run_data(settings.options, config)),
      place(agree_on_place(settings, config, device.precision, group)),
      unused(note_unused(place, group)),
      log_lock(lock_if(group.leads(), place.logs())),
      checkpoint_lock(lock_if(group.leads() && !one_folder(place), place.checkpoints())),
      plan(open_plan(place, settings, config, device.precision, data, backend, group)),
      checkpoints(place.checkpoint_dir, place.run_name, keep_rule(plan.options)),
      text(Tokenizer::find_folder(plan.options.tokenizer), data.built_in),
      prompt(text.encode(plan.options.prompt)),
      hellaswag(open_hellaswag(plan.options, plan.model.seq_len, group)),
      prompt_given(settings.given.contains("prompt") && plan.options.sample_tokens > 0),
      model(backend.make_model(plan.model, group)),
      resumed(settings.resumed),
      state(open_state(settings, plan, data, *model, group, console)),
      validation(open_validation(data, plan, group)),
      missing(find_missing(*this)),
      log(open_log(*this)),
      loader(data.train,
             {.batch_size = plan.batch.batch_size, .rank = group.rank(), .ranks = group.ranks(), .seed = state.seed},
             state.loader_position) {
  log.begin(state.step, plan, *model);
  for (const std::string& note : notes_of(*this, settings, device)) console.line("note: " + note);
  if (group.leads() && work_left()) warn_of_full_disk(*this, console);
  if (plan.model.precision == Precision::fp8) console.line(fp8_line(*this));
  console.table(start_table(*this));
}

} // namespace gpt2
