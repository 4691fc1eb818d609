// Text to a data set for training: prepare_data FILE... --dataset NAME (docs/tools.md).
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <optional>
#include <thread>
#include <utility>

#include "engine/base/formatted.h"
#include "engine/base/log.h"
#include "engine/base/shell_quote.h"
#include "engine/data/dataset_folder.h"
#include "engine/system/folder_lock.h"
#include "engine/system/process.h"
#include "tools/common/tool_arguments.h"
#include "tools/common/verify_data.h"
#include "tools/prepare_data/console_output.h"
#include "tools/prepare_data/known_datasets.h"

namespace {

using namespace gpt2;

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
  app.add_option("--verify", command.verify, "compare every shard of a dataset with its hash, and exit")
      ->type_name("DIR");
  app.option_defaults()->always_capture_default();
  app.add_option("--data_dir", command.data_dir, "folder of all datasets")->type_name("DIR");
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

// The same command without --overwrite, which would start over.
std::string resume_command(int argc, char** argv) {
  std::string command;
  for (int i = 0; i < argc; ++i) {
    if (std::string(argv[i]) != "--overwrite") command += (i == 0 ? "" : " ") + shell_quote(argv[i]);
  }
  return command;
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
  Console console(std::cout, is_terminal(), wants_color());
  const StopSignal stop({.at_once = "stopped\n",
                         .later = "stopping; Ctrl-C again to quit now\n",
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
  const PrepareReport report = prepare_data(
      *tokenizer, command.options,
      {.progress =
           [&](const PrepareProgress& now) {
             if (now.resumed && !std::exchange(announced, true)) console.line("resuming an earlier run");
             encoded = std::max(encoded, now.text_bytes);
             const std::string documents =
                 now.documents == 1 ? "1 document" : format_count(static_cast<double>(now.documents)) + " documents";
             if (now.sharding) return display.show("writing shards", now.done, now.total, now.done, documents);
             display.show("encoding", now.done, now.total, now.text_bytes, documents);
           },
       .stop = stopped});
  if (!report.finished) return print_resume_command();
  display.clear();
  print_summary(command.options, report, watch.seconds(), encoded, command.data_dir, console);
  return ExitCode::done;
}

} // namespace

int main(int argc, char** argv) {
  return gpt2::run_tool<Command>(
      argc, argv, "Encodes text with GPT-2's tokenizer into shuffled shards of tokens for training.", "prepare_data",
      add_options, [&](Command& command) { return run(command, argc, argv); });
}
