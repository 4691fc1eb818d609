// Which checkpoints of a run stay on the disk, and that nothing else ever goes.
#include "engine/checkpoint/pruning.h"

#include <doctest/doctest.h>

#include "engine/checkpoint/names.h"
#include "tests/checkpoint_testing.h"
#include "tests/contains.h"

using namespace gpt2;
using namespace gpt2::testing;
namespace fs = std::filesystem;

namespace {

using Steps = std::vector<int64_t>;

std::vector<KeptStep> every_100(int64_t last) {
  std::vector<KeptStep> steps;
  for (int64_t step = 100; step <= last; step += 100) steps.push_back({.step = step});
  return steps;
}

Steps steps_in(const std::string& folder) {
  Steps steps;
  for (const CheckpointInfo& info : list_run(folder)) steps.push_back(info.step);
  return steps;
}

// A state as --save_best leaves it: evaluated at this very step, and the best so far.
TrainState best_state(int64_t step, int64_t checkpoint_freq, int64_t max_steps) {
  TrainState state = state_of(step, 4.0);
  state.best_val_loss = 4.0;
  state.last_val_step = step;
  state.options_toml = "max_steps = " + std::to_string(max_steps) +
                       "\ncheckpoint_freq = " + std::to_string(checkpoint_freq) + "\nsave_best = true\n";
  return state;
}

} // namespace

TEST_CASE("the rule: all, the newest, multiples, what is marked") {
  CHECK(steps_to_remove(every_100(500), {}).empty());
  CHECK(steps_to_remove(every_100(500), {.newest = 2}) == Steps{100, 200, 300});
  CHECK(steps_to_remove(every_100(500), {.newest = 1}) == Steps{100, 200, 300, 400});
  CHECK(steps_to_remove(every_100(500), {.newest = 7}).empty());
  CHECK(steps_to_remove(every_100(600), {.newest = 1, .every = 300}) == Steps{100, 200, 400, 500});
  CHECK(steps_to_remove(every_100(500), {.every = 200}).empty()); // nothing says that any should go
  CHECK(steps_to_remove({}, {.newest = 1}).empty());
  CHECK(steps_to_remove(every_100(500), {.newest = 1, .before_cooldown = 200}) == Steps{100, 300, 400});

  std::vector<KeptStep> steps = every_100(500);
  steps[0].marked = true; // the best
  CHECK(steps_to_remove(steps, {.newest = 1}) == Steps{200, 300, 400});
  steps[1].only_best = steps[4].only_best = true; // a best of old, and the newest one
  CHECK(steps_to_remove(steps, {}) == Steps{200});
  CHECK(steps_to_remove(steps, {.every = 200}).empty());
}

TEST_CASE("pruning removes a run's own old checkpoints and nothing of another run") {
  TemporaryFolder root;
  StateOnlyModel model(1);
  Run run(root.path()), other(root.path(), "other");
  for (int64_t step = 100; step <= 500; step += 100) {
    run.save(model, state_of(step), step == 200);
    other.save(model, state_of(step), false);
  }
  const Pruned planned = prune(run.path(), {.newest = 2}, true);
  CHECK(planned.removed == std::vector<std::string>{root / "test-run/step_00000100", root / "test-run/step_00000300"});
  CHECK(steps_in(run.path()).size() == 5);
  const Pruned done = prune(run.path(), {.newest = 2});
  CHECK(done.removed == planned.removed);
  CHECK(done.why_not.empty());
  CHECK(steps_in(run.path()) == Steps{200, 400, 500});
  CHECK(steps_in(other.path()).size() == 5);
  CHECK(run.find("best") == root / "test-run/step_00000200");
  CHECK(names_in(run.path()) ==
        std::vector<std::string>{"best", "latest", "step_00000200", "step_00000400", "step_00000500"});
  CHECK(prune(run.path(), {.newest = 2}).removed.empty());
  CHECK(prune(root / "nowhere", {.newest = 1}).removed.empty());
}

TEST_CASE("while the newest checkpoint is not valid nothing is removed") {
  TemporaryFolder root;
  StateOnlyModel model(1);
  Run run(root.path());
  for (int64_t step = 100; step <= 300; step += 100) run.save(model, state_of(step), false);
  fs::resize_file(root / "test-run/step_00000300/state.h5", 1000);
  const Pruned pruned = prune(run.path(), {.newest = 1});
  CHECK(pruned.removed.empty());
  CHECK(contains(pruned.why_not, "no old checkpoint is removed while the newest one is not valid"));
  CHECK(contains(pruned.why_not, "step_00000300"));
  CHECK(steps_in(run.path()).size() == 3);
}

TEST_CASE("a checkpoint loses its name before its files: a kill in between leaves nothing that looks like one") {
  TemporaryFolder root;
  StateOnlyModel model(1);
  Run run(root.path());
  for (int64_t step = 100; step <= 300; step += 100) run.save(model, state_of(step), false);
  // As a killed process leaves it: the rename has happened, some files are gone.
  const std::string left = root / "test-run/step_00000100.tmp-" + std::to_string(::getpid());
  fs::rename(root / "test-run/step_00000100", left);
  fs::remove(left + "/options.toml");
  CHECK(steps_in(run.path()) == Steps{200, 300});
  run.save(model, state_of(400), false);
  CHECK_FALSE(fs::exists(left));
}

TEST_CASE(
    "with every save a former best that was saved for that alone goes, whichever process saved it; what was due or "
    "final stays") {
  TemporaryFolder root;
  StateOnlyModel model(1);
  for (const int64_t life : {1, 2}) {
    Run run(root.path()); // ends its pruning
    if (life == 2) {
      run.save(model, best_state(190, 100, 900), true);
      continue;
    }
    run.save(model, best_state(100, 100, 900), true); // due
    run.save(model, best_state(150, 100, 900), true);
    run.save(model, best_state(170, 100, 170), true); // the last step of its run, which was made longer later
    TrainState stopped = best_state(180, 100, 900);   // by a signal: never the best
    stopped.last_val_step = 150;
    run.save(model, stopped, false);
  }
  CHECK(steps_in(root / "test-run") == Steps{100, 170, 180, 190}); // 190 is the best
}

TEST_CASE("room for the next checkpoint") {
  CHECK(disk_space_warning("run", 1000, 1000).empty());
  const std::string line = disk_space_warning("checkpoints_fp8/run", 3'000'000'000, 1'200'000'000);
  CHECK(contains(line,
                 "the next checkpoint in checkpoints_fp8/run needs 3.0 GB, and 1.2 GB are free: 1.8 GB are missing"));
}
