#include "tools/evaluate/evaluation.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/formatted.h"
#include "engine/base/log.h"
#include "engine/base/stopwatch.h"
#include "engine/checkpoint/names.h"
#include "engine/checkpoint/search.h"
#include "engine/data/dataset_folder.h"
#include "engine/data/loader.h"
#include "engine/options/parse_options.h"
#include "engine/run/session.h"
#include "engine/system/files.h"
#include "engine/system/process.h"
#include "engine/system/terminal.h"
#include "tools/common/output_kinds.h"
#include "tools/evaluate/last_words.h"

namespace gpt2 {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kGpuTokensAtOnce = 65536, kCpuTokensAtOnce = 4096; // per forward pass: enough to fill the device

// One row of the table.
struct Result {
  std::string name;
  int64_t count = 0;
  Json values;
  double seconds = 0;
};

class Evaluation {
 public:
  Evaluation(const EvaluationCommand& command, InferenceModel& model, const InferenceOptions& options)
      : command_(command), model_(*model.model), batch_size_(options.batch_size), window_(options.longest) {
    stop_.defer();
  }

  Result tasks(TaskKind kind, const std::vector<Task>& tasks) {
    const Stopwatch watch;
    const std::string name = name_of(kind);
    ScoringOptions options;
    options.batch_size = batch_size_;
    options.window = window_;
    options.stop = [this] { return stop_.requested(); };
    options.progress = [&](int64_t done, int64_t of) { show(name, done, of); };
    const std::optional<TaskLosses> losses = task_losses(model_, tasks, group_, options);
    if (!losses) throw Error(ExitCode::stopped_early, "stopped");
    for (const std::vector<double>& of_task : *losses) {
      for (const double loss : of_task) expect_finite(loss);
    }
    if (!command_.details.empty()) note_details(name, tasks, *losses);
    Result result{.name = name, .count = static_cast<int64_t>(tasks.size()), .values = {}, .seconds = 0};
    if (kind == TaskKind::lambada) {
      const LastWords words = last_words(model_, tasks, *losses);
      result.values = {{"accuracy", words.accuracy}, {"perplexity", words.perplexity}};
    } else {
      const Accuracy shares = accuracy(tasks, *losses);
      result.values = {{"accuracy", shares.summed}, {"per_token", shares.per_token}, {"per_byte", shares.per_byte}};
    }
    result.values["standard_error"] = standard_error(result.values["accuracy"].get<double>(), result.count);
    result.seconds = watch.seconds();
    return result;
  }

  Result shards(const Dataset& data) {
    const Stopwatch watch;
    const int64_t all = command_.limit > 0 ? std::min(command_.limit, data.sequences()) : data.sequences();
    double nats = 0;
    int64_t tokens = 0;
    for (int64_t first = 0; first < all; first += batch_size_) {
      if (stop_.requested()) throw Error(ExitCode::stopped_early, "stopped");
      const LossSum sum = evaluate(model_, read_sequences(data, first, all, batch_size_).view());
      nats += sum.sum;
      tokens += sum.tokens;
      show("val_data", first + batch_size_, all);
    }
    const double loss = nats / static_cast<double>(tokens);
    expect_finite(loss);
    return {.name = "val_data",
            .count = all,
            .values = {{"tokens", tokens}, {"loss", loss}, {"perplexity", std::exp(loss)}},
            .seconds = watch.seconds()};
  }

  std::string take_details() { return std::move(details_); }

 private:
  static void expect_finite(double loss) {
    if (!std::isfinite(loss))
      throw Error(ExitCode::numerics, "the model's loss is not finite", "use an earlier checkpoint");
  }

  void note_details(const std::string& name, const std::vector<Task>& tasks, const TaskLosses& losses) {
    for (size_t i = 0; i < tasks.size(); ++i)
      details_ += Json{{"task", name},
                       {"index", i},
                       {"right", tasks[i].right},
                       {"chosen", chosen(losses[i])},
                       {"losses", losses[i]}}
                      .dump() +
                  "\n";
  }

  void show(const std::string& name, int64_t done, int64_t of) const {
    if (!terminal_ || command_.json) return;
    std::cout << (done < of ? "\r" + name + " " + std::to_string(done) + " of " + std::to_string(of) : "\r") + "\033[K"
              << std::flush;
  }

  const EvaluationCommand& command_;
  Model& model_;
  const int batch_size_, window_;
  const StopSignal stop_;
  const bool terminal_ = is_terminal();
  RankGroup group_; // one process
  std::string details_;
};

std::string share(const Json& values, const char* name) {
  return values.contains(name) ? formatted("%.4f", values[name].get<double>()) : "-";
}

void print_table(const std::vector<Result>& results) {
  log_info(formatted("%-10s %6s %-16s %9s %8s %6s %10s %7s", "", "number", "accuracy", "per token", "per byte", "loss",
                     "perplexity", "seconds"));
  for (const auto& [name, count, values, seconds] : results) {
    const std::string accuracy =
        share(values, "accuracy") +
        (values.contains("standard_error") ? formatted(" +- %.4f", values["standard_error"].get<double>()) : "");
    const std::string perplexity =
        values.contains("perplexity") ? formatted("%.2f", values["perplexity"].get<double>()) : "-";
    log_info(formatted("%-10s %6lld %-16s %9s %8s %6s %10s %7.1f", name.c_str(), static_cast<long long>(count),
                       accuracy.c_str(), share(values, "per_token").c_str(), share(values, "per_byte").c_str(),
                       share(values, "loss").c_str(), perplexity.c_str(), seconds));
  }
}

void print_json(const std::string& model, const std::vector<Result>& results) {
  Json all = {{"model", model}};
  for (const auto& [name, count, values, seconds] : results) {
    all[name] = {{"number", count}};
    all[name].update(values);
    all[name]["seconds"] = seconds;
  }
  log_info(all.dump(2));
}

// Longest window of all tasks: a shorter one means less padding and more rows per batch.
int window_for(const std::map<TaskKind, std::vector<Task>>& tasks, bool shards, int positions) {
  if (shards) return positions;
  size_t longest = 1;
  for (const auto& [kind, of_kind] : tasks)
    for (const Task& task : of_kind)
      for (const Candidate& candidate : task.candidates) longest = std::max(longest, candidate.tokens.size());
  return batch_length(static_cast<int>(longest), positions);
}

// ---- text ----

// Of --dataset or --val_data; "": neither.
std::string val_patterns(const EvaluationCommand& command) {
  if (command.dataset.empty()) return command.val_data;
  if (!command.val_data.empty())
    throw Error(ExitCode::usage, "--dataset and --val_data exclude each other", "give one of the two");
  const std::string patterns = find_dataset(command.data_dir, command.dataset).val;
  if (patterns.empty())
    throw Error(ExitCode::data, "dataset " + command.dataset + " has no validation shards",
                "give its shards by --val_data GLOB, or make it again with a larger --val_fraction");
  return patterns;
}

std::shared_ptr<const Dataset> open_text(const std::string& patterns, const GPT2Config& config) {
  std::vector<std::unique_ptr<TokenSource>> shards;
  for (const std::string& path : expand_globs(patterns)) shards.push_back(open_shard(path));
  return std::make_shared<Dataset>(std::move(shards), config.seq_len, config.vocab);
}

// The validation set of the run that saved the checkpoint, and its mask of documents. Without --limit, as many
// sequences as the trainer evaluates.
std::shared_ptr<const Dataset> text_of_run(const WeightSource& weights, EvaluationCommand& command,
                                           DocumentOptions& documents) {
  const char* const hint = "give --dataset NAME, --val_data GLOB, --hellaswag FILE or another task; see --help";
  if (!is_complete(weights.path()))
    throw Error(ExitCode::usage, "nothing to evaluate: " + weights.path() + " is not a checkpoint of a run", hint);
  const TrainState state = read_checkpoint(weights.path());
  const Options options = from_toml(state.options_toml, weights.path()).options;
  const RunData data = open_run_data(options, weights.config());
  if (!data.validation)
    throw Error(ExitCode::usage, "nothing to evaluate: run " + state.run_name + " has no validation data", hint);
  if (command.limit == 0) command.limit = options.eval_sequences;
  documents = {.mask = options.document_mask, .positions = options.document_positions};
  if (!command.json)
    log_info(
        "validation set of run " + state.run_name + ": " +
        (command.limit > 0 ? counted(std::min(command.limit, data.validation->sequences()), "sequence") + " of " : "") +
        data.validation_from);
  return data.validation;
}

} // namespace

ExitCode run_evaluation(EvaluationCommand command) {
  std::erase_if(command.files, [](const auto& entry) { return entry.second.empty(); });
  const std::string patterns = val_patterns(command);
  refuse_foreign_file(command.details, kDetailsOutput, command.overwrite);
  InferenceOptions options = inference_options(command.model);
  const std::unique_ptr<WeightSource> weights = open_weights(options.source, options.hf_cache);
  std::map<TaskKind, std::vector<Task>> tasks;
  if (!command.files.empty()) {
    const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(command.model.tokenizer);
    for (const auto& [kind, path] : command.files) tasks[kind] = read_tasks(kind, path, *tokenizer, command.limit);
  }
  const int positions = weights->config().seq_len;
  std::shared_ptr<const Dataset> data;
  if (!patterns.empty())
    data = open_text(patterns, weights->config());
  else if (tasks.empty())
    data = text_of_run(*weights, command, options.documents);
  options.longest = window_for(tasks, data != nullptr, positions);
  const bool gpu = options.device != DeviceKind::cpu && gpu_count() > 0;
  const int tokens_at_once = gpu ? kGpuTokensAtOnce : kCpuTokensAtOnce;
  options.batch_size =
      command.batch_size > 0 ? command.batch_size : std::clamp(tokens_at_once / options.longest, 1, 1024);
  std::optional<PendingFile> details; // refuse an existing file before the work
  if (!command.details.empty()) details.emplace(command.details).create();

  InferenceModel model = open_inference_model(options, *weights);
  for (const std::string& note : model.notes) log_warn(note);
  if (!command.json) log_info(model.description);
  Evaluation evaluation(command, model, options);
  std::vector<Result> results;
  for (const auto& [kind, of_kind] : tasks) results.push_back(evaluation.tasks(kind, of_kind));
  if (data) results.push_back(evaluation.shards(*data));
  if (details) {
    const std::string lines = evaluation.take_details();
    details->create().write_at(0, std::as_bytes(std::span(lines)));
    details->commit();
  }
  if (command.json)
    print_json(model.description, results);
  else
    print_table(results);
  return ExitCode::done;
}

} // namespace gpt2
