#include "tools/plan/run_cost.h"

#include <algorithm>
#include <numeric>

#include "engine/checkpoint/format.h"

namespace gpt2 {
namespace {

int64_t multiples_in(int64_t after, int64_t upto, int64_t of) { return of > 0 ? upto / of - after / of : 0; }

// Saturates at INT64_MAX: a plan may have 10^12 steps.
int64_t saturated_product(int64_t a, int64_t b) {
  int64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? INT64_MAX : result;
}

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

struct DueSaves {
  int64_t all, removed; // at the end of the run
};

// Counts the checkpoints at multiples of --checkpoint_freq and at the last step, and those of them that
// steps_to_remove() removes. Closed form: there may be billions.
DueSaves due_saves(const Options& o, int64_t done, int64_t end) {
  const int64_t freq = o.checkpoint_freq;
  const int64_t all = std::max<int64_t>(0, multiples_in(done, end - 1, freq)) + 1;
  const KeepRule rule = keep_rule(o);
  const int64_t old = rule.newest > 0 ? std::max<int64_t>(0, all - rule.newest) : 0;
  if (old == 0 || rule.every == 0) return {all, old};
  // Step k * freq is a multiple of --keep_every iff k is a multiple of --keep_every / gcd.
  const int64_t before = done / freq;
  return {all, old - multiples_in(before, before + old, rule.every / std::gcd(freq, rule.every))};
}

CheckpointCost checkpoints_of(const RunPlan& plan, int64_t done, bool evaluates) {
  const Options& o = plan.options;
  const auto [all, removed] = due_saves(o, done, plan.max_steps);
  CheckpointCost cost;
  cost.bytes_each = checkpoint_bytes(ParameterTable(plan.model.config).size());
  const int64_t best = evaluates && o.save_best ? 1 : 0; // worst case: in addition to the others
  const int64_t start = keep_rule(o).before_cooldown;
  const int64_t extendable = start > done && start < plan.max_steps ? 1 : 0; // likewise
  cost.kept = all - removed + best + extendable;
  cost.most = cost.kept + (removed > 0 || best > 0 ? 1 : 0); // the old one is removed after the new one is verified
  return cost;
}

} // namespace

int64_t CheckpointCost::bytes() const { return saturated_product(most, bytes_each); }

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
  cost.checkpoints = checkpoints_of(plan, done, cost.evaluations > 0);
  if (!tokens_per_second) return cost;
  constexpr double kForwardShare = 1.0 / 3; // of a training step's arithmetic
  const double read =
      static_cast<double>(saturated_product(cost.evaluations, evaluated)) * plan.model.seq_len * kForwardShare;
  cost.step_seconds = static_cast<double>(plan.tokens_per_step()) / *tokens_per_second;
  cost.seconds = (static_cast<double>(cost.tokens) + read) / *tokens_per_second;
  return cost;
}

} // namespace gpt2
