// Exports a checkpoint for Hugging Face transformers: export_hf CHECKPOINT --output FOLDER.
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/system/process.h"
#include "engine/text/tokenizer.h"
#include "tools/common/tool_arguments.h"
#include "tools/export_hf/export_hf.h"

namespace {

using namespace gpt2;

struct Command {
  std::string source, type = "fp32", tokenizer, hf_cache;
  ExportOptions options;
};

void add_options(CLI::App& app, Command& command) {
  app.add_option("model", command.source, kModelHelp)->required();
  app.add_option("-o,--output", command.options.output, "folder to write; it appears when complete")
      ->required()
      ->type_name("DIR");
  app.option_defaults()->always_capture_default();
  app.add_option("--type", command.type, "fp32, or bf16 at half the size")->check(one_of({"fp32", "bf16"}));
  add_overwrite(app, command.options.overwrite, "replace an earlier export in that folder");
  add_tokenizer(app, command.tokenizer);
  add_hf_cache(app, command.hf_cache);
}

constexpr StopMessages kStopMessages = {.again = "stopped at once: FOLDER.tmp-PROCESS can be removed\n"};

ExitCode run(Command& command) {
  const StopSignal stop(kStopMessages);
  const std::unique_ptr<WeightSource> weights = open_weights(command.source, command.hf_cache);
  for (const std::string& note : weights->notes()) log_warn(note);
  ExportOptions& options = command.options;
  options.type = command.type == "bf16" ? WeightType::bf16 : WeightType::f32;
  options.tokenizer = Tokenizer::find_folder(command.tokenizer);
  if (options.tokenizer.empty())
    log_warn("no tokenizer tables found: exporting the model alone (run tools/install_deps.sh, or give --tokenizer)");
  options.stop = [&] { return stop.requested(); };
  stop.defer();
  for (const std::string& path : export_hugging_face(*weights, options)) log_info(path);
  log_info(format_count(static_cast<double>(parameter_count(weights->config()))) + " parameters of " + weights->path() +
           " in " + command.type);
  log_info("load it: GPT2LMHeadModel.from_pretrained(" + nlohmann::json(options.output).dump() + ")");
  return ExitCode::done;
}

} // namespace

int main(int argc, char** argv) {
  return gpt2::run_tool<Command>(argc, argv,
                                 "Writes a trained model as a folder that Hugging Face's transformers loads.",
                                 "export_hf", add_options, run);
}
