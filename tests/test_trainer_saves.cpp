// What a run saves: the best, the last, markers, pruning, and saves that fail.
#include <doctest/doctest.h>

#include <limits>

#include "engine/checkpoint/names.h"
#include "engine/checkpoint/search.h"
#include "tests/checkpoint_testing.h"
#include "tests/expect_error.h"
#include "tests/trainer_testing.h"

using namespace gpt2;
using namespace gpt2::testing;
namespace fs = std::filesystem;

TEST_CASE("a checkpoint that cannot be written is a warning; the next one is tried, and only the last must be there") {
  Playground play;
  play.options.checkpoint_freq = 2;
  const std::string folder = play.options.checkpoint_dir + "/run";
  Script script;
  script.result = [&](int64_t step) {
    if (step == 3) { // the one of step 4 meets a file where the folder was
      remove_folder(folder);
      std::ofstream(folder) << "in the way";
    }
    if (step == 7) std::filesystem::remove(folder);
    return StepResult{.loss = 1, .grad_norm = 1};
  };
  ScriptedBackend backend(script);
  const Outcome outcome = run({play.options}, backend);
  CHECK(outcome.code == ExitCode::done);
  for (const char* step : {"step 4 | ", "step 6 | "})
    CHECK(contains(outcome.printed, step + std::string("not saved, training continues: cannot create folder ")));
  CHECK(contains(outcome.printed, "step 8 | saved "));
  CHECK(contains(outcome.printed, "step 10 | saved "));
  int failed = 0;
  for (const auto& event : metrics_of(play.options, "event")) failed += event.at("event") == "save_failed";
  CHECK(failed >= 2); // that of step 2 may still be under way
}

TEST_CASE("a last checkpoint that cannot be written, or with --strict_saves any, is exit code 8") {
  for (const bool strict : {false, true}) {
    Playground play;
    play.options.checkpoint_freq = 2;
    play.options.strict_saves = strict;
    int64_t steps = 0;
    Script script;
    script.result = [&](int64_t step) {
      if (step == 3) {
        remove_folder(play.options.checkpoint_dir + "/run");
        std::ofstream(play.options.checkpoint_dir + "/run") << "in the way";
      }
      steps = step;
      return StepResult{.loss = 1, .grad_norm = 1};
    };
    ScriptedBackend backend(script);
    const Error error = expect_error([&] { run({play.options}, backend); });
    CHECK(error.code() == ExitCode::disk);
    CHECK((steps < 10) == strict);
  }
}

TEST_CASE("an error of the loop still completes the save in progress") {
  Playground play;
  play.options.checkpoint_freq = 2;
  Script script;
  script.result = [](int64_t step) {
    if (step == 3) throw Error(ExitCode::device, "the GPU fell off the bus");
    return StepResult{.loss = 1, .grad_norm = 1};
  };
  ScriptedBackend backend(script);
  CHECK(expect_error([&] { run({play.options}, backend); }).code() == ExitCode::device);
  CHECK(find_checkpoint({play.options.checkpoint_dir}, "run", "latest") ==
        play.options.checkpoint_dir + "/run/step_00000002");
}

TEST_CASE("a new best is saved and marked; the one before goes unless it was due") {
  Playground play;
  play.options.max_steps = 6;
  play.options.eval_freq = 1;
  play.options.checkpoint_freq = 2;
  Script script;
  script.val_loss = [](int64_t step) { return step <= 4 ? 10.0 - static_cast<double>(step) : 7.0; }; // best at 4
  ScriptedBackend backend(script);
  const Outcome outcome = run({play.options}, backend);
  CHECK(outcome.state.best_val_loss == doctest::Approx(6.0));
  CHECK(outcome.state.last_val_loss == doctest::Approx(7.0));
  std::vector<int64_t> steps, best, latest;
  for (const CheckpointInfo& info : list_checkpoints({play.options.checkpoint_dir})) {
    steps.push_back(info.step);
    if (info.best) best.push_back(info.step);
    if (info.latest) latest.push_back(info.step);
  }
  CHECK(steps == std::vector<int64_t>{2, 4, 6});
  CHECK(best == std::vector<int64_t>{4});
  CHECK(latest == std::vector<int64_t>{6});
}

TEST_CASE("without --save_best a new best saves nothing by itself; a checkpoint that is due is still marked") {
  Playground play;
  play.options.max_steps = 6;
  play.options.eval_freq = 1;
  play.options.checkpoint_freq = 4;
  play.options.save_best = false;
  Script script;
  script.val_loss = [](int64_t step) { return step <= 5 ? 10.0 - static_cast<double>(step) : 7.0; }; // best at 5
  ScriptedBackend backend(script);
  const Outcome outcome = run({play.options}, backend);
  CHECK(outcome.state.best_val_loss == doctest::Approx(5.0));
  CHECK_FALSE(contains(outcome.printed, "step 5 | saved"));
  const auto saved = list_checkpoints({play.options.checkpoint_dir});
  REQUIRE(saved.size() == 2);
  CHECK(saved[0].step == 4);
  CHECK(saved[0].best);
  CHECK(saved[1].step == 6);
  CHECK_FALSE(resume(play.options, "latest").options.save_best); // a resumed run remembers
}

TEST_CASE("the last step is saved once, and marked if it is the best, with --save_best and without") {
  for (const bool save_best : {true, false}) {
    Playground play;
    play.options.max_steps = 4, play.options.eval_freq = 2, play.options.checkpoint_freq = 2;
    play.options.save_best = save_best;
    Script script;
    script.val_loss = [](int64_t step) { return 10.0 - static_cast<double>(step); };
    ScriptedBackend backend(script);
    const Outcome outcome = run({play.options}, backend);
    CHECK(contains(outcome.printed, "/run/step_00000004 (best)"));
    CHECK_FALSE(contains(outcome.printed, "/run/step_00000004\n"));
  }
}

TEST_CASE("a marker that cannot be written is a warning: the checkpoint is there") {
  Playground play;
  play.options.checkpoint_freq = 4;
  std::filesystem::create_directories(play.options.checkpoint_dir + "/latest");
  Script script;
  ScriptedBackend backend(script);
  const Outcome outcome = run({play.options}, backend);
  CHECK(outcome.code == ExitCode::done);
  CHECK(contains(outcome.printed, "step 10 | saved "));
  CHECK(contains(outcome.printed, "warning: cannot replace "));
}

TEST_CASE("--list_checkpoints shows a loss of an earlier step with that step, and none where none was measured") {
  Playground play;
  play.options.max_steps = 7;
  play.options.eval_freq = 4;
  play.options.checkpoint_freq = 3;
  Script script;
  script.val_loss = [](int64_t step) { return 3.0 + static_cast<double>(step); };
  ScriptedBackend backend(script);
  run({play.options}, backend);
  std::istringstream listed(describe_checkpoints({play.options.checkpoint_dir}));
  for (const char* beginning : {"run run | 1x8", "step        3 | val loss         -           | fp32 |",
                                "step        4 | val loss  7.000000           | fp32 |",
                                "step        6 | val loss  7.000000 at step 4 | fp32 |",
                                "step        7 | val loss 10.000000           | fp32 |"}) {
    std::string line;
    std::getline(listed, line);
    CHECK(line.substr(0, std::string(beginning).size()) == beginning);
  }
}

TEST_CASE("a validation loss that is not finite is never the best") {
  Playground play;
  play.options.max_steps = 3;
  play.options.eval_freq = 1;
  Script script;
  script.val_loss = [](int64_t step) { return step == 2 ? std::numeric_limits<double>::quiet_NaN() : 4.0 + step; };
  ScriptedBackend backend(script);
  CHECK(run({play.options}, backend).state.best_val_loss == doctest::Approx(5.0));
}

TEST_CASE("the best loss on other validation data does not count any more") {
  Playground play;
  play.options.max_steps = 3, play.options.eval_freq = 1, play.options.keep_checkpoints = 0;
  Script script;
  script.val_loss = [](int64_t step) { return static_cast<double>(step); };
  ScriptedBackend backend(script);
  CHECK(run({play.options}, backend).state.best_val_loss == doctest::Approx(1.0));
  play.options.max_steps = 4;
  const Outcome same = run(resume(play.options, "latest", {"max_steps"}), backend);
  CHECK_FALSE(contains(same.printed, "no longer counts"));
  CHECK(same.state.best_val_loss == doctest::Approx(1.0));
  play.options.max_steps = 5, play.options.eval_sequences = 2;
  const Outcome other = run(resume(play.options, "latest", {"max_steps", "eval_sequences"}), backend);
  CHECK(contains(other.printed, "the best loss so far, 1.0000, no longer counts"));
  CHECK(other.state.best_val_loss == doctest::Approx(5.0));
  CHECK(fs::exists(play.options.checkpoint_dir + "/run/step_00000001")); // the best on the data before
}

TEST_CASE("by default the newest checkpoints, the best and some milestones stay, and one line says so") {
  Playground play;
  play.options.max_steps = 30;
  play.options.checkpoint_freq = 1;
  play.options.eval_freq = 1;
  Script script;
  script.val_loss = [](int64_t step) { return step == 4 ? 1.0 : 2.0; };
  ScriptedBackend backend(script);
  const auto steps = [&] {
    std::vector<int64_t> kept;
    for (const std::string& path : checkpoints_in(play.options.checkpoint_dir + "/run")) kept.push_back(step_of(path));
    return kept;
  };
  const Outcome outcome = run({play.options}, backend);
  CHECK(steps() == std::vector<int64_t>{4, 6, 12, 18, 24, 28, 29, 30});
  CHECK(contains(outcome.printed, "/run, every 1 step; kept: the newest 3, the best and every 6 steps"));
  play.options.max_steps = 60; // the milestones follow the new length
  const Outcome longer = run(resume(play.options, "latest", {"max_steps"}), backend);
  CHECK(steps() == std::vector<int64_t>{4, 12, 24, 36, 48, 58, 59, 60});
  CHECK(contains(longer.printed, "kept: the newest 3, the best and every 12 steps"));
  remove_folder(play.options.checkpoint_dir);
  play.options.max_steps = 30, play.options.keep_checkpoints = 0;
  const std::string all = run({play.options}, backend).printed;
  CHECK(contains(all, "; all are kept"));
  CHECK(steps().size() == 30);
}
