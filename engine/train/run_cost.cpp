#include "engine/train/run_cost.h"

#include <algorithm>

#include "engine/io/checkpoint_format.h"
#include "engine/io/checkpoint_pruning.h"

namespace gpt2 {
namespace {

int64_t multiples_in(int64_t after, int64_t upto, int64_t of) { return of > 0 ? upto / of - after / of : 0; }

LearningRates rates_of(const Schedule& schedule, int64_t done, int64_t end) {
  LearningRates rates{.first = learning_rate(schedule, done), .peak = 0, .last = learning_rate(schedule, end - 1)};
  // A schedule climbs in its warm-up and never again: its peak is where that ends.
  const int64_t top = std::clamp(schedule.warmup_steps, done, end - 1);
  rates.peak = std::max(
      {rates.first, rates.last, learning_rate(schedule, top), learning_rate(schedule, std::max(done, top - 1))});
  return rates;
}

// The steps that are saved for being due, in order: multiples of --checkpoint_freq, and the last.
std::vector<KeptStep> due_saves(const Options& options, int64_t done, int64_t end) {
  std::vector<KeptStep> steps;
  if (const int64_t freq = options.checkpoint_freq; freq > 0)
    for (int64_t step = (done / freq + 1) * freq; step < end; step += freq) steps.push_back({.step = step});
  steps.push_back({.step = end, .marked = true});
  return steps;
}

CheckpointCost checkpoints_of(const RunPlan& plan, int64_t done, bool evaluates) {
  const Options& o = plan.options;
  const std::vector<KeptStep> saves = due_saves(o, done, plan.max_steps);
  const KeepRule rule{.newest = o.keep_checkpoints, .every = o.keep_every, .due_every = o.checkpoint_freq};
  CheckpointCost cost;
  cost.bytes_each = checkpoint_bytes(ParameterTable(plan.model.config).size());
  const int64_t removed = static_cast<int64_t>(steps_to_remove(saves, rule).size());
  const int64_t best = evaluates && o.save_best ? 1 : 0; // beside the others, at worst
  cost.kept = static_cast<int64_t>(saves.size()) - removed + best;
  cost.most = cost.kept + (removed > 0 || best > 0 ? 1 : 0); // the old one goes when the new one is verified
  return cost;
}

} // namespace

RunCost cost_of(const RunPlan& plan, int64_t done, int64_t train_sequences, int64_t evaluated,
                std::optional<double> tokens_per_second) {
  const int64_t end = plan.max_steps;
  const double all_tokens = static_cast<double>(end) * static_cast<double>(plan.tokens_per_step());
  RunCost cost;
  cost.steps = std::max<int64_t>(0, end - done);
  cost.tokens = cost.steps * plan.tokens_per_step();
  cost.tokens_per_parameter = all_tokens / static_cast<double>(parameter_count(plan.model.config));
  cost.epochs = static_cast<double>(end) * plan.target_batch_size / static_cast<double>(train_sequences);
  cost.rates = rates_of(plan.schedule, std::min(done, end - 1), end);
  if (evaluated > 0) {
    const int64_t freq = plan.options.eval_freq;
    const bool last_beside = cost.steps > 0 && end % freq != 0; // a run ends with one
    cost.evaluations = multiples_in(done, end, freq) + last_beside + (plan.options.eval_at_start && done == 0);
  }
  cost.checkpoints = checkpoints_of(plan, done, cost.evaluations > 0);
  if (!tokens_per_second) return cost;
  constexpr double kForwardShare = 1.0 / 3; // of a training step's arithmetic
  const double read = static_cast<double>(cost.evaluations * evaluated) * plan.model.seq_len * kForwardShare;
  cost.step_seconds = static_cast<double>(plan.tokens_per_step()) / *tokens_per_second;
  cost.seconds = (static_cast<double>(cost.tokens) + read) / *tokens_per_second;
  return cost;
}

} // namespace gpt2
