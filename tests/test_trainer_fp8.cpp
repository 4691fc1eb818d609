// The training loop in FP8: health of the tensors, blocks that go on in BF16, what is announced.
#include <doctest/doctest.h>

#include <algorithm>

#include "engine/options/parse_options.h"
#include "engine/run/evaluation.h"
#include "tests/checkpoint_testing.h"
#include "tests/fp8_names.h"
#include "tests/trainer_testing.h"

using namespace gpt2;
using namespace gpt2::testing;

namespace {

Fp8TensorStats tensor(const std::string& name, double saturated, float amax = 1.0f, float scale = 448.0f) {
  return {testing::named(name), Fp8Format::e4m3, amax, scale, saturated, 0.0};
}

// What --eval_only prints.
std::string evaluated(const RunSettings& settings) {
  const auto backend = make_cpu_backend(0);
  std::ostringstream printed;
  Console console(printed, false);
  RankGroup group;
  evaluate_only(settings, choose_device(backend_options(settings.options), {}), *backend, group, console);
  const std::string text = printed.str();
  return text.substr(text.find("val loss: "));
}

} // namespace

TEST_CASE("FP8 ends with a line on its health, and with --fp8_detail with a table of its tensors") {
  for (const bool detail : {false, true}) {
    Playground play;
    play.options.max_steps = 2;
    play.options.precision = PrecisionChoice::fp8;
    play.options.fp8_detail = detail;
    const Outcome outcome = run_cpu({play.options});
    CHECK(contains(outcome.printed, "| FP8 (emulated)"));
    CHECK(contains(outcome.printed, "FP8 health: no tensor needs attention (--fp8_detail prints a table)\n") ==
          !detail);
    CHECK(contains(outcome.printed, "fc/act") == detail);
  }
}

TEST_CASE("FP8 that begins later: the steps before are labelled as what they are, and have no health") {
  Playground play;
  play.options.precision = PrecisionChoice::fp8;
  play.options.fp8_bf16_steps = 10;
  play.options.max_steps = 20;
  const std::string begun = run_cpu({play.options}).printed;
  CHECK(contains(begun, "FP8 (emulated) from step 11 on, hybrid"));
  for (const auto& step : metrics_of(play.options, "step"))
    CHECK(step.at("precision") == (step.at("step") <= 10 ? "FP32" : "FP8 (emulated)"));
  const auto looks = metrics_of(play.options, "fp8");
  REQUIRE(looks.size() == 1); // at step 10 there is nothing to look at yet
  CHECK(looks.at(0).at("step") == 20);
  CHECK(contains(begun, "FP8 health"));

  Playground short_play;
  short_play.options.precision = PrecisionChoice::fp8;
  short_play.options.fp8_bf16_steps = short_play.options.max_steps = 10;
  const std::string never = run_cpu({short_play.options}).printed;
  CHECK(contains(never, "--fp8_bf16_steps 10: FP8 does not begin in this run of 10 steps"));
  CHECK_FALSE(contains(never, "FP8 health"));
  CHECK(metrics_of(short_play.options, "fp8").empty());
}

TEST_CASE("--eval_only in FP8 is in FP8, but for an FP8 run that was stopped before FP8 began") {
  Playground play;
  play.options.max_steps = 20;
  play.options.precision = PrecisionChoice::fp32;
  Options in_fp8 = play.options, at_once = play.options;
  in_fp8.precision = at_once.precision = PrecisionChoice::fp8;
  at_once.fp8_bf16_steps = 0;
  const std::string exact = evaluated({play.options});
  CHECK(evaluated({in_fp8}) != exact);
  CHECK(evaluated({in_fp8}) == evaluated({at_once}));

  in_fp8.fp8_bf16_steps = 20;
  run_cpu({in_fp8});
  play.options.checkpoint_dir = in_fp8.checkpoint_dir;
  const std::string before_fp8 = evaluated(resume(in_fp8, "latest"));
  CHECK(before_fp8 == evaluated(resume(play.options, "latest", {"precision"})));
  CHECK(before_fp8 != evaluated(resume(at_once, "latest", {"fp8_bf16_steps"})));
}

TEST_CASE("FP8 of a checkpoint from before it could begin later has begun") {
  Playground play;
  play.options.max_steps = 200, play.options.warmup_steps = 40; // of a new run the first 20 would be in BF16
  StateOnlyModel model(1);
  for (const std::string precision : {"fp8", "bf16"}) {
    TrainState state = state_of(10);
    state.seed = play.options.seed;
    state.precision = precision;
    state.options_toml = to_toml(play.options);
    const size_t begin = state.options_toml.find("fp8_bf16_steps");
    REQUIRE(begin != std::string::npos);
    state.options_toml.erase(begin, state.options_toml.find('\n', begin) + 1 - begin);
    Run run(play.options.checkpoint_dir, precision);
    run.save(model, state, false);
    CHECK(resume(play.options, precision).options.fp8_bf16_steps == (precision == "fp8" ? 0 : 20));
  }
}

TEST_CASE("a block that saturates goes on in BF16: told once, logged, and only if it is wanted") {
  for (const bool wanted : {true, false}) {
    CAPTURE(wanted);
    Playground play;
    play.options.max_steps = 60;
    play.options.precision = PrecisionChoice::fp8;
    play.options.fp8_auto_fallback = wanted;
    Script script;
    script.fp8_stats = [](int64_t step) {
      return std::vector{tensor("h.0/fc/grad", step >= 15 ? 0.032 : 0.0), tensor("lm_head/act", 0.02)};
    };
    ScriptedBackend backend(script);
    const std::string printed = run({play.options}, backend).printed;
    const std::string line =
        "block 0 stays in BF16 from step 41 on: h.0/fc/grad saturated 3.2% of its values, the third such check in a "
        "row";
    CHECK(contains(printed, line + "\n") == wanted); // looks at 20, 30 and 40
    CHECK(contains(printed, "the LM head stays in FP8 although lm_head/act saturated 2.0%") == wanted);
    const auto events = metrics_of(play.options, "event");
    CHECK(std::any_of(events.begin(), events.end(), [&](const auto& event) {
            return event.at("event") == "fallback" && event.at("step") == 40 && event.at("block") == 0 &&
                   event.at("text") == line;
          }) == wanted);
    CHECK(contains(events_of(play.options), line) == wanted);
    if (wanted)
      CHECK(script.left_in_bf16 == std::vector<std::pair<int64_t, int>>{{40, 0}});
    else
      CHECK(script.left_in_bf16.empty());
  }
}

TEST_CASE("an overflow that skips steps is looked at with every skip: BF16 comes before the run gives up") {
  Playground play;
  play.options.precision = PrecisionChoice::fp8;
  Script script;
  const float infinity = std::numeric_limits<float>::infinity();
  script.fp8_stats = [&](int64_t) {
    return std::vector{tensor("h.0/fc/grad", 0, script.left_in_bf16.empty() ? infinity : 1.0f)};
  };
  script.result = [&](int64_t step) {
    const bool overflow = step > 1 && script.left_in_bf16.empty();
    return StepResult{.loss = 1, .grad_norm = 1, .verdict = overflow ? Verdict::skipped_nonfinite : Verdict::applied};
  };
  ScriptedBackend backend(script);
  const Outcome outcome = run({play.options}, backend);
  CHECK(outcome.code == ExitCode::done);
  CHECK(script.left_in_bf16 == std::vector<std::pair<int64_t, int>>{{4, 0}}); // steps 2, 3 and 4 were skipped
}

TEST_CASE("what the FP8 guard has counted survives a resume") {
  Playground play;
  play.options.max_steps = 25;
  play.options.precision = PrecisionChoice::fp8;
  Script script;
  script.fp8_stats = [](int64_t) { return std::vector{tensor("h.0/fc/grad", 0.032)}; };
  ScriptedBackend backend(script);
  run({play.options}, backend); // two looks
  CHECK(script.left_in_bf16.empty());
  play.options.max_steps = 35;
  run(resume(play.options, "latest", {"max_steps"}), backend);
  CHECK(script.left_in_bf16 == std::vector<std::pair<int64_t, int>>{{30, 0}});
}

TEST_CASE("a block left in BF16 stays there after a resume, and the table says so") {
  Playground play;
  play.options.layers = 2;
  play.options.max_steps = 2;
  play.options.precision = PrecisionChoice::fp8;
  {
    std::ostringstream printed;
    Console console(printed, false);
    RankGroup group;
    const auto backend = make_cpu_backend(0);
    Session session({play.options}, choose_device(backend_options(play.options), {}), *backend, group, console);
    session.model->leave_in_bf16(1);
    Trainer(session).run();
    CHECK_FALSE(contains(printed.str(), "block 1 in BF16"));
  }
  Options more = play.options;
  more.max_steps = 3;
  const std::string printed = run_cpu(resume(more, "latest", {"max_steps"})).printed;
  CHECK(contains(printed, "block 1 in BF16"));
  CHECK(contains(printed, "FP8 health"));
}

TEST_CASE(
    "a run whose scales stand still: a warning, then blocks in BF16, and it ends well; a resume repeats nothing") {
  Playground play;
  play.options.precision = PrecisionChoice::fp8;
  play.options.layers = 2, play.options.channels = 16;
  play.options.max_lr = 0.05f, play.options.warmup_steps = 20;   // weights grow by several times
  play.options.fp8_margin = 0, play.options.fp8_interval = 1000; // and no scale follows
  play.options.max_steps = 40;
  const Outcome outcome = run_cpu({play.options});
  CHECK(outcome.code == ExitCode::done);
  CHECK(contains(outcome.printed, "warning: the scale of lm_head/weight lags: "));
  CHECK(contains(outcome.printed, " saturated at step 20, in the warm-up, "));
  CHECK(contains(outcome.printed, "; --fp8_interval 1 lets it follow; these lag too: "));
  CHECK(contains(outcome.printed, "block 0 stays in BF16 from step 31 on: h.0/"));
  CHECK(contains(outcome.printed, "block 1 stays in BF16 from step 31 on: h.1/"));
  CHECK(contains(outcome.printed, "\n  the scale of fc/weight lags: ")); // in the table
  const auto events = metrics_of(play.options, "event");
  const auto lag = std::find_if(events.begin(), events.end(), [](const auto& e) { return e.at("event") == "fp8_lag"; });
  REQUIRE(lag != events.end());
  CHECK(lag->at("step") == 20);
  CHECK(lag->at("tensor") == "lm_head/weight");
  CHECK(lag->at("saturated") > 0.5);
  CHECK(contains(outcome.printed, "warning: " + lag->at("text").get<std::string>() + "\n"));
  CHECK(contains(events_of(play.options), "fp8_lag"));

  play.options.max_steps = 160;
  const Outcome resumed = run_cpu(resume(play.options, "latest", {"max_steps"}));
  CHECK(contains(resumed.printed, "blocks 0, 1 in BF16"));
  CHECK_FALSE(contains(resumed.printed, "stays in BF16 from step"));
  CHECK_FALSE(contains(resumed.printed, "warning: the scale of lm_head/weight lags"));
  CHECK(contains(resumed.printed, "\n  the scale of lm_head/weight lags: ")); // the table of the whole run
  CHECK(contains(resumed.state.fp8_lag, "lm_head/weight 255 16 "));           // each of 16 looks
  const double last_loss = metrics_of(play.options, "step").back().at("loss");
  CHECK(last_loss < 10.82); // log(50257): finite, and it has learnt
}

TEST_CASE("FP8 announces its format, and the table its recipe") {
  Playground play;
  play.options.layers = 3;
  play.options.max_steps = 1;
  play.options.precision = PrecisionChoice::fp8;
  play.options.fp8_bf16_layers = "first,last";
  std::string printed = run_cpu({play.options}).printed;
  CHECK(contains(printed, "FP8 Training Enabled: hybrid (E4M3 forward, E5M2 backward) (emulated on the CPU)\n"));
  CHECK(contains(printed, "hybrid, delayed scaling"));
  CHECK(contains(printed, "blocks 0, 2 in BF16"));
  play.options.fp8_format = Fp8FormatChoice::e4m3, play.options.run_name = "second";
  CHECK(contains(run_cpu({play.options}).printed, "FP8 Training Enabled: e4m3 (E4M3 forward and backward)"));
  play.options.fp8_format = Fp8FormatChoice::e5m2;
  play.options.fp8_recipe = Fp8ScalingRecipe::current, play.options.run_name = "third";
  printed = run_cpu({play.options}).printed;
  CHECK(contains(printed, "FP8 Training Enabled: e5m2 (E5M2 forward and backward, E4M3 weights)"));
  CHECK(contains(printed, "e5m2, current scaling"));
  play.options.precision = PrecisionChoice::fp32, play.options.run_name = "fourth";
  CHECK_FALSE(contains(run_cpu({play.options}).printed, "FP8 Training Enabled"));
}
