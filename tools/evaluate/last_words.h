// Scores that only bin/evaluate reports.
#pragma once

#include <cstdint>
#include <span>

#include "engine/text/task_scores.h"

namespace gpt2 {

double standard_error(double share, int64_t tasks);

// LAMBADA: perplexity of the last words (per word), and the share of them that greedy decoding yields.
struct LastWords {
  int64_t tasks = 0;
  double perplexity = 0, accuracy = 0;
};
LastWords last_words(EvaluableModel& model, std::span<const Task> tasks, const TaskLosses& losses);

} // namespace gpt2
