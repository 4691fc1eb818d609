// Evaluates a model: evaluate MODEL [--hellaswag FILE] [--dataset NAME] ... (docs/tools.md).
#include "tools/evaluate/evaluation.h"

namespace {

using namespace gpt2;

void add_options(CLI::App& app, EvaluationCommand& command) {
  app.footer("Without tasks or text: the validation set of the checkpoint's run, as the trainer evaluates it.");
  add_inference_arguments(app, command.model);
  app.option_defaults()->group("Tasks");
  for (const auto& [kind, name] : names_of(TaskKind{}))
    app.add_option("--" + std::string(name), command.files[kind], ".jsonl file of its tasks")->type_name("FILE");
  app.option_defaults()->group("Text");
  app.add_option("--dataset", command.dataset, "loss and perplexity of the validation shards of DATA_DIR/NAME")
      ->type_name("NAME");
  app.add_option("--data_dir", command.data_dir, "folder of all datasets")->type_name("DIR");
  app.add_option("--val_data", command.val_data, "the same of these token shards: paths or globs")->type_name("GLOB");
  app.option_defaults()->group("Output");
  app.add_option("--limit", command.limit, "tasks per file, and sequences of the shards; 0: all")
      ->check(number_from(0));
  app.add_option("--batch_size", command.batch_size, "rows per batch; 0: enough to fill the device")
      ->check(number_in(0, 65536));
  app.add_option("--details", command.details, "file for the losses and choice of each task, as JSON lines")
      ->type_name("FILE");
  add_overwrite(app, command.overwrite);
  app.add_flag("--json", command.json, "print one JSON object instead of a table");
}

} // namespace

int main(int argc, char** argv) {
  return gpt2::run_tool<EvaluationCommand>(
      argc, argv, "Scores a model: HellaSwag and tasks of its kind, and the perplexity of token shards.", "evaluate",
      add_options, run_evaluation);
}
