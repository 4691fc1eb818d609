// What a run uses: options from every source, settled once, and where it writes: a folder of checkpoints and one of
// logs, both under its name.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/model/config.h"
#include "engine/options/options.h"
#include "engine/pretrained/weight_source.h"
#include "engine/ranks/rank_group.h"
#include "engine/run/resume_point.h"

namespace gpt2 {

struct RunSettings {
  Options options;                            // "auto" is still to be resolved: RunPlan
  std::optional<ResumePoint> resumed = {};    // none: a new run
  std::set<std::string> given = {};           // options that the command line or its --config set
  std::set<std::string> typed = {};           // of those, by a flag
  std::vector<std::string> notes = {};        // of the command line, and on what is resumed
  std::shared_ptr<WeightSource> weights = {}; // --init_from, of a new run
};

// Defaults, the options of the checkpoint, those of --config and flags, by the rule of override_options(). Throws
// Error(checkpoint) if the command line asks for another shape or seed than the checkpoint has.
RunSettings settle(const CommandLine& line, const std::optional<ResumePoint>& point);

struct RunPlace {
  std::string checkpoint_dir, log_dir, run_name;
  bool continues = false;              // the checkpoints and the log of the run that is resumed; else both are new
  std::vector<std::string> notes = {}; // why it does not

  std::string checkpoints() const { return checkpoint_dir + "/" + run_name; }
  std::string logs() const { return log_dir + "/" + run_name; }
};

// A run resumed at its newest checkpoint, in its precision and its folder, continues. Any other is a branch with a name
// of its own: --run_name, or one that no run has. A new run has --run_name, or its model, precision and date.
RunPlace find_place(const RunSettings& settings, const GPT2Config& config, Precision precision);
RunPlace agree_on_place(const RunSettings& settings, const GPT2Config& config, Precision precision, RankGroup& group);

// Throws Error(usage) if a run that does not continue has the name of one that has checkpoints.
void refuse_taken_name(const RunPlace& place);

// Is what a folder holds the log of a run of this name?
bool is_log_of(const std::string& run_name, const std::string& log_folder);

std::filesystem::path canonical_path(const std::string& path); // also of what is not there

} // namespace gpt2
