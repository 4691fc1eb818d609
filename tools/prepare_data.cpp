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
#include "tools/prepare_data/known_datasets.h"
#include "tools/prepare_data/prepare_data.h"

namespace {

using namespace gpt2;

constexpr double kSecondsBetweenLines = 30; // where there is no terminal to draw a bar on

struct Command {
  PrepareOptions options;
  std::string dataset, data_dir = "data", from, verify, tokenizer;
  std::optional<double> val_fraction; // as given
  std::optional<std::string> separator;
  bool keep_order = false;
  int64_t memory_mb = 256;
};

void add_options(CLI::App& app, Command& command) {
  PrepareOptions& o = command.options;
  app.add_option("-i,--input,inputs", o.documents.inputs,
                 ".txt and .jsonl files, also .gz and .zst, and .parquet files; patterns and folders of them; - is "
                 "standard input");
  app.add_option(
      "--dataset", command.dataset,
      "its name: shards go to DATA_DIR/NAME, where the trainer's --dataset NAME finds them. Without --input: " +
          known_dataset_names() + " are downloaded");
  app.add_option("--from", command.from, "instead of the hub: a mirror's address, or a folder with its files");
  app.add_option("--verify", command.verify, "read a data set again, compare every shard with its hash, and exit");
  app.option_defaults()->always_capture_default();
  app.add_option("--data_dir", command.data_dir, "where data sets have their folders");
  app.add_option("-o,--output", o.output, "folder for the shards, made if need be; default: DATA_DIR/NAME");
  app.add_option("--format", o.format, "bin (llm.c) or h5 (HDF5)")->check(CLI::IsMember({"bin", "h5"}));
  app.add_option("--val_fraction", command.val_fraction,
                 "share of the documents that goes to val_*; 0: none; default: 0.01, known data sets have their own")
      ->check(number_in(0.0, 1.0));
  app.add_flag("--no-shuffle", command.keep_order, "documents stay in the order of the input");
  app.add_option("--seed", o.seed, "of the shuffle");
  app.add_flag("--deduplicate", o.deduplicate,
               "of documents that are equal, keep the first one; .txt documents of 4 MiB and more are all kept");
  app.add_option("--shard_tokens", o.shard_tokens, "tokens per shard; the last one is shorter")
      ->check(CLI::Range(int64_t{1}, int64_t{INT32_MAX}));
  add_overwrite(app, o.overwrite, "replace what is there, and start anew what was begun");

  app.add_option("--input_format", o.documents.input_format, "txt, jsonl or parquet; default: by extension")
      ->check(CLI::IsMember({"txt", "jsonl", "parquet"}));
  app.add_option("--field", o.documents.field, "of .jsonl and .parquet: the field or column that holds the text");
  app.add_flag("--skip_bad_lines", o.skip_bad_lines, "of .jsonl: pass over lines without that field, and count them");
  app.add_option("--separator", command.separator,
                 "of .txt: the line between documents; \"\": blank lines; default: <|endoftext|>");

  o.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  app.add_option("-j,--threads", o.threads, "threads that encode")->check(CLI::Range(1, 1024));
  app.add_option("--memory", command.memory_mb, "megabytes of documents that are sorted at once")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  app.add_option("--journal_seconds", o.journal_seconds, "from one point that a killed run goes on from to the next")
      ->check(number_in(0.0, 86400.0));
  app.add_option("--tokenizer", command.tokenizer,
                 "folder with GPT-2's encoder.json and vocab.bpe; default: $GPT2_TOKENIZER, else .deps/gpt2_bpe");
}

// What the flags leave open, and what they leave out.
void settle(Command& command) {
  PrepareOptions& o = command.options;
  check_dataset_name(command.dataset);
  const KnownDataset* const known = o.documents.inputs.empty() ? find_known_dataset(command.dataset) : nullptr;
  if (o.documents.inputs.empty() && command.dataset.empty())
    throw Error(ExitCode::usage, "no text was given",
                "name files by --input, or a data set by --dataset: " + known_dataset_names());
  if (o.documents.inputs.empty() && !known)
    throw Error(ExitCode::usage, "--dataset " + command.dataset + " is none that can be downloaded",
                "give --input FILE... to make it of, or one of " + known_dataset_names());
  if (!command.from.empty() && !known)
    throw Error(ExitCode::usage, "--from is where a known data set is fetched from, beside --input it has no meaning");
  if (o.output.empty() && command.dataset.empty())
    throw Error(ExitCode::usage, "where to?",
                "give --dataset NAME, for " + command.data_dir + "/NAME, or --output FOLDER");
  if (o.output.empty()) o.output = (std::filesystem::path(command.data_dir) / command.dataset).string();
  o.name = !command.dataset.empty() ? command.dataset
                                    : std::filesystem::path(o.output + "/").parent_path().filename().string();
  o.val_fraction = command.val_fraction.value_or(known ? known->val_fraction : 0.01);
  if (o.val_fraction == 1)
    throw Error(ExitCode::usage, "--val_fraction 1 leaves no document to train on",
                "give less; for a set that is for validation alone, give 0 and name its shards by --val_data");
  if (command.separator || known) o.documents.separator = command.separator.value_or(known ? known->separator : "");
  o.shuffle = !command.keep_order;
  o.memory = command.memory_mb << 20;
  o.documents.parquet_readers = std::clamp(o.threads / 4, 1, 16);
}

std::string size_text(int64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

// A bar on a terminal; in a file, a line now and then.
class Display {
 public:
  explicit Display(Console& console) : console_(console) {}

  // `bytes`: what the speed is of.
  void show(const std::string& stage, int64_t done, int64_t total, int64_t bytes, const std::string& note = "") {
    if (stage != stage_) {
      stage_ = stage;
      watch_ = {};
      first_ = done;
      first_bytes_ = bytes;
      said_ = 0;
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
    if (seconds - said_ < kSecondsBetweenLines) return;
    said_ = seconds;
    std::string line = total > 0 ? std::to_string(static_cast<int>(100 * share)) + "%" : "so far";
    for (const std::string& each : notes) line += " | " + each;
    console_.line(line);
  }
  void clear() { console_.clear_progress(); }

 private:
  Console& console_;
  std::string stage_;
  Stopwatch watch_;
  int64_t first_ = 0, first_bytes_ = 0; // done when the stage began
  double said_ = 0;
};

// What goes on with it: the same, but --overwrite would start anew.
std::string command_to_go_on(int argc, char** argv) {
  std::string command;
  for (int i = 0; i < argc; ++i) {
    if (std::string(argv[i]) != "--overwrite") command += (i == 0 ? "" : " ") + shell_quote(argv[i]);
  }
  return command;
}

void warn_of_no_validation(const Command& command, int64_t documents) {
  char fraction[32];
  std::snprintf(fraction, sizeof fraction, "%g", command.options.val_fraction);
  log_warn("no validation set was made: none of " + counted(documents, "document") + " fell to --val_fraction " +
           fraction + " (give a larger one, or cut text into more documents: --separator \"\" does so at blank lines)");
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
  if (made.duplicates > 0) console.line(std::to_string(made.duplicates) + " duplicates were left out");
  if (encoded > 0)
    console.line("done in " + format_duration(seconds) + ", " +
                 format_bytes(static_cast<double>(encoded) / std::max(seconds, 1e-3)) + "/s on " +
                 counted(command.options.threads, "thread"));
  if (made.bad_lines > 0) log_warn(std::to_string(made.bad_lines) + " bad lines were passed over");
  if (command.options.val_fraction > 0 && made.val_tokens == 0) warn_of_no_validation(command, documents);
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
  console.line(folder + ": " + std::to_string(manifest.shards.size()) + " shards, " +
               std::to_string(manifest.train_tokens + manifest.val_tokens) + " tokens; every hash is right");
  return ExitCode::done;
}

ExitCode run(Command& command, int argc, char** argv) {
  Console console(std::cout, is_terminal(), wants_colour());
  const StopSignal stop({.at_once = "stopped\n",
                         .later = "stopping; again to quit now\n",
                         .again = "stopped at once; the same command goes on from what was written down last\n"});
  if (!command.verify.empty()) return verify(command.verify, console);
  settle(command);
  const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(command.tokenizer);
  stop.defer();
  const FolderLock lock(command.options.output, "--output");
  const Stopwatch watch;
  Display display(console);
  const auto stopped = [&] { return stop.requested(); };
  const auto say_how_to_go_on = [&] {
    display.clear();
    console.line("stopped; this goes on where it was:");
    console.command(command_to_go_on(argc, argv));
    return ExitCode::stopped_early;
  };

  if (command.options.documents.inputs.empty()) {
    const std::string text =
        fetch_dataset(*find_known_dataset(command.dataset), command.from, command.options.output + "/download",
                      {.progress = [&](int64_t done, int64_t total) { display.show("downloading", done, total, done); },
                       .stop = stopped});
    if (text.empty()) return say_how_to_go_on();
    command.options.documents.inputs = {text};
  }

  int64_t encoded = 0;
  bool said = false;
  const PrepareReport report =
      prepare_data(*tokenizer, command.options,
                   {.progress =
                        [&](const PrepareProgress& now) {
                          if (now.went_on && !std::exchange(said, true)) console.line("going on where it was");
                          encoded = std::max(encoded, now.text_bytes);
                          const std::string documents = format_count(static_cast<double>(now.documents)) + " documents";
                          if (now.dealing)
                            return display.show("writing shards", now.done, now.total, now.done, documents);
                          display.show("encoding", now.done, now.total, now.text_bytes, documents);
                        },
                    .stop = stopped});
  if (!report.finished) return say_how_to_go_on();
  display.clear();
  print_summary(command, report, watch.seconds(), encoded, console);
  return ExitCode::done;
}

} // namespace

int main(int argc, char** argv) {
  return gpt2::run_program([&] {
    CLI::App app("Makes shuffled token shards for training of text, encoded with GPT-2's tokenizer.", "prepare_data");
    Command command;
    add_options(app, command);
    if (!parse_arguments(app, argc, argv)) return ExitCode::done;
    return run(command, argc, argv);
  });
}
