// Scores of a model on tasks and on the sequences of shards.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "tools/common/inference_arguments.h"
#include "tools/evaluate/task_files.h"

namespace gpt2 {

struct EvaluationCommand {
  InferenceArguments model;
  std::map<TaskKind, std::string> files; // of tasks; "": none
  std::string dataset, data_dir = "data", val_data, details;
  int64_t limit = 0;  // tasks per file, and sequences of the shards; 0: all
  int batch_size = 0; // 0: enough to fill the device
  bool json = false, overwrite = false;
};

// Prints the scores. Without tasks and shards: of the validation set of the checkpoint's run.
ExitCode run_evaluation(EvaluationCommand command);

} // namespace gpt2
