// A run's options from all sources, and where it writes: a folder of checkpoints and one of logs, both with its name.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/model/config.h"
#include "engine/options/parse_options.h"
#include "engine/pretrained/weight_source.h"
#include "engine/ranks/rank_group.h"
#include "engine/run/resume_point.h"

namespace gpt2 {

struct RunSettings {
  Options options;                            // "auto" is resolved later: RunPlan
  std::optional<ResumePoint> resumed = {};    // nullopt: a new run
  std::set<std::string> given = {};           // set by the command line or its --config
  std::set<std::string> typed = {};           // of those, set by a flag
  std::vector<std::string> notes = {};        // on the command line and the resumed checkpoint
  std::shared_ptr<WeightSource> weights = {}; // --init_from, of a new run
};

// Merges defaults, the checkpoint's options, --config and flags by override_options(). Throws Error(checkpoint) if the
// command line gives another shape or seed than the checkpoint's.
RunSettings resolve_settings(const CommandLine& line, const std::optional<ResumePoint>& point);

struct RunPlace {
  std::string checkpoint_dir, log_dir, run_name;
  bool continues = false;              // writes to the folders of the resumed run; else both are new
  std::vector<std::string> notes = {}; // why not

  std::string checkpoints() const { return checkpoint_dir + "/" + run_name; }
  std::string logs() const { return log_dir + "/" + run_name; }
};

// A run resumed at its newest checkpoint, with its precision and folder, continues. Any other resume is a branch with a
// new name: --run_name, or an unused one. A new run is named --run_name, or by model, precision and date.
RunPlace find_place(const RunSettings& settings, const GPT2Config& config, Precision precision);
RunPlace agree_on_place(const RunSettings& settings, const GPT2Config& config, Precision precision, RankGroup& group);

// Throws Error(usage) if a new run or a branch has the name of a run that has checkpoints.
void refuse_taken_name(const RunPlace& place);

} // namespace gpt2
