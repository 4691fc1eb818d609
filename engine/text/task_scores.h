// What a model makes of tasks: the loss of every candidate, and how often the likeliest one is right.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "engine/model/model.h"
#include "engine/ranks/rank_group.h"
#include "engine/text/tasks.h"

namespace gpt2 {

// Nats over the counted tokens of every candidate, by task.
using TaskLosses = std::vector<std::vector<double>>;

struct ScoringOptions {
  int batch_size = 1;                                               // rows that the model takes at a time
  int window = 1024;                                                // tokens of a row that it takes
  std::function<bool()> stop = [] { return false; };                // this rank is asked to
  std::function<void(int64_t done, int64_t of)> progress = nullptr; // candidates; on every rank
};

// Throws Error(data) for an ending that is longer than the window: there would be nothing before it.
void refuse_long_endings(std::span<const Task> tasks, int window);

// Of a batch whose longest row has so many tokens, for a model of so many positions.
int batch_length(int longest, int positions);

// Rows of about the same length make a batch, so that little is padded; the batches are dealt to the ranks of `group`,
// and each ends up with all losses. Of a text longer than the window the beginning is left out. Nothing if a
// rank was asked to stop meanwhile. Throws Error(data) as refuse_long_endings does.
std::optional<TaskLosses> task_losses(EvaluableModel& model, std::span<const Task> tasks, RankGroup& group,
                                      const ScoringOptions& options);

// Shares of the tasks whose right ending has the lowest loss: summed over its tokens, per token (llm.c's accuracy), per
// byte (lm-eval's acc_norm).
struct Accuracy {
  int64_t tasks = 0;
  double summed = 0, per_token = 0, per_byte = 0;
};
Accuracy accuracy(std::span<const Task> tasks, const TaskLosses& losses);
int chosen(std::span<const double> losses); // the lowest, the first of equals; -1: one of them is no number

double standard_error(double share, int64_t tasks);

// LAMBADA: the perplexity of the last words (per word), and the share of them that the model writes when it always
// takes the likeliest token.
struct LastWords {
  int64_t tasks = 0;
  double perplexity = 0, accuracy = 0;
};
LastWords last_words(EvaluableModel& model, std::span<const Task> tasks, const TaskLosses& losses);

} // namespace gpt2
