// Scores of a model on tasks: the loss of every candidate, and how often the likeliest one is right.
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
  int batch_size = 1;                                               // rows per forward pass
  int window = 1024;                                                // tokens per row
  std::function<bool()> stop = [] { return false; };                // on this rank
  std::function<void(int64_t done, int64_t of)> progress = nullptr; // in candidates; called on every rank
};

// Throws Error(data) for an ending longer than the window: no context would fit before it.
void refuse_long_endings(std::span<const Task> tasks, int window);

// T of a batch: `longest` rounded up to 64, at most `positions`. Few shapes, so that few GEMMs are tuned.
int batch_length(int longest, int positions);

// A batch holds rows of similar length, to limit padding. Batches are divided among the ranks of `group`, and every
// rank returns all losses. A text longer than the window loses its beginning. nullopt: a rank was asked to stop. Throws
// Error(data) as refuse_long_endings does.
std::optional<TaskLosses> task_losses(EvaluableModel& model, std::span<const Task> tasks, RankGroup& group,
                                      const ScoringOptions& options);

// Share of tasks whose right ending has the lowest loss: summed over its tokens (lm-eval's acc), per token (llm.c's
// accuracy), per byte (lm-eval's acc_norm).
struct Accuracy {
  int64_t tasks = 0;
  double summed = 0, per_token = 0, per_byte = 0;
};
Accuracy accuracy(std::span<const Task> tasks, const TaskLosses& losses);
int chosen(std::span<const double> losses); // argmin, the first of equals; -1: one of them is NaN

} // namespace gpt2
