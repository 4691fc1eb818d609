// Text files to token shards: tokenize FILE... --output FOLDER.
#include <chrono>
#include <cstdio>
#include <iostream>
#include <thread>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/program.h"
#include "engine/base/terminal.h"
#include "engine/base/tool_arguments.h"
#include "engine/data/tokenize_files.h"

namespace {

using namespace gpt2;

struct Command {
  TokenizeOptions options;
  std::string tokenizer;
};

void add_options(CLI::App& app, Command& command) {
  TokenizeOptions& o = command.options;
  app.add_option("inputs", o.documents.inputs, ".txt, .jsonl and .parquet files; - is standard input")->required();
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
  app.add_flag("--overwrite", o.overwrite, "remove the shards that are there first");
  o.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  app.add_option("-j,--threads", o.threads, "threads that encode")->check(CLI::Range(1, 1024));
  app.add_option("--tokenizer", command.tokenizer,
                 "folder with GPT-2's encoder.json and vocab.bpe; default: $GPT2_TOKENIZER, else .deps/gpt2_bpe");
}

ExitCode run(const Command& command) {
  const std::string folder = Tokenizer::find_folder(command.tokenizer);
  if (folder.empty()) {
    throw Error(ExitCode::data, "GPT-2's tokenizer tables are not here",
                "run tools/install_deps.sh, or name their folder by --tokenizer");
  }
  const Tokenizer tokenizer(folder);
  const auto start = std::chrono::steady_clock::now();
  auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  auto summary = [&](const TokenizeReport& report) {
    return format_count(static_cast<double>(report.documents)) + " documents, " +
           format_bytes(static_cast<double>(report.bytes)) + ", " +
           format_count(static_cast<double>(report.train_tokens + report.val_tokens)) + " tokens, " +
           format_bytes(static_cast<double>(report.bytes) / seconds()) + "/s";
  };
  const bool terminal = is_terminal();
  const TokenizeReport report = tokenize_files(tokenizer, command.options, [&](const TokenizeReport& so_far) {
    if (terminal) std::cout << "\r" << summary(so_far) << "\033[K" << std::flush;
  });
  if (terminal) std::cout << "\r\033[K";
  for (const std::string& path : report.shards) log_info(path);
  log_info(summary(report) + " on " + std::to_string(command.options.threads) + " threads");
  if (command.options.val_fraction > 0) {
    log_info("training " + std::to_string(report.train_tokens) + " tokens, validation " +
             std::to_string(report.val_tokens));
    if (report.val_tokens == 0)
      log_warn("no document fell to validation: too few of them (see --separator), or too small a fraction");
  }
  if (report.bad_lines > 0) log_warn(std::to_string(report.bad_lines) + " bad lines were passed over");
  return ExitCode::done;
}

} // namespace

int main(int argc, char** argv) {
  return gpt2::run_program([&] {
    CLI::App app("Encodes text with GPT-2's tokenizer and writes token shards for training.", "tokenize");
    Command command;
    add_options(app, command);
    if (!parse_arguments(app, argc, argv)) return ExitCode::done;
    return run(command);
  });
}
