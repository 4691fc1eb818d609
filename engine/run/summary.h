// Texts that a run prints: the start-up table, lines on steps and evaluations, and how the run ended.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/data/loader.h"
#include "engine/logging/console.h"
#include "engine/model/model.h"
#include "engine/options/run_plan.h"
#include "engine/text/task_scores.h"

namespace gpt2 {

struct Session;

// Rows of the table, shared with --plan.
std::string data_text(const Dataset& dataset, const std::string& source);
std::string batch_text(const RunPlan& plan);
std::string optimizer_text(const RunPlan& plan);
std::string memory_text(const std::vector<MemoryLine>& lines);

std::vector<TableSection> start_table(const Session& session); // resolved settings
std::string fp8_line(const Session& session); // "FP8 Training Enabled: hybrid (E4M3 forward, E5M2 backward)"
std::string skip_line(int64_t step, Verdict verdict, int in_a_row, int limit);
std::string validation_line(int64_t step, double loss, bool is_best, double best_loss);
std::string hellaswag_line(int64_t step, const Accuracy& scores);
// What this start did, in `seconds` after `first_tokens` tokens; the losses.
std::string closing_lines(const Session& session, double seconds, int64_t first_tokens, float train_loss);
std::vector<std::string> next_commands(const Session& session); // bin/generate, bin/evaluate, bin/report on this run

std::string reason_of(Verdict skipped); // "its loss is an outlier (--skip_loss_z)"

} // namespace gpt2
