#include "tools/plan/measure.h"

#include "engine/base/stopwatch.h"
#include "engine/logging/throughput.h"

namespace gpt2 {

MeasuredSteps measure_steps(TrainableModel& model, std::shared_ptr<const Dataset> data, const RunPlan& plan,
                            const MeasureLimits& limits) {
  Loader loader(std::move(data), {.batch_size = plan.batch.batch_size, .seed = plan.options.seed});
  MeasuredSteps measured;
  StepTimes pace;
  for (const Stopwatch all; measured.steps < limits.steps && (measured.steps == 0 || all.seconds() < limits.seconds);) {
    const Stopwatch watch;
    for (int i = 0; i < limits.micro_batches; ++i) {
      const HostBatch batch = loader.next();
      model.micro_step(batch.view(), i, limits.micro_batches);
    }
    model.update(update_settings(plan.options, learning_rate(plan.schedule, measured.steps)));
    const StepResult result = model.step_result();
    pace.step(watch.seconds());
    if (measured.steps++ == 0) measured.first_loss = result.loss;
    measured.last_loss = result.loss;
    measured.skipped += result.verdict != Verdict::applied;
  }
  const double tokens = static_cast<double>(limits.micro_batches) * plan.batch.batch_size * plan.model.seq_len;
  measured.tokens_per_second = tokens / pace.step_seconds();
  return measured;
}

} // namespace gpt2
