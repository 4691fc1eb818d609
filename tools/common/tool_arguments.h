// Command lines of the tools.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/system/program.h"

namespace gpt2 {

// Checks with the trainer's messages. CLI11's own accept NaN and show their bounds in the help.
CLI::Validator number_in(double low, double high);
CLI::Validator number_from(int64_t low);
CLI::Validator one_of(const std::vector<std::string>& words); // the help shows them as a|b|c

// The flag of every tool that writes a file named by the user (engine/system/output_file.h).
inline void add_overwrite(CLI::App& app, bool& overwrite,
                          const std::string& what = "replace an existing file, of any origin") {
  app.add_flag("--overwrite", overwrite, what);
}

// MODEL of the tools that read weights (engine/pretrained/weight_source.h).
inline constexpr const char* kModelHelp =
    "a checkpoint (latest, best, a run, RUN/STEP or a path), a Hugging Face folder or cached model name, or llm.c's "
    ".bin file";

inline void add_hf_cache(CLI::App& app, std::string& folder) {
  app.add_option("--hf_cache", folder, "Hugging Face cache for model names; default: that of its own tools")
      ->type_name("DIR");
}

inline void add_tokenizer(CLI::App& app, std::string& folder) {
  app.add_option("--tokenizer", folder,
                 "folder with GPT-2's encoder.json and vocab.bpe; default: $GPT2_TOKENIZER, else .deps/gpt2_bpe")
      ->type_name("DIR");
}

// The flag of every tool that names a run (find_run() in tools/report/run_metrics.h).
inline void add_log_dir(CLI::App& app, std::string& log_dir) {
  app.add_option("--log_dir", log_dir, "folder of the runs")->type_name("DIR")->capture_default_str();
}

// The words that are not flags of `app` itself go to `flags`, for parse_trainer_flags().
inline void take_trainer_flags(CLI::App& app, std::vector<std::string>& flags) {
  app.allow_extras();
  app.parse_complete_callback([&app, &flags] { flags = app.remaining(); });
}

// Returns false after printing --help. Throws Error(usage).
bool parse_arguments(CLI::App& app, int argc, char** argv);

// The main() of a tool: parse the options, then run.
template <class Command>
int run_tool(int argc, char** argv, const std::string& description, const std::string& name,
             void (*add_options)(CLI::App&, Command&), const std::function<ExitCode(Command&)>& run) {
  return run_program([&] {
    CLI::App app(description, name);
    Command command;
    add_options(app, command);
    return parse_arguments(app, argc, argv) ? run(command) : ExitCode::done;
  });
}

} // namespace gpt2
