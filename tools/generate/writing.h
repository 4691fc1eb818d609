// Texts that a model writes to standard output: for prompts, or in a conversation on a terminal.
#pragma once

#include <string>
#include <vector>

#include "engine/text/generate.h"
#include "tools/common/inference_arguments.h"

namespace gpt2 {

struct WritingCommand {
  InferenceArguments model;
  std::vector<std::string> prompts;
  std::string prompt_file, prompts_file, standard_input;
  GenerationSettings settings;
  std::vector<std::string> stop_strings;
  int samples = 1, rows = 32; // per prompt; per batch
  bool no_bos = false, no_slide = false, json = false;
};

ExitCode write_texts(WritingCommand command);

} // namespace gpt2
