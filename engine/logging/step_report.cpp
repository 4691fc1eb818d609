#include "engine/logging/step_report.h"

#include <cmath>

#include "engine/base/formatted.h"
#include "engine/base/log.h"

namespace gpt2 {

namespace {

constexpr float kHugeLoss = 1e6f; // of a run that diverged

} // namespace

std::vector<std::string> step_fields(const StepReport& r) {
  const auto loss = static_cast<double>(std::fabs(r.loss));
  std::vector<std::string> fields{formatted("step %4lld", static_cast<long long>(r.step)),
                                  "epoch " + std::to_string(r.epoch),
                                  formatted(r.loss < kHugeLoss ? "loss: %.6f" : "loss: %.3e", loss),
                                  formatted("lr: %.2e", r.lr),
                                  formatted("norm: %.4f", std::fabs(r.grad_norm)), // fabs: nan without its sign
                                  formatted("dt: %.2fms", 1e3 * r.seconds),
                                  formatted("tok/sec: %.2f", r.tokens_per_second)};
  if (r.speed_of_light) fields.push_back(formatted("SOL: %.1f%%", 100 * *r.speed_of_light));
  fields.push_back("eta: " + format_duration(r.eta_seconds));
  fields.push_back(r.precision);
  return fields;
}

std::vector<std::string> short_step_fields(const StepReport& r) {
  std::vector<std::string> fields = step_fields(r);
  fields[5] = "dt: " + format_duration(r.seconds);
  fields[6] = "tok/s: " + format_count(r.tokens_per_second);
  if (r.epoch == 0) fields.erase(fields.begin() + 1);
  return fields;
}

} // namespace gpt2
