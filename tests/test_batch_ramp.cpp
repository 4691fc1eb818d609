#include "engine/options/batch_ramp.h"

#include <doctest/doctest.h>

#include <climits>

#include "engine/base/error.h"
#include "engine/options/run_plan.h"
#include "tests/contains.h"
#include "tests/expect_error.h"

using namespace gpt2;

TEST_CASE("sequences per step, and their sum") {
  const BatchRamp ramp("128@0, 256@2000,512@6000");
  CHECK(ramp.at(0) == 128);
  CHECK(ramp.at(1999) == 128);
  CHECK(ramp.at(2000) == 256);
  CHECK(ramp.at(INT64_MAX) == 512);
  CHECK(ramp.last() == 512);
  CHECK(ramp.common_divisor() == 128);
  CHECK(BatchRamp("96@0,40@3").common_divisor() == 8);
  double sum = 0;
  for (int64_t step = 0; step < 7000; ++step) {
    REQUIRE(ramp.sequences_before(step) == sum);
    REQUIRE(ramp.steps_for(sum) == std::max<int64_t>(1, step));
    REQUIRE(ramp.steps_for(sum + 1) == step + 1);
    sum += ramp.at(step);
  }
  CHECK(BatchRamp(7).sequences_before(3) == 21);
  CHECK(to_text(ramp) == "128 sequences, 256 from step 2001, 512 from step 6001");
}

TEST_CASE("a plan by the ramp: micro-batches of every phase, epochs, the last step") {
  const auto backend = make_cpu_backend(0);
  Options options;
  options.batch_ramp = "8@0,24@10,48@20";
  options.num_epochs = 2;
  const auto plan_of = [&](int ranks) {
    return make_plan(options, resolve_config(options, false), Precision::fp32, 1000, *backend, ranks);
  };
  const RunPlan plan = plan_of(2);
  CHECK(plan.target_batch_size == 48);
  CHECK(plan.options.target_batch_size == 48);
  CHECK(plan.max_steps == 55); // 80 + 240 + 35 x 48 = 2000
  for (const int64_t step : {0, 10, 20})
    CHECK(plan.accumulation_at(step) * plan.batch.batch_size * 2 == plan.ramp.at(step));
  CHECK(contains(expect_error([&] { plan_of(3); }).what(), "--batch_ramp: 8@0 is not a multiple of 3 ranks"));
  options.batch_size = 16;
  const Error error = expect_error([&] { plan_of(1); });
  CHECK(error.code() == ExitCode::usage);
  CHECK(contains(error.what(), "--batch_ramp: 8@0 is not a multiple of --batch_size 16"));
  options.batch_size = 0, options.batch_ramp = "8@0,2000@10";
  CHECK(contains(expect_error([&] { plan_of(1); }).what(), "is more than the 1000 sequences"));
}
