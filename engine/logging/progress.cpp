#include "engine/logging/progress.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/base/formatted.h"
#include "engine/base/log.h"

namespace gpt2 {
namespace {

constexpr int64_t kFirstLines = 10; // at the start of a run, each is printed
constexpr double kBarSeconds = 0.5, kLineSeconds = 60;

} // namespace

int64_t readable_interval(double step_seconds) {
  for (int64_t decade = 1; decade < 1'000'000'000; decade *= 10) {
    for (const int64_t factor : {1, 2, 5}) {
      if (static_cast<double>(decade * factor) * step_seconds >= 0.9) return decade * factor;
    }
  }
  return 1;
}

Progress::Progress(Console& console, int64_t log_freq, int64_t max_steps)
    : console_(console), log_freq_(log_freq), max_steps_(max_steps) {}

void Progress::timed_step(double seconds, int64_t tokens) {
  const int64_t before = std::exchange(tokens_per_step_, tokens);
  if (before > 0) times_.step_grew(static_cast<double>(tokens) / static_cast<double>(before)); // --batch_ramp
  times_.step(seconds);
}

void Progress::show(const StepReport& report, Verdict verdict) {
  const bool loss_spike = loss_spikes_.is_spike(report.loss), norm_spike = norm_spikes_.is_spike(report.grad_norm);
  const bool unusual = loss_spike || norm_spike || verdict != Verdict::applied;
  if (std::isfinite(report.loss)) {
    const double weight = std::max(1.0 / static_cast<double>(shown_ + 1), 0.05);
    smoothed_loss_ += weight * (static_cast<double>(report.loss) - smoothed_loss_);
  }
  ++shown_;
  since_shown_ = {};
  if (unusual || is_due(report.step)) {
    std::vector<std::string> fields = console_.is_terminal() ? short_step_fields(report) : step_fields(report);
    if (unusual && console_.is_terminal()) fields.front() += " !"; // the format of a file is fixed
    console_.fields(fields, unusual ? Style::warning : Style::plain);
  }
  show_bar(report);
}

void Progress::show_micro_batch(int64_t step, int done, int of) {
  if (of == 1) return; // the step's own line follows
  if (since_shown_.seconds() < (console_.is_terminal() ? kBarSeconds : kLineSeconds)) return;
  since_shown_ = {};
  const std::string name = concat("step ", step), count = concat("micro-batch ", done, "/", of);
  if (!console_.is_terminal()) return console_.line(name + " | " + count);
  const double steps = static_cast<double>(step - 1) + static_cast<double>(done) / of;
  console_.progress(std::min(1.0, steps / static_cast<double>(max_steps_)), {concat(name, "/", max_steps_), count});
}

bool Progress::is_due(int64_t step) const {
  if (log_freq_ == 0 && !console_.is_terminal()) return true;
  if (step == max_steps_) return true;
  if (log_freq_ > 0) return shown_ == 1 || step % log_freq_ == 0;
  return shown_ <= kFirstLines || step % readable_interval(times_.step_seconds()) == 0;
}

void Progress::show_bar(const StepReport& report) {
  const double speed = static_cast<double>(tokens_per_step_) / std::max(times_.step_seconds(), 1e-9);
  console_.progress(std::min(1.0, static_cast<double>(report.step) / static_cast<double>(max_steps_)),
                    {concat("step ", report.step, "/", max_steps_), "eta " + format_duration(report.eta_seconds),
                     formatted("loss %.4f", smoothed_loss_), format_count(speed) + " tok/s"});
}

} // namespace gpt2
