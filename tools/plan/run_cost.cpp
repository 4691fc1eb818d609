#include "tools/plan/run_cost.h"

#include <algorithm>

namespace gpt2 {
namespace {

LearningRates rates_of(const Schedule& schedule, int64_t done, int64_t end) {
  LearningRates rates{.first = learning_rate(schedule, done), .peak = 0, .last = learning_rate(schedule, end - 1)};
  // The learning rate rises only during warm-up, so the peak is at its end.
  const int64_t top = std::clamp(schedule.warmup_steps, done, end - 1);
  rates.peak = std::max(
      {rates.first, rates.last, learning_rate(schedule, top), learning_rate(schedule, std::max(done, top - 1))});
  for (const BatchRamp::Phase& phase : schedule.ramp.phases()) { // --batch_ramp_lr
    if (phase.first >= done && phase.first < end)
      rates.peak = std::max(rates.peak, learning_rate(schedule, phase.first));
  }
  return rates;
}

} // namespace

RunCost cost_of(const RunPlan& plan, int64_t done, int64_t train_sequences, int64_t evaluated,
                std::optional<double> tokens_per_second) {
  const int64_t end = plan.max_steps;
  const double sequences = plan.ramp.sequences_before(end), left = sequences - plan.ramp.sequences_before(done);
  const double all_tokens = sequences * plan.model.seq_len;
  RunCost cost;
  cost.steps = std::max<int64_t>(0, end - done);
  cost.tokens = saturated_product(static_cast<int64_t>(std::clamp(left, 0.0, 9e18)), plan.model.seq_len);
  cost.tokens_per_parameter = all_tokens / static_cast<double>(parameter_count(plan.model.config));
  cost.epochs = sequences / static_cast<double>(train_sequences);
  cost.rates = rates_of(plan.schedule, std::min(done, end - 1), end);
  if (evaluated > 0) {
    const int64_t freq = plan.options.eval_freq;
    const bool last_extra = freq > 0 && cost.steps > 0 && end % freq != 0; // the last step is evaluated
    cost.evaluations = multiples_in(done, end, freq) + last_extra + (plan.options.eval_at_start && done == 0);
  }
  cost.checkpoints = checkpoint_cost(plan, done, cost.evaluations > 0);
  if (!tokens_per_second) return cost;
  constexpr double kForwardShare = 1.0 / 3; // of a training step's arithmetic
  const double read =
      static_cast<double>(saturated_product(cost.evaluations, evaluated)) * plan.model.seq_len * kForwardShare;
  cost.step_seconds = static_cast<double>(plan.tokens_per_step()) / *tokens_per_second;
  cost.seconds = (static_cast<double>(cost.tokens) + read) / *tokens_per_second;
  return cost;
}

} // namespace gpt2
