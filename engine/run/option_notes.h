// Notes for the user on a run's options: those without effect, and those that a resumed run changes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/options/run_plan.h"
#include "engine/run/run_settings.h"

namespace gpt2 {

void append_notes(std::vector<std::string>& notes, const std::vector<std::string>& more);

// One line for each group of given options that change nothing in this run.
std::vector<std::string> notes_on_options_without_effect(const RunSettings& start, const RunPlan& plan, bool gpu,
                                                         bool evaluates);

// The same for --eval_only, of flags only: a --config file describes the training.
std::vector<std::string> notes_on_flags_without_effect_on_evaluation(const RunSettings& start);

// Options that differ from the checkpoint's, old -> new, and the step at which the learning rate rises above the
// checkpoint's after `step` steps. Both are resolved. Precision is left out: the resume line has it.
std::vector<std::string> notes_on_resume(const Options& of_checkpoint, const Options& now, int64_t step);

} // namespace gpt2
