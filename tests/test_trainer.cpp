// The training loop: its calls in order, what it prints and logs, skipped steps, the learning rate.
#include <doctest/doctest.h>

#include <limits>

#include "engine/checkpoint/search.h"
#include "engine/run/evaluation.h"
#include "engine/run/summary.h"
#include "tests/expect_error.h"
#include "tests/trainer_testing.h"

using namespace gpt2;
using namespace gpt2::testing;
namespace fs = std::filesystem;

TEST_CASE("a step is its micro-steps, the update, then the result") {
  Playground play;
  play.options.max_steps = 2;
  Script script;
  ScriptedBackend backend(script);
  const Outcome outcome = run({play.options}, backend);
  CHECK(outcome.code == ExitCode::done);
  CHECK(script.calls == std::vector<std::string>{"micro 0/2", "micro 1/2", "update", "result", "micro 0/2", "micro 1/2",
                                                 "update", "result"});
  CHECK(outcome.state.step == 2);
  CHECK(outcome.state.loader_position == 8);
  for (const auto& inputs : script.inputs) CHECK(inputs.size() == 2 * 8);
  CHECK(script.inputs[0] != script.inputs[1]);
  REQUIRE(script.rates.size() == 2);
  CHECK(script.rates[0] == learning_rate({.max_lr = defaults_for(config_by_name("nano")).max_lr, .max_steps = 2}, 0));
}

TEST_CASE("--eval_only prints a loss that is not finite, and ends with exit 5") {
  Playground play;
  Script script;
  script.val_loss = [](int64_t) { return std::numeric_limits<double>::quiet_NaN(); };
  ScriptedBackend backend(script);
  std::ostringstream printed;
  Console console(printed, false);
  RankGroup group;
  const Error error = expect_error([&] {
    evaluate_only({play.options}, choose_device(backend_options(play.options), {}), backend, group, console);
  });
  CHECK(error.code() == ExitCode::numerics);
  CHECK(contains(printed.str(), "val loss: nan"));
}

TEST_CASE("the share of the roofline is printed where the backend knows it") {
  Playground play;
  play.options.max_steps = 1;
  Script script;
  ScriptedBackend backend(script);
  CHECK_FALSE(contains(run({play.options}, backend).printed, "SOL:"));
  backend.roofline_ = 1e6;
  play.options.run_name = "again";
  CHECK(contains(run({play.options}, backend).printed, "| SOL: "));
}

TEST_CASE("the epoch counts passes over the data") {
  Playground play; // 40 sequences, 4 a step
  play.options.max_steps = 21;
  Script script;
  ScriptedBackend backend(script);
  const auto lines = loss_lines(run({play.options}, backend).printed);
  REQUIRE(lines.size() == 21);
  CHECK(contains(lines[9], "step   10 | epoch 0 |"));
  CHECK(contains(lines[10], "step   11 | epoch 1 |"));
  CHECK(contains(lines[20], "step   21 | epoch 2 |"));
}

TEST_CASE("skipped steps are explained, and too many in a row end the run with exit 5 and without a checkpoint") {
  Playground play;
  play.options.max_skipped = 3;
  Script script;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  script.result = [&](int64_t step) {
    if (step == 2) return StepResult{.loss = 9, .grad_norm = 1, .verdict = Verdict::skipped_loss_z};
    if (step >= 4) return StepResult{.loss = nan, .grad_norm = nan, .verdict = Verdict::skipped_nonfinite};
    return StepResult{.loss = 1, .grad_norm = 1};
  };
  ScriptedBackend backend(script);
  std::ostringstream printed;
  Console console(printed, false);
  RankGroup group;
  Session session({play.options}, {}, backend, group, console);
  const Error error = expect_error([&] { Trainer(session).run(); });
  CHECK(error.code() == ExitCode::numerics);
  CHECK(mentions(error, "step 6"));
  CHECK(mentions(error, "not finite"));
  CHECK(session.state.step == 6); // 2 is skipped, 3 is not, 4 to 6 are
  CHECK(contains(printed.str(), "step 2 skipped"));
  CHECK(contains(printed.str(), "--skip_loss_z"));
  CHECK(contains(printed.str(), "(1 in a row, stops at 3)"));
  CHECK(list_checkpoints({play.options.checkpoint_dir}).empty());
}

TEST_CASE("a run that is refused leaves no log folder") {
  Playground play;
  play.options.batch_size = 3; // of 4
  CHECK_THROWS_AS(run_cpu({play.options}), Error);
  CHECK_FALSE(fs::exists(play.options.log_dir + "/run"));
}

TEST_CASE("the last step of a run trains at the lowest rate") {
  Playground play;
  play.options.max_steps = 20;
  play.options.max_lr = 1e-2f, play.options.min_lr_ratio = 0.25f;
  for (const Decay schedule : {Decay::cosine, Decay::linear, Decay::wsd}) {
    CAPTURE(name_of(schedule));
    play.options.lr_schedule = schedule;
    play.options.run_name = name_of(schedule);
    Script script;
    ScriptedBackend backend(script);
    run({play.options}, backend);
    REQUIRE(script.rates.size() == 20);
    CHECK(script.rates[18] > 0.25f * 1e-2f);
    CHECK(script.rates[19] == 0.25f * 1e-2f);
  }
}

TEST_CASE("the start-up table names what matters, and each fallback has a line") {
  Playground play;
  play.options.max_steps = 1;
  play.options.val_data.clear();
  play.options.eval_freq = 10;
  play.options.precision = PrecisionChoice::bf16;
  const std::string printed = run_cpu({play.options}).printed;
  for (const char* part : {"1 layer, 1 head, 8 channels", "parameters", "FP32", "train.bin: 321 tokens", "40 sequences",
                           "4 sequences = 2 per micro-batch x 2 accumulated x 1 rank", "AdamW", "memory", "checkpoints",
                           "note: no --val_data", "note: the CPU engine has no BF16"}) {
    CAPTURE(part);
    CHECK(contains(printed, part));
  }
}

TEST_CASE("logs: one metrics line a step and event files, continued on resume, no step twice") {
  Playground play;
  play.options.max_steps = 4;
  play.options.checkpoint_freq = 2;
  run_cpu({play.options});
  fs::remove_all(play.options.checkpoint_dir + "/run/step_00000004"); // as if killed before it was saved
  run_cpu(resume(play.options, "2"));
  const auto steps = metrics_of(play.options, "step");
  REQUIRE(steps.size() == 4);
  for (int i = 0; i < 4; ++i) CHECK(steps[static_cast<size_t>(i)].at("step") == i + 1);
  CHECK(steps[3].at("verdict") == "applied");
  const auto runs = metrics_of(play.options, "run"); // one for each life
  REQUIRE(runs.size() == 2);
  CHECK((runs[0].at("event") == "start" && runs[0].at("step") == 0));
  CHECK((runs[1].at("event") == "resume" && runs[1].at("step") == 2));
  int event_files = 0;
  for (const auto& entry : fs::directory_iterator(play.options.log_dir + "/run")) {
    event_files += contains(entry.path().filename().string(), "tfevents");
  }
  CHECK(event_files == 2);
}

TEST_CASE("the built-in sample: learning starts, and the closing lines name the grammar's entropy") {
  Playground play;
  play.options.train_data.clear(), play.options.val_data.clear();
  play.options.max_steps = 3;
  play.options.eval_freq = 3;
  play.options.eval_sequences = 4;
  play.options.sample_tokens = 4;
  const Outcome outcome = run_cpu({play.options});
  CHECK(contains(outcome.printed, "note: no --train_data"));
  CHECK(contains(outcome.printed, "| sample: "));
  CHECK(contains(outcome.printed, "the grammar's own entropy is"));
  CHECK(outcome.state.best_val_loss < 10.9); // ln(50257) = 10.8 plus the noise of initialization
}

TEST_CASE("a GPU at its power limit is normal; one that is throttled is told, once") {
  Playground play;
  play.options.max_steps = 30;
  Script script;
  ScriptedBackend backend(script);
  script.device_metrics = {{"gpu/throttled", 0}, {"gpu/power_capped", 1}};
  CHECK_FALSE(contains(run({play.options}, backend).printed, "throttled"));
  play.options.run_name = "again";
  script.device_metrics = {{"gpu/throttled", 1}, {"gpu/power_capped", 1}};
  const std::string printed = run({play.options}, backend).printed;
  const size_t told = printed.find("the GPU is throttled");
  REQUIRE(told != std::string::npos);
  CHECK(printed.find("the GPU is throttled", told + 1) == std::string::npos);
}

TEST_CASE("one step of warm-up is one step") {
  Playground play;
  play.options.max_steps = 2;
  CHECK(contains(run_cpu({play.options}).printed, "warm-up 1 step, "));
  play.options.run_name = "again", play.options.warmup_steps = 2;
  CHECK(contains(run_cpu({play.options}).printed, "warm-up 2 steps, "));
}
