// Where a run begins: at step 0, or at a checkpoint with the options of its run.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/train/options.h"

namespace gpt2 {

struct RunStart {
  Options options;
  std::string checkpoint;                    // folder to resume from; empty: a new run
  std::optional<Options> of_checkpoint = {}; // as its run resolved them
  std::set<std::string> given = {};          // options that the command line or its --config set
  std::vector<std::string> notes = {};       // of the command line
};

// Follows --resume. Throws Error(checkpoint) if there is nothing to resume from, or if the command line asks for
// another shape or seed than the checkpoint has.
RunStart prepare_start(const CommandLine& command_line);

// --list_checkpoints: one line a checkpoint, below the name of its run; the run that saved last at the end.
std::string describe_checkpoints(const std::string& checkpoint_dir);

} // namespace gpt2
