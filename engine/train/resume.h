// Where a run begins: at step 0, or at a checkpoint with the options of its run.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/exchange/weight_source.h"
#include "engine/train/options.h"

namespace gpt2 {

struct RunStart {
  Options options;
  std::string checkpoint;                     // folder to resume from; empty: a new run
  std::string trained_in = {};                // its precision, "fp8"
  std::optional<Options> of_checkpoint = {};  // as its run resolved them
  std::set<std::string> given = {};           // options that the command line or its --config set
  std::set<std::string> typed = {};           // of those, by a flag
  std::vector<std::string> notes = {};        // of the command line, and on where the run goes on
  std::shared_ptr<WeightSource> weights = {}; // --init_from, of a new run
};

// Follows --resume, to the folder and the name under which the run goes on: its own from its newest checkpoint, those
// of a new branch from an earlier one. Throws Error(checkpoint) if there is nothing to resume from, or if the command
// line asks for another shape or seed than the checkpoint has; Error(usage) for the name of another run.
RunStart prepare_start(const CommandLine& command_line);

// Where checkpoints are looked for: --checkpoint_dir, or without it every default one.
std::vector<std::string> checkpoint_dirs(const Options& options);

// --list_checkpoints: one line a checkpoint, below the name of its run; the run that saved last at the end.
std::string describe_checkpoints(const std::vector<std::string>& checkpoint_dirs);

// `name`, or where a run of that name is there already `name`-2, `name`-3, ...
std::string free_run_name(const std::string& name, const std::string& checkpoint_dir, const std::string& log_dir);

// What a run would write to belongs to another one: throws Error(usage) if the folder holds checkpoints.
void refuse_taken_name(const std::string& run_folder);

} // namespace gpt2
