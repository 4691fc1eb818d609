#include "engine/options/lr_schedule.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <initializer_list>

#include "tools/lr_schedule/schedule_phases.h"

using namespace gpt2;

namespace {

Schedule schedule(Decay decay) {
  Schedule s;
  s.decay = decay;
  s.max_lr = 1.0f;
  s.min_lr_ratio = 0.1f;
  s.warmup_steps = 10;
  s.max_steps = 111;
  s.wsd_decay_ratio = 0.5f; // the last 56 steps
  return s;
}

// From the peak, never up, to exactly the minimum.
void check_run(Decay decay, int64_t steps, int64_t warmup, float ratio) {
  CAPTURE(static_cast<int>(decay));
  CAPTURE(steps);
  CAPTURE(warmup);
  CAPTURE(ratio);
  Schedule s = schedule(decay);
  s.max_lr = 6e-4f, s.min_lr_ratio = ratio, s.warmup_steps = warmup, s.max_steps = steps;
  CHECK(learning_rate(s, steps - 1) == static_cast<float>(static_cast<double>(s.max_lr) * ratio));
  if (steps == 1) return; // the first step is the last
  const int64_t peak = std::max<int64_t>(warmup - 1, 0);
  CHECK(learning_rate(s, peak) == s.max_lr);
  for (int64_t step = peak; step + 1 < steps; ++step) CHECK(learning_rate(s, step) >= learning_rate(s, step + 1));
}

} // namespace

TEST_CASE("every schedule warms up linearly and reaches the peak on the last warm-up step") {
  for (const Decay decay : {Decay::cosine, Decay::linear, Decay::constant, Decay::wsd}) {
    CHECK(learning_rate(schedule(decay), 0) == doctest::Approx(0.1));
    CHECK(learning_rate(schedule(decay), 4) == doctest::Approx(0.5));
    CHECK(learning_rate(schedule(decay), 9) == doctest::Approx(1.0));
    CHECK(learning_rate(schedule(decay), 10) == doctest::Approx(1.0));
  }
}

TEST_CASE("without a warm-up the first step has the peak rate") {
  Schedule s = schedule(Decay::cosine);
  s.warmup_steps = 0;
  CHECK(learning_rate(s, 0) == 1.0f);
}

TEST_CASE("cosine: half way at the mean, the minimum at the last step and beyond") {
  const Schedule s = schedule(Decay::cosine);
  CHECK(learning_rate(s, 60) == doctest::Approx(0.55));
  CHECK(learning_rate(s, 35) == doctest::Approx(0.1 + 0.9 * 0.5 * (1 + 0.70710678)));
  CHECK(learning_rate(s, 109) > 0.1f);
  CHECK(learning_rate(s, 110) == 0.1f);
  CHECK(learning_rate(s, 100000) == 0.1f);
}

TEST_CASE("linear") {
  const Schedule s = schedule(Decay::linear);
  CHECK(learning_rate(s, 35) == doctest::Approx(1 - 0.9 * 0.25));
  CHECK(learning_rate(s, 109) == doctest::Approx(0.1 + 0.9 / 100));
  CHECK(learning_rate(s, 110) == 0.1f);
}

TEST_CASE("constant stays") { CHECK(learning_rate(schedule(Decay::constant), 110) == 1.0f); }

TEST_CASE("wsd: stable until its share of the steps is left, then linear to the minimum") {
  const Schedule s = schedule(Decay::wsd);
  CHECK(learning_rate(s, 54) == 1.0f);
  CHECK(learning_rate(s, 55) == doctest::Approx(1 - 0.9 / 56)); // the first of 56
  CHECK(learning_rate(s, 68) == doctest::Approx(1 - 0.9 * 14 / 56));
  CHECK(learning_rate(s, 109) == doctest::Approx(0.1 + 0.9 / 56));
  CHECK(learning_rate(s, 110) == 0.1f);
}

TEST_CASE("the last step has exactly min_lr_ratio * max_lr, however long the run and its warm-up") {
  for (const Decay decay : {Decay::cosine, Decay::linear, Decay::wsd}) {
    for (const int64_t steps : {1, 2, 3, 7, 50, 1000}) {
      for (const int64_t warmup : {int64_t{0}, steps / 2, steps - 1}) {
        for (const float ratio : {0.0f, 0.1f, 1.0f / 3, 0.7f, 1.0f}) check_run(decay, steps, warmup, ratio);
      }
    }
  }
}

TEST_CASE("wsd without a share to cool down in stays; the smallest share is one step") {
  Schedule s = schedule(Decay::wsd);
  s.wsd_decay_ratio = 0;
  CHECK(learning_rate(s, 110) == 1.0f);
  s.wsd_decay_ratio = 0.001f;
  CHECK(learning_rate(s, 109) == 1.0f);
  CHECK(learning_rate(s, 110) == 0.1f);
}

TEST_CASE("wsd never cools down before the warm-up is over") {
  Schedule s = schedule(Decay::wsd);
  s.wsd_decay_ratio = 1.0f;
  CHECK(learning_rate(s, 10) == 1.0f);
  CHECK(learning_rate(s, 60) == doctest::Approx(0.55));
}

TEST_CASE("a warm-up longer than the run is cut by the end of the run, not by the schedule") {
  Schedule s = schedule(Decay::cosine);
  s.warmup_steps = 200;
  CHECK(learning_rate(s, 99) == doctest::Approx(0.5));
  CHECK(learning_rate(s, 110) == doctest::Approx(111.0 / 200)); // the last
}

TEST_CASE("the parts of a schedule follow each other, and the rates change where they say") {
  for (const Decay decay : {Decay::cosine, Decay::linear, Decay::constant, Decay::wsd}) {
    CAPTURE(static_cast<int>(decay));
    const Schedule s = schedule(decay);
    const std::vector<SchedulePhase> phases = phases_of(s);
    int64_t done = 0;
    for (const SchedulePhase& phase : phases) {
      CHECK(phase.first == done + 1);
      CHECK(phase.last >= phase.first);
      done = phase.last;
    }
    CHECK(done == s.max_steps);
    CHECK(phases.front().name == "warm-up");
    CHECK(phases.front().last == 10);
    for (const SchedulePhase& phase : phases) {
      if (phase.name != "constant") continue;
      for (int64_t step = phase.first; step <= phase.last; ++step) CHECK(learning_rate(s, step - 1) == 1.0f);
      if (phase.last < s.max_steps) CHECK(learning_rate(s, phase.last) < 1.0f);
    }
  }
  Schedule all_warmup = schedule(Decay::wsd);
  all_warmup.warmup_steps = 500;
  CHECK(phases_of(all_warmup).size() == 1);
  CHECK(phases_of(all_warmup)[0].last == all_warmup.max_steps);
}

TEST_CASE("up to its cooldown, a wsd run has the rates of every longer one") {
  for (const int64_t warmup : {0, 10, 80}) {
    for (const float ratio : {0.01f, 0.2f, 0.5f, 1.0f}) {
      Schedule s = schedule(Decay::wsd), longer = s;
      s.warmup_steps = longer.warmup_steps = warmup;
      s.wsd_decay_ratio = longer.wsd_decay_ratio = ratio;
      longer.max_steps = 2 * s.max_steps;
      const int64_t start = cooldown_start(s);
      for (int64_t step = 0; step < start; ++step) CHECK(learning_rate(s, step) == learning_rate(longer, step));
      if (start < s.max_steps) CHECK(learning_rate(s, start) < s.max_lr);
    }
  }
  CHECK(cooldown_start(schedule(Decay::cosine)) == schedule(Decay::cosine).max_steps);
}
