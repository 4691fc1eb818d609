#include "engine/text/task_scores.h"

#include <algorithm>
#include <cmath>

#include "engine/base/error.h"
#include "engine/data/loader.h"
#include "engine/ranks/agreement.h"

namespace gpt2 {
namespace {

struct Row {
  const Candidate* candidate;
  size_t index; // among all candidates
};

int inputs_of(const Candidate& candidate) { return static_cast<int>(candidate.tokens.size()) - 1; }

std::vector<Row> rows_by_length(std::span<const Task> tasks) {
  std::vector<Row> rows;
  for (const Task& task : tasks) {
    for (const Candidate& candidate : task.candidates) {
      rows.push_back({&candidate, rows.size()});
    }
  }
  std::ranges::stable_sort(
      rows, [](const Row& a, const Row& b) { return a.candidate->tokens.size() > b.candidate->tokens.size(); });
  return rows;
}

// (B, T): T is the longest row, rounded up; targets before a row's counted tokens are ignored.
HostBatch batch_of(std::span<const Row> rows, int window) {
  const int T = batch_length(inputs_of(*rows.front().candidate), window);
  HostBatch batch{.batch_size = static_cast<int>(rows.size()), .seq_len = T, .inputs = {}, .targets = {}};
  batch.inputs.assign(rows.size() * static_cast<size_t>(T), 0);
  batch.targets.assign(batch.inputs.size(), kIgnoredTarget);
  for (size_t b = 0; b < rows.size(); ++b) {
    const Candidate& candidate = *rows[b].candidate;
    const int length = std::min(window, inputs_of(candidate));
    const auto tokens = std::span(candidate.tokens).last(static_cast<size_t>(length) + 1);
    const auto at = static_cast<std::ptrdiff_t>(b * static_cast<size_t>(T));
    std::copy_n(tokens.begin(), length, batch.inputs.begin() + at);
    std::copy_n(tokens.end() - candidate.counted, candidate.counted,
                batch.targets.begin() + at + length - candidate.counted);
  }
  return batch;
}

TaskLosses by_task(std::span<const Task> tasks, std::span<const double> losses) {
  TaskLosses sorted;
  for (const Task& task : tasks) {
    sorted.emplace_back(losses.begin(), losses.begin() + static_cast<std::ptrdiff_t>(task.candidates.size()));
    losses = losses.subspan(task.candidates.size());
  }
  return sorted;
}

} // namespace

void refuse_long_endings(std::span<const Task> tasks, int window) {
  for (size_t i = 0; i < tasks.size(); ++i) {
    for (const Candidate& candidate : tasks[i].candidates) {
      if (candidate.counted > window)
        throw Error(ExitCode::data,
                    "an ending of task " + std::to_string(i + 1) + " has " + std::to_string(candidate.counted) +
                        " tokens, more than the model's " + std::to_string(window) + " positions",
                    "leave that task out, or use a model of longer sequences");
    }
  }
}

int batch_length(int longest, int positions) {
  constexpr int kGranule = 64; // one tile of attention
  return std::min(positions, (longest + kGranule - 1) / kGranule * kGranule);
}

std::optional<TaskLosses> task_losses(EvaluableModel& model, std::span<const Task> tasks, RankGroup& group,
                                      const ScoringOptions& options) {
  const int window = options.window;
  refuse_long_endings(tasks, window);
  const std::vector<Row> rows = rows_by_length(tasks);
  std::vector<double> losses(rows.size(), 0.0);
  std::vector<LossSum> sums;
  const auto batch_size = static_cast<size_t>(options.batch_size), ranks = static_cast<size_t>(group.ranks());
  const size_t batches = (rows.size() + batch_size - 1) / batch_size, rounds = (batches + ranks - 1) / ranks;
  for (size_t round = 0; round < rounds; ++round) {
    if (agree_to_stop(group, round, options.stop())) return std::nullopt;
    const size_t first = (round * ranks + static_cast<size_t>(group.rank())) * batch_size;
    if (first >= rows.size()) continue;
    const auto mine = std::span(rows).subspan(first, std::min(batch_size, rows.size() - first));
    const HostBatch batch = batch_of(mine, window);
    sums.resize(mine.size());
    model.evaluate(batch.view(), sums);
    for (size_t b = 0; b < mine.size(); ++b) losses[mine[b].index] = sums[b].sum;
    if (options.progress)
      options.progress(static_cast<int64_t>(std::min(rows.size(), (round + 1) * ranks * batch_size)),
                       static_cast<int64_t>(rows.size()));
  }
  group.sum(losses);
  return by_task(tasks, losses);
}

int chosen(std::span<const double> losses) {
  if (std::ranges::any_of(losses, [](double loss) { return std::isnan(loss); })) return -1;
  return static_cast<int>(std::ranges::min_element(losses) - losses.begin());
}

Accuracy accuracy(std::span<const Task> tasks, const TaskLosses& losses) {
  // Of tasks whose right candidate has the lowest loss per unit of its length.
  const auto share = [&](const auto& length) {
    int64_t right = 0;
    for (size_t i = 0; i < tasks.size(); ++i) {
      std::vector<double> scaled = losses[i];
      for (size_t c = 0; c < scaled.size(); ++c) scaled[c] /= static_cast<double>(length(tasks[i].candidates[c]));
      right += chosen(scaled) == tasks[i].right;
    }
    return static_cast<double>(right) / static_cast<double>(std::max<size_t>(1, tasks.size()));
  };
  return {.tasks = static_cast<int64_t>(tasks.size()),
          .summed = share([](const Candidate&) { return 1; }),
          .per_token = share([](const Candidate& candidate) { return candidate.counted; }),
          .per_byte = share([](const Candidate& candidate) { return candidate.bytes; })};
}

} // namespace gpt2
