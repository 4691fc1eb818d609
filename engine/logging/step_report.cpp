#include "engine/logging/step_report.h"

#include <algorithm>

#include "engine/base/formatted.h"
#include "engine/base/log.h"

namespace gpt2 {
namespace {

std::string padded(int64_t number, size_t width) {
  const std::string digits = std::to_string(number);
  return std::string(width - std::min(width, digits.size()), ' ') + digits;
}

} // namespace

std::vector<std::string> step_fields(const StepReport& r) {
  std::vector<std::string> fields{"step " + padded(r.step, 4),
                                  "epoch " + std::to_string(r.epoch),
                                  "loss: " + formatted("%.6f", r.loss),
                                  "lr: " + formatted("%.2e", r.lr),
                                  "norm: " + formatted("%.4f", r.grad_norm),
                                  "dt: " + formatted("%.2fms", 1e3 * r.seconds),
                                  "tok/sec: " + formatted("%.2f", r.tokens_per_second)};
  if (r.speed_of_light) fields.push_back("SOL: " + formatted("%.1f%%", 100 * *r.speed_of_light));
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
