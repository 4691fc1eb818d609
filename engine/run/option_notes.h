// What a user should know about the options of a run: which of them do nothing, and what a resumed run does otherwise.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/options/run_plan.h"
#include "engine/run/run_settings.h"

namespace gpt2 {

void append_notes(std::vector<std::string>& notes, const std::vector<std::string>& more);

// One line for each option that was asked for and changes nothing in this run.
std::vector<std::string> notes_on_options_without_effect(const RunSettings& start, const RunPlan& plan, bool gpu,
                                                         bool evaluates);

// The same of --eval_only, for flags alone: a run's option file says how it trains.
std::vector<std::string> notes_on_flags_without_effect_on_evaluation(const RunSettings& start);

// What differs from the checkpoint's run, old -> new, and where the learning rate climbs above the checkpoint's, which
// was trained for `step` steps. Both are resolved. Precision is left out: the line that says where it resumes has it.
std::vector<std::string> notes_on_resume(const Options& of_checkpoint, const Options& now, int64_t step);

} // namespace gpt2
