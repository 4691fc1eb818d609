#include <algorithm>
#include <ctime>

#include "engine/backend/roofline.h"
#include "engine/base/formatted.h"
#include "engine/base/log.h"
#include "engine/run/summary.h"
#include "tools/doctor/checks.h"
#include "tools/plan/measure.h"

namespace gpt2 {
namespace {

constexpr MeasureLimits kTrialLimits{.steps = 20, .seconds = 15, .micro_batches = 1};

std::string name_of(Precision precision) {
  return precision == Precision::fp8 ? "FP8" : precision == Precision::bf16 ? "BF16" : "FP32";
}

// Trains the real model on the real data. Returns tokens per second if no step was skipped.
std::optional<double> try_steps(const PlannedRun& run, Precision precision, const Report& report) {
  BackendOptions options = backend_options(run.settings.options);
  options.cuda.plan_cache.clear(); // write no files
  options.cuda.timeline.clear();
  const OpenBackend open = open_backend(options);
  RunPlan plan = run.plan;
  plan.model.precision = precision;
  const std::unique_ptr<Model> model = open.backend->make_model(steady_state(plan.model));
  const MeasuredSteps measured = measure_steps(*model, run.data.train, plan, kTrialLimits);
  const std::string name = "steps in " + name_of(precision);
  const std::string what =
      formatted("%d steps of %d sequences: loss %.3f to %.3f, %s tokens/s", measured.steps, plan.batch.batch_size,
                static_cast<double>(measured.first_loss), static_cast<double>(measured.last_loss),
                format_count(measured.tokens_per_second).c_str());
  if (measured.skipped > 0) {
    report({name, Level::fail, what + "; " + counted(measured.skipped, "step") + " had a NaN or infinity",
            "lower --max_lr, or see docs/fp8.md", ExitCode::numerics});
    return std::nullopt;
  }
  const std::optional<double> peak = open.backend->roofline(plan.model);
  report(
      {name, Level::ok, what + (peak ? formatted(", %.0f%% of peak", 100 * measured.tokens_per_second / *peak) : "")});
  if (precision == Precision::fp8) report(fp8_share(run, *model));
  return measured.tokens_per_second;
}

// Before the steps, which take minutes for a large model on a CPU: what follows, and how long it takes.
Finding announce_steps(const PlannedRun& run, const std::vector<Precision>& precisions) {
  double seconds = 0;
  std::vector<std::string> names;
  for (const Precision precision : precisions) {
    names.push_back(name_of(precision));
    ModelOptions model = run.plan.model;
    model.precision = precision;
    const double step = run.gpu ? 0 : model.batch_size * model.seq_len / estimate_cpu_speed(model).tokens_per_second;
    seconds +=
        run.gpu ? kTrialLimits.seconds : std::max(step, std::min(kTrialLimits.steps * step, kTrialLimits.seconds));
  }
  return {"next", Level::ok,
          formatted("up to %d steps of one micro-batch in %s: about %s, an estimate; Ctrl-C ends the checks",
                    static_cast<int>(kTrialLimits.steps), listed(names).c_str(), format_duration(seconds).c_str())};
}

std::string date_after(double seconds) {
  return date_text("%Y-%m-%d %H:%M", localtime_r, std::time(nullptr) + static_cast<std::time_t>(seconds));
}

void report_end(const PlannedRun& run, double tokens_per_second, const Report& report) {
  const RunCost cost =
      cost_of(run.plan, run.done, run.data.train->sequences(), run.evaluated(), tokens_per_second * run.ranks);
  report({"end of the run", Level::ok,
          counted(cost.steps, "step") + ", " + format_count(static_cast<double>(cost.tokens)) + " tokens in " +
              format_duration(*cost.seconds) + ", until " + date_after(*cost.seconds) + " if started now" +
              (run.ranks > 1 ? ", assuming linear scaling over " + std::to_string(run.ranks) + " ranks" : "")});
}

void check_memory(const PlannedRun& run, const Report& report) {
  if (run.memory.empty())
    return report({"memory", Level::warn, "unknown: this build has no CUDA engine", "build with nvcc"});
  report({"memory", Level::ok,
          run.plan.model.config.name + ", micro-batches of " + std::to_string(run.plan.batch.batch_size) + ": " +
              memory_text(run.memory) +
              (run.device_bytes ? "; " + format_bytes(static_cast<double>(*run.device_bytes)) + " free" : "")});
}

} // namespace

void check_run(const PlannedRun& run, const Report& report) {
  check_memory(run, report);
  if (run.assumed) return; // this machine has no such GPU
  const Precision plain = run.gpu ? Precision::bf16 : Precision::fp32;
  std::vector<Precision> precisions{plain};
  if (!run.gpu || gpu_has_fp8(run)) precisions.push_back(Precision::fp8); // otherwise check_gpu.cpp has reported it
  report(announce_steps(run, precisions));
  std::optional<double> speed;
  for (const Precision precision : precisions) {
    check(report, "steps in " + name_of(precision), [&] {
      const std::optional<double> reached = try_steps(run, precision, report);
      if (precision == run.plan.model.precision) speed = reached;
    });
  }
  if (speed) report_end(run, *speed, report);
}

} // namespace gpt2
