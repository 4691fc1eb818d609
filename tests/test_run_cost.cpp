// What a planned run costs: checkpoints counted as pruning leaves them, however long the run is.
#include "tools/plan/run_cost.h"

#include <doctest/doctest.h>

#include "engine/checkpoint/pruning.h"

using namespace gpt2;

namespace {

RunPlan plan_of(const Options& options) {
  const auto backend = make_cpu_backend(0);
  return make_plan(options, resolve_config(options, false), Precision::fp32, 1000, *backend, 1);
}

CheckpointCost checkpoints_of(const Options& options, int64_t done) {
  return cost_of(plan_of(options), done, 1000, 0, std::nullopt).checkpoints;
}

struct Listed {
  int64_t kept, removed;
};

// Save by save, as a run makes them.
Listed list_saves(const Options& options, int64_t done) {
  std::vector<KeptStep> saves;
  for (int64_t step = done + 1; step < options.max_steps; ++step) {
    if (options.checkpoint_freq > 0 && step % options.checkpoint_freq == 0) saves.push_back({.step = step});
  }
  saves.push_back({.step = options.max_steps, .marked = true});
  const KeepRule rule{
      .newest = options.keep_checkpoints, .every = options.keep_every, .due_every = options.checkpoint_freq};
  const auto removed = static_cast<int64_t>(steps_to_remove(saves, rule).size());
  return {static_cast<int64_t>(saves.size()) - removed, removed};
}

} // namespace

TEST_CASE("a disk too small for all checkpoints of a run") {
  const CheckpointCost cost{.bytes_each = 3'000'000'000, .kept = 3, .most = 4};
  CHECK(checkpoint_space_warning(cost, "checkpoints_fp8/run", 12'000'000'000) == "");
  CHECK(checkpoint_space_warning(cost, "checkpoints_fp8/run", 10'000'000'000) ==
        "the disk of checkpoints_fp8/run will be full before the run ends: 4 checkpoints of 3.0 GB need 12.0 GB, and "
        "10.0 GB are free, 2.0 GB short (free some disk space; --keep_checkpoints N keeps fewer)");
}

TEST_CASE("checkpoints are counted as pruning leaves them") {
  Options options;
  options.max_steps = 97;
  RunPlan plan = plan_of(options);
  for (const int64_t end : {1, 10, 96, 97})
    for (const int64_t done : {0, 1, 9, 10, 50, 96, 97})
      for (const int64_t freq : {0, 1, 4, 10, 97, 200})
        for (const int64_t newest : {0, 1, 3, 1000})
          for (const int64_t every : {0, 1, 6, 10, 40}) {
            options.max_steps = plan.max_steps = end;
            options.checkpoint_freq = freq, options.keep_checkpoints = newest, options.keep_every = every;
            plan.options = options;
            const Listed listed = list_saves(options, done);
            const CheckpointCost counted = cost_of(plan, done, 1000, 0, std::nullopt).checkpoints;
            CAPTURE(end);
            CAPTURE(done);
            CAPTURE(freq);
            CAPTURE(newest);
            CAPTURE(every);
            REQUIRE(counted.kept == listed.kept);
            REQUIRE(counted.most == listed.kept + (listed.removed > 0 ? 1 : 0));
          }
}

TEST_CASE("a run of 10^12 steps has its cost in no time and no memory") {
  Options options;
  options.max_steps = 1'000'000'000'000, options.checkpoint_freq = 1, options.keep_checkpoints = 0;
  CHECK(checkpoints_of(options, 0).kept == options.max_steps);
  CHECK(checkpoints_of(options, 0).bytes() == INT64_MAX); // more than that
  options.keep_checkpoints = 5, options.keep_every = 1'000'000'000;
  CHECK(checkpoints_of(options, 0).kept == 1004); // 5, the last one a multiple, and 999 before them
  options.checkpoint_freq = INT64_MAX, options.keep_every = INT64_MAX;
  CHECK(checkpoints_of(options, 0).kept == 1);
}
