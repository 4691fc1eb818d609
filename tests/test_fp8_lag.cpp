// When a scale is said to lag, how often, and which option is named.
#include "engine/run/fp8_lag.h"

#include <doctest/doctest.h>

#include <limits>

#include "tests/contains.h"
#include "tests/fp8_names.h"

using namespace gpt2;

namespace {

// Of E4M3 with room for 1.0.
Fp8TensorStats tensor(const std::string& name, double saturated, float amax = 1.5f) {
  return {testing::named(name), Fp8Format::e4m3, amax, 448.0f, saturated, 0.0};
}

std::string told(Fp8LagWatch& watch, int64_t step, const std::vector<Fp8TensorStats>& stats) {
  const auto warning = watch.check(step, stats);
  return warning ? warning->text : "";
}

constexpr double kShare = 0.0013;

} // namespace

TEST_CASE("FP8 that began later: current scaling for what is left of the warm-up") {
  Fp8Options later;
  later.bf16_steps = 30;
  Fp8LagWatch watch({.fp8 = later, .layers = 12, .warmup_steps = 100});
  told(watch, 50, {tensor("h.3/fc/grad", kShare)});
  CHECK(contains(told(watch, 60, {tensor("h.3/fc/grad", kShare, 3.1f)}), "--fp8_current_steps 70 lets it follow"));
}

TEST_CASE("saturation that comes back is told once for a kind of tensor: twice in the warm-up, three times later") {
  Fp8LagWatch watch({.fp8 = {}, .layers = 12, .warmup_steps = 30});
  CHECK(told(watch, 10, {tensor("h.3/fc/grad", kShare)}).empty()); // once is nothing
  CHECK(told(watch, 20, {tensor("h.3/fc/grad", 0)}).empty());
  const auto warning = watch.check(30, std::vector{tensor("h.3/fc/grad", kShare, 3.1f), tensor("h.4/fc/grad", 0.001)});
  REQUIRE(warning);
  CHECK(warning->tensor == "h.3/fc/grad");
  CHECK(warning->saturated == kShare);
  CHECK(warning->text ==
        "the scale of fc/grad lags: 0.13% of h.3/fc/grad saturated at step 30, in the warm-up, values up to 3.1 times "
        "its "
        "range; --fp8_current_steps 30 lets it follow, --warmup_steps 60 slows the growth, --fp8_bf16_layers 3,4 "
        "avoids it");
  for (int64_t step = 200; step < 400; step += 10) {
    CHECK(told(watch, step, {tensor("h.3/fc/grad", kShare), tensor("h.0/qkv/act", kShare)}).empty() == (step != 220));
  }
  CHECK(watch.saturated_checks("fc/grad") == 22);
  CHECK(watch.saturated_checks("fc/act") == 0);
  CHECK(contains(watch.lines(), "  the scale of fc/grad lags: "));
  CHECK(contains(watch.lines(), "  the scale of qkv/act lags: "));
}

TEST_CASE("what is rare, far apart, of fixed scale or not finite is no lag") {
  Fp8LagWatch watch({.fp8 = {}, .layers = 12, .warmup_steps = 0});
  Fp8TensorStats dlogits = tensor("lm_head/grad", 0.5);
  dlogits.fixed_scale = true;
  for (int64_t step = 10; step < 1000; step += 10) {
    const bool now_and_then = step % 40 == 0; // two of eight looks
    CHECK(told(watch, step,
               {tensor("h.0/fc/act", 9e-7), dlogits, tensor("h.1/fc/grad", 0.1, std::numeric_limits<float>::infinity()),
                tensor("h.0/proj/act", now_and_then ? 0.1 : 0)})
              .empty());
  }
  CHECK(watch.lines().empty());
  CHECK(watch.saturated_checks("fc/act") == 0);
  CHECK(watch.saturated_checks("proj/act") == 24);
}

TEST_CASE("many kinds share a line, and the next line waits") {
  Fp8LagWatch watch({.fp8 = {}, .layers = 2, .warmup_steps = 0});
  const std::vector stats{tensor("h.0/fc/act", 0.01), tensor("h.0/qkv/act", 0.02), tensor("h.1/proj/grad", 0.001)};
  for (int64_t step = 10; step <= 20; step += 10) CHECK(told(watch, step, stats).empty());
  const std::string line = told(watch, 30, stats);
  CHECK(line.starts_with("the scale of qkv/act lags: 2% of h.0/qkv/act"));
  CHECK(line.ends_with("; these lag too: fc/act, proj/grad"));
  std::vector more = stats;
  more.push_back(tensor("lm_head/act", 0.5));
  for (int64_t step = 40; step < 130; step += 10) CHECK(told(watch, step, more).empty());
  CHECK(told(watch, 130, more).starts_with("the scale of lm_head/act lags: 50%"));
}

TEST_CASE("the option that would help follows from what was seen") {
  const auto advice = [](Fp8Options fp8, float growth, const std::string& name = "h.0/fc/act", int64_t warmup = 0) {
    Fp8LagWatch watch({.fp8 = std::move(fp8), .layers = 2, .warmup_steps = warmup});
    float amax = 1.1f;
    std::string line;
    for (int64_t step = 10; line.empty(); step += 10, amax *= growth)
      line = told(watch, step, {tensor(name, 0.01, amax)});
    return line.substr(line.find("; ") + 2);
  };
  CHECK(advice({.bf16_layers = {}}, 1.2f) == "--fp8_margin 2 leaves room for it");
  CHECK(advice({.margin = 0, .bf16_layers = {}}, 1.7f) == "--fp8_margin 2 leaves room for it");
  CHECK(advice({.bf16_layers = {}}, 4) == "--fp8_recipe current lets it follow"); // 18 times
  CHECK(advice({.bf16_layers = {}}, 1.2f, "h.0/fc/act", 100) ==
        "--fp8_current_steps 100 lets it follow, --warmup_steps 200 slows the growth");
  CHECK(advice({.bf16_layers = {}}, 16, "h.0/fc/act", 100) ==
        "--fp8_current_steps 100 lets it follow, --warmup_steps 200 slows the growth");
  CHECK(advice({.interval = 10, .bf16_layers = {}}, 4) == "--fp8_interval 1 lets it follow");
  CHECK(advice({.bf16_layers = {}}, 1) == "--fp8_amax_history 64 remembers such batches");
  CHECK(advice({.amax_history = 128, .bf16_layers = {}}, 1) == "--fp8_amax_history 512 remembers such batches");
  CHECK(advice({.bf16_layers = {}}, 1.2f, "lm_head/act") ==
        "--fp8_margin 2 leaves room for it, --no-fp8_lm_head avoids it");
}

TEST_CASE("what was counted can be written down and read back at any look") {
  const Fp8LagWatch::Setting setting{.fp8 = {}, .layers = 2, .warmup_steps = 0};
  Fp8LagWatch kept(setting), read(setting);
  CHECK(kept.text().empty());
  float amax = 1.1f;
  for (int64_t step = 10; step <= 300; step += 10, amax *= 1.01f) {
    const std::vector stats{tensor("h.0/fc/act", 0.01, amax), tensor("h.0/qkv/act", step > 100 ? 0.02 : 0, amax)};
    CHECK(told(kept, step, stats) == told(read, step, stats));
    read = Fp8LagWatch(setting, kept.text());
    CHECK(read.text() == kept.text());
  }
  CHECK(read.lines() == kept.lines());
  CHECK(contains(read.lines(), "qkv/act"));
  CHECK(Fp8LagWatch(setting, "nonsense\x01 \n7 7 7\n\n").text().empty()); // is no reason to fail
}
