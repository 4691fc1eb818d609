// What a run uses: options from every source, settled once.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/exchange/weight_source.h"
#include "engine/train/options.h"
#include "engine/train/resume.h"

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

} // namespace gpt2
