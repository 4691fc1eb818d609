// Text to a data set for training: prepare_data FILE... --output FOLDER.
#include <algorithm>
#include <iostream>
#include <thread>

#include "engine/base/log.h"
#include "engine/base/process.h"
#include "engine/base/program.h"
#include "engine/base/stopwatch.h"
#include "engine/base/terminal.h"
#include "engine/base/tool_arguments.h"
#include "engine/data/prepare_data.h"
#include "engine/io/folder_lock.h"

namespace {

using namespace gpt2;

struct Command {
  PrepareOptions options;
  std::string tokenizer;
  int64_t memory_mb = 256;
};

void add_options(CLI::App& app, Command& command) {
  PrepareOptions& o = command.options;
  app.add_option("-i,--input,inputs", o.documents.inputs, "files")->required();
  app.option_defaults()->always_capture_default();
  app.add_option("-o,--output", o.output, "folder for the shards, made if need be: train_*.bin, val_*.bin")->required();
  app.add_option("--format", o.format, "bin (llm.c) or h5 (HDF5)")->check(CLI::IsMember({"bin", "h5"}));
  app.add_option("--input_format", o.documents.input_format, "txt, jsonl or parquet; default: by extension")
      ->check(CLI::IsMember({"txt", "jsonl", "parquet"}));
  app.add_option("--field", o.documents.field, "of .jsonl and .parquet: the field or column that holds the text");
  app.add_flag("--skip_bad_lines", o.skip_bad_lines, "of .jsonl: pass over lines without that field, and count them");
  app.add_option("--separator", o.documents.separator, "of .txt: the line between documents; \"\": blank lines");
  app.add_option("--shard_tokens", o.shard_tokens, "tokens per shard; the last one is shorter")
      ->check(CLI::Range(int64_t{1}, int64_t{INT32_MAX}));
  app.add_option("--val_fraction", o.val_fraction, "share of the documents that goes to val_*; 0: none")
      ->check(CLI::Range(0.0, 1.0));
  app.add_flag("--shuffle,!--no-shuffle", o.shuffle, "");
  app.add_flag("--deduplicate", o.deduplicate, "");
  app.add_option("--seed", o.seed, "");
  app.add_flag("--overwrite", o.overwrite, "remove the shards that are there first");
  o.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  app.add_option("-j,--threads", o.threads, "threads that encode")->check(CLI::Range(1, 1024));
  app.add_option("--memory", command.memory_mb, "");
  app.add_option("--journal_seconds", o.journal_seconds, "");
  app.add_option("--tokenizer", command.tokenizer,
                 "folder with GPT-2's encoder.json and vocab.bpe; default: $GPT2_TOKENIZER, else .deps/gpt2_bpe");
}

ExitCode run(Command& command) {
  const std::string folder = Tokenizer::find_folder(command.tokenizer);
  if (folder.empty()) {
    throw Error(ExitCode::data, "GPT-2's tokenizer tables are not here",
                "run tools/install_deps.sh, or name their folder by --tokenizer");
  }
  const Tokenizer tokenizer(folder);
  command.options.memory = command.memory_mb << 20;
  const StopSignal stop;
  stop.defer();
  const FolderLock lock(command.options.output, "--output");
  const PrepareReport report = prepare_data(tokenizer, command.options, {.progress = {}, .stop = [&] { return stop.requested(); }});
  if (!report.finished) return ExitCode::stopped_early;
  log_info(std::to_string(report.manifest.documents) + " documents, " + std::to_string(report.manifest.train_tokens) + " tokens");
  return ExitCode::done;
}

} // namespace

int main(int argc, char** argv) {
  return gpt2::run_program([&] {
    CLI::App app("Makes a data set of text.", "prepare_data");
    Command command;
    add_options(app, command);
    if (!parse_arguments(app, argc, argv)) return ExitCode::done;
    return run(command);
  });
}
