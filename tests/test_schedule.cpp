#include "engine/train/schedule.h"

#include <doctest/doctest.h>

#include <initializer_list>

using namespace gpt2;

namespace {

Schedule schedule(Decay decay) {
  Schedule s;
  s.decay = decay;
  s.max_lr = 1.0f;
  s.min_lr_ratio = 0.1f;
  s.warmup_steps = 10;
  s.max_steps = 110;
  s.wsd_decay_ratio = 0.5f; // the last 55 steps
  return s;
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

TEST_CASE("cosine: half way at the mean, the minimum at the end and beyond") {
  const Schedule s = schedule(Decay::cosine);
  CHECK(learning_rate(s, 60) == doctest::Approx(0.55));
  CHECK(learning_rate(s, 35) == doctest::Approx(0.1 + 0.9 * 0.5 * (1 + 0.70710678)));
  CHECK(learning_rate(s, 110) == doctest::Approx(0.1));
  CHECK(learning_rate(s, 100000) == doctest::Approx(0.1));
}

TEST_CASE("linear") {
  const Schedule s = schedule(Decay::linear);
  CHECK(learning_rate(s, 35) == doctest::Approx(1 - 0.9 * 0.25));
  CHECK(learning_rate(s, 110) == doctest::Approx(0.1));
}

TEST_CASE("constant stays") { CHECK(learning_rate(schedule(Decay::constant), 109) == 1.0f); }

TEST_CASE("wsd: stable until its share of the steps is left, then linear to the minimum") {
  const Schedule s = schedule(Decay::wsd);
  CHECK(learning_rate(s, 55) == 1.0f);
  CHECK(learning_rate(s, 66) == doctest::Approx(1 - 0.9 * 11 / 55));
  CHECK(learning_rate(s, 110) == doctest::Approx(0.1));
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
}
