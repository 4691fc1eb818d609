// Text to a data set for training: prepare_data FILE... --dataset NAME (docs/tools.md).
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <optional>
#include <thread>

#include "engine/base/formatted.h"
#include "engine/base/log.h"
#include "engine/base/shell_quote.h"
#include "engine/base/stopwatch.h"
#include "engine/data/dataset_folder.h"
#include "engine/logging/console.h"
#include "engine/system/folder_lock.h"
#include "engine/system/process.h"
#include "engine/system/program.h"
#include "tools/common/tool_arguments.h"
#include "tools/common/verify_data.h"
#include "tools/prepare_data/known_datasets.h"
#include "tools/prepare_data/prepare_data.h"

namespace {

using namespace gpt2;

constexpr double kSecondsBetweenLines = 30; // without a terminal
constexpr int kMostFaultLines = 10;

struct Command {
  PrepareOptions options;
  std::string dataset, data_dir = "data", from, verify, tokenizer;
  std::optional<double> val_fraction; // from the command line
  std::optional<std::string> separator;
  bool keep_order = false;
  int64_t memory_mb = 256;
};

void add_options(CLI::App& app, Command& command) {
  PrepareOptions& o = command.options;
  app.option_defaults()->group("Data");
  app.add_option("-i,--input,file", o.documents.inputs,
                 ".txt and .jsonl files, also .gz and .zst, and .parquet files; patterns and folders of them; - is "
                 "standard input");
  app.add_option("--dataset", command.dataset,
                 "name: shards go to DATA_DIR/NAME, where the trainer's --dataset NAME finds them. Without --input: "
                 "downloads " +
                     known_dataset_names())
      ->type_name("NAME");
  app.add_option("--from", command.from, "a mirror's address, or a folder with the files, instead of the hub")
      ->type_name("DIR|URL");
  app.add_option("--verify", command.verify, "compare every shard of a data set with its hash, and exit")
      ->type_name("DIR");
  app.option_defaults()->always_capture_default();
  app.add_option("--data_dir", command.data_dir, "folder of all data sets")->type_name("DIR");
  app.option_defaults()->group("Shards");
  app.add_option("-o,--output", o.output, "folder for the shards; default: DATA_DIR/NAME")->type_name("DIR");
  app.add_option("--format", o.format, "bin (llm.c) or h5 (HDF5)")->check(one_of({"bin", "h5"}));
  app.add_option("--val_fraction", command.val_fraction,
                 "share of the documents for val_*; 0: none; default: 0.01, downloads have their own")
      ->check(number_in(0.0, 1.0));
  app.add_flag("--no-shuffle", command.keep_order, "keep the order of the input");
  app.add_option("--seed", o.seed, "seed of the shuffle");
  app.add_flag("--deduplicate", o.deduplicate,
               "keep the first of equal documents; all .txt documents of 4 MiB or more are kept");
  app.add_option("--shard_tokens", o.shard_tokens, "tokens per shard; the last one is shorter")
      ->check(number_in(1, INT32_MAX));
  add_overwrite(app, o.overwrite, "replace existing shards, discard an unfinished run");

  app.option_defaults()->group("Text");
  app.add_option("--input_format", o.documents.input_format, "txt, jsonl or parquet; default: by extension")
      ->check(one_of({"txt", "jsonl", "parquet"}));
  app.add_option("--field", o.documents.field, ".jsonl and .parquet: field or column with the text")->type_name("NAME");
  app.add_flag("--skip_bad_lines", o.skip_bad_lines, ".jsonl: skip and count lines without that field");
  app.add_flag("--strict", o.strict, ".txt: refuse invalid UTF-8, NUL bytes and byte-order marks; default: a warning");
  app.add_option("--separator", command.separator,
                 ".txt: the line between documents; \"\": blank lines; default: <|endoftext|>");

  app.option_defaults()->group("Work");
  o.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  app.add_option("-j,--threads", o.threads, "encoding threads")->check(number_in(1, 1024));
  app.add_option("--memory", command.memory_mb, "documents sorted at once")
      ->check(number_in(1, 1 << 20))
      ->type_name("MIB");
  app.add_option("--journal_seconds", o.journal_seconds, "between two points from which a killed run resumes")
      ->type_name("SECONDS")
      ->check(number_in(0.0, 86400.0));
  add_tokenizer(app, command.tokenizer);
}

// Fills in defaults and refuses contradictory options.
void settle(Command& command) {
  PrepareOptions& o = command.options;
  check_dataset_name(command.dataset);
  const KnownDataset* const known = o.documents.inputs.empty() ? find_known_dataset(command.dataset) : nullptr;
  if (o.documents.inputs.empty() && command.dataset.empty())
    throw Error(ExitCode::usage, "no input given",
                "use --input FILE..., or --dataset with one of " + known_dataset_names());
  if (o.documents.inputs.empty() && !known)
    throw Error(ExitCode::usage, "--dataset " + command.dataset + " cannot be downloaded",
                "give --input FILE..., or one of " + known_dataset_names());
  if (!command.from.empty() && !known)
    throw Error(ExitCode::usage, "--from applies to downloads, not to --input", "leave one of the two out");
  if (o.output.empty() && command.dataset.empty())
    throw Error(ExitCode::usage, "no output given: use --dataset NAME or --output FOLDER");
  if (o.output.empty()) o.output = (std::filesystem::path(command.data_dir) / command.dataset).string();
  o.name = !command.dataset.empty() ? command.dataset
                                    : std::filesystem::path(o.output + "/").parent_path().filename().string();
  o.val_fraction = command.val_fraction.value_or(known ? known->val_fraction : 0.01);
  if (o.val_fraction == 1)
    throw Error(ExitCode::usage, "--val_fraction 1 leaves no document to train on",
                "give less; for a validation set alone, give 0 and name the shards with --val_data");
  if (command.separator || known) o.documents.separator = command.separator.value_or(known ? known->separator : "");
  o.shuffle = !command.keep_order;
  o.memory = command.memory_mb << 20;
  o.documents.parquet_readers = std::clamp(o.threads / 4, 1, 16);
}

std::string size_text(int64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

// A progress bar on a terminal; otherwise a line every kSecondsBetweenLines.
class Display {
 public:
  explicit Display(Console& console) : console_(console) {}

  // `bytes` determines the speed, `done` of `total` the share.
  void show(const std::string& stage, int64_t done, int64_t total, int64_t bytes, const std::string& note = "") {
    if (stage != stage_) {
      stage_ = stage;
      watch_ = {};
      first_ = done;
      first_bytes_ = bytes;
      printed_ = 0;
    }
    const double seconds = watch_.seconds();
    const double share = total > 0 ? std::min(1.0, static_cast<double>(done) / static_cast<double>(total)) : 0;
    std::vector<std::string> notes = {stage, size_text(bytes)};
    if (seconds > 0.5) notes.push_back(format_bytes(static_cast<double>(bytes - first_bytes_) / seconds) + "/s");
    if (seconds > 1 && total > 0 && done > first_)
      notes.push_back(
          "eta " + format_duration(seconds * static_cast<double>(total - done) / static_cast<double>(done - first_)));
    if (!note.empty()) notes.push_back(note);
    if (console_.is_terminal()) return console_.progress(share, notes);
    if (seconds - printed_ < kSecondsBetweenLines) return;
    printed_ = seconds;
    std::string line = total > 0 ? std::to_string(static_cast<int>(100 * share)) + "%" : "so far";
    for (const std::string& each : notes) line += " | " + each;
    console_.line(line);
  }
  void clear() { console_.clear_progress(); }

 private:
  Console& console_;
  std::string stage_;
  Stopwatch watch_;
  int64_t first_ = 0, first_bytes_ = 0; // at the start of the stage
  double printed_ = 0;                  // seconds into the stage
};

// The same command without --overwrite, which would start over.
std::string resume_command(int argc, char** argv) {
  std::string command;
  for (int i = 0; i < argc; ++i) {
    if (std::string(argv[i]) != "--overwrite") command += (i == 0 ? "" : " ") + shell_quote(argv[i]);
  }
  return command;
}

// Few documents: none is a validation document.
void print_validation_note(const Command& command, const PrepareReport& report, int64_t documents, Console& console) {
  const std::string few = counted(documents, "document") + (documents == 1 ? " is" : " are") + " too few for " +
                          formatted("--val_fraction %g", command.options.val_fraction);
  if (report.val_is_tail)
    console.line("note: " + few + ": the last " + counted(report.manifest.val_tokens, "token") +
                 " of the set are the validation set");
  else if (command.options.val_fraction > 0 && report.manifest.val_tokens == 0)
    log_warn("no validation set: " + few +
             " (give a larger one, or split the text into more documents: --separator \"\" splits at blank lines)");
}

// One line per file, kMostFaultLines of each kind.
void print_faults(const PrepareReport& report, Console& console) {
  int faulty = 0, changed = 0;
  for (size_t i = 0; i < report.faults.size(); ++i) {
    const TextFaults& faults = report.faults[i];
    const std::string& path = report.manifest.sources[i].path;
    if (!faults.none() && ++faulty <= kMostFaultLines)
      log_warn(path + ": " + describe(faults) + " (" + remedy(faults, path) + ")");
    if (faults.crlf > 0 && ++changed <= kMostFaultLines)
      console.line("note: " + path + ": " + counted(faults.crlf, "line end") + " changed from CRLF to LF");
  }
  if (faulty > kMostFaultLines) log_warn(counted(faulty - kMostFaultLines, "more file") + " with such bytes");
  if (changed > kMostFaultLines)
    console.line("note: line ends changed in " + counted(changed - kMostFaultLines, "more file"));
}

void print_summary(const Command& command, const PrepareReport& report, double seconds, int64_t encoded,
                   Console& console) {
  const DatasetManifest& made = report.manifest;
  int64_t text = 0, documents = 0;
  for (const SourceEntry& source : made.sources) text += source.text_bytes, documents += source.documents;
  for (const ShardEntry& shard : made.shards)
    console.line(command.options.output + "/" + shard.name + ": " + std::to_string(shard.tokens) + " tokens");
  console.line(counted(made.documents, "document") + " of " +
               counted(static_cast<int64_t>(made.sources.size()), "file") + ", " + size_text(text) +
               " of text: " + std::to_string(made.train_tokens) + " tokens for training, " +
               std::to_string(made.val_tokens) + " for validation");
  if (made.duplicates > 0) console.line(counted(made.duplicates, "duplicate") + " left out");
  if (encoded > 0)
    console.line("done in " + format_duration(seconds) + ", " +
                 format_bytes(static_cast<double>(encoded) / std::max(seconds, 1e-3)) + "/s on " +
                 counted(command.options.threads, "thread"));
  if (made.bad_lines > 0) log_warn(counted(made.bad_lines, "bad line") + " skipped");
  print_faults(report, console);
  print_validation_note(command, report, documents, console);
  console.line("train on it: ./train_gpt2_fp8 " +
               (std::filesystem::path(command.data_dir) / made.name == std::filesystem::path(command.options.output)
                    ? "--dataset " + shell_quote(made.name) +
                          (command.data_dir == "data" ? "" : " --data_dir " + shell_quote(command.data_dir))
                    : "--train_data " + shell_quote(command.options.output + "/train_*." + command.options.format) +
                          (made.val_tokens > 0 ? " --val_data " + shell_quote(command.options.output + "/val_*." +
                                                                              command.options.format)
                                               : "")));
}

ExitCode verify(const std::string& folder, Console& console) {
  Display display(console);
  const DatasetManifest manifest =
      verify_dataset(folder, [&](int64_t done, int64_t total) { display.show("verifying", done, total, done); });
  display.clear();
  console.line(folder + ": " + counted(static_cast<int64_t>(manifest.shards.size()), "shard") + ", " +
               std::to_string(manifest.train_tokens + manifest.val_tokens) + " tokens; all hashes match");
  return ExitCode::done;
}

ExitCode run(Command& command, int argc, char** argv) {
  Console console(std::cout, is_terminal(), wants_colour());
  const StopSignal stop({.at_once = "stopped\n",
                         .later = "stopping; again to quit now\n",
                         .again = "stopped at once; the same command resumes from the last journal\n"});
  if (!command.verify.empty()) return verify(command.verify, console);
  settle(command);
  const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(command.tokenizer);
  stop.defer();
  const FolderLock lock(command.options.output, "--output");
  const Stopwatch watch;
  Display display(console);
  const auto stopped = [&] { return stop.requested(); };
  const auto print_resume_command = [&] {
    display.clear();
    console.line("stopped; to resume:");
    console.command(resume_command(argc, argv));
    return ExitCode::stopped_early;
  };

  if (command.options.documents.inputs.empty()) {
    const std::string text =
        fetch_dataset(*find_known_dataset(command.dataset), command.from, command.options.output + "/download",
                      {.progress = [&](int64_t done, int64_t total) { display.show("downloading", done, total, done); },
                       .stop = stopped});
    if (text.empty()) return print_resume_command();
    command.options.documents.inputs = {text};
  }

  int64_t encoded = 0;
  bool announced = false;
  const PrepareReport report =
      prepare_data(*tokenizer, command.options,
                   {.progress =
                        [&](const PrepareProgress& now) {
                          if (now.resumed && !std::exchange(announced, true)) console.line("resuming an earlier run");
                          encoded = std::max(encoded, now.text_bytes);
                          const std::string documents = format_count(static_cast<double>(now.documents)) + " documents";
                          if (now.sharding)
                            return display.show("writing shards", now.done, now.total, now.done, documents);
                          display.show("encoding", now.done, now.total, now.text_bytes, documents);
                        },
                    .stop = stopped});
  if (!report.finished) return print_resume_command();
  display.clear();
  print_summary(command, report, watch.seconds(), encoded, console);
  return ExitCode::done;
}

} // namespace

int main(int argc, char** argv) {
  return gpt2::run_program([&] {
    CLI::App app("Encodes text with GPT-2's tokenizer into shuffled shards of tokens for training.", "prepare_data");
    Command command;
    add_options(app, command);
    if (!parse_arguments(app, argc, argv)) return ExitCode::done;
    return run(command, argc, argv);
  });
}
