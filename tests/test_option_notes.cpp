// Options that do nothing, and what a resumed run does otherwise than before.
#include "engine/train/option_notes.h"

#include <doctest/doctest.h>

#include "tests/contains.h"

using namespace gpt2;

namespace {

using Lines = std::vector<std::string>;

struct Case {
  Options options;
  Precision precision = Precision::fp32;
  bool gpu = false, evaluates = true;

  Lines notes(std::set<std::string> given) const {
    const auto backend = make_cpu_backend(0);
    const RunPlan plan = make_plan(options, resolve_config(options, false), precision, 1000, *backend, 1);
    return notes_on_options_without_effect({.options = options, .checkpoint = "", .given = std::move(given)}, plan, gpu,
                                           evaluates);
  }
};

} // namespace

TEST_CASE("FP8's options without FP8") {
  Case run;
  CHECK(run.notes({"max_lr", "seed"}).empty());
  CHECK(run.notes({"fp8_margin"}) == Lines{"--fp8_margin has no effect without FP8: --use_fp8 turns it on"});
  CHECK(run.notes({"fp8_detail"}) == Lines{"--fp8_detail has no effect without FP8: --use_fp8 turns it on"});
  CHECK(run.notes({"fp8_interval", "fp8_margin", "fp8_recipe"}) ==
        Lines{"--fp8_margin, --fp8_interval and --fp8_recipe have no effect without FP8: --use_fp8 turns it on"});
  run.options.precision = PrecisionChoice::fp8; // asked for: the device has said why not
  CHECK(run.notes({"fp8_margin"}).empty());
  run.precision = Precision::fp8;
  CHECK(run.notes({"fp8_margin", "fp8_amax_history"}).empty());
  run.options.fp8_recipe = Fp8Scaling::current;
  CHECK(
      run.notes({"fp8_margin", "fp8_amax_history", "fp8_interval"}) ==
      Lines{"--fp8_interval and --fp8_amax_history have no effect under --fp8_recipe current, where a scale remembers "
            "nothing"});
}

TEST_CASE("options that others make idle") {
  Case run;
  run.options.max_batch_size = 8, run.options.target_batch_size = 4;
  CHECK(run.notes({"max_batch_size", "batch_size"}).empty()); // --batch_size auto
  run.options.batch_size = 2;
  CHECK(run.notes({"max_batch_size", "batch_size"}) == Lines{"--max_batch_size has no effect beside --batch_size"});

  CHECK(run.notes({"save_best"}).empty());
  run.evaluates = false;
  CHECK(run.notes({"save_best"}) == Lines{"--save_best has no effect without evaluation on --val_data"});
  CHECK(run.notes({}).empty());
  run.options.save_best = false; // --no-save_best says what happens anyway
  CHECK(run.notes({"save_best"}).empty());

  CHECK(run.notes({"cuda_graph", "recompute"}) == Lines{"--cuda_graph and --recompute have no effect on the CPU"});
  CHECK(run.notes({"threads"}).empty());
  run.gpu = true;
  CHECK(run.notes({"threads"}) == Lines{"--threads has no effect on a GPU"});
  CHECK(run.notes({"cuda_graph", "recompute"}).empty());
}

TEST_CASE("a share of cooling down where nothing cools down so") {
  Case run;
  CHECK(run.notes({"wsd_decay_ratio"}) == Lines{"--wsd_decay_ratio has no effect without --lr_schedule wsd"});
  run.options.lr_schedule = Decay::wsd;
  CHECK(run.notes({"wsd_decay_ratio"}).empty());
}

TEST_CASE("a warm-up that is longer than the run") {
  Case run;
  run.options.max_steps = 10, run.options.warmup_steps = 9;
  CHECK(run.notes({"warmup_steps"}).empty());
  run.options.warmup_steps = 10;
  REQUIRE(run.notes({"warmup_steps"}).size() == 1);
  CHECK(contains(run.notes({"warmup_steps"})[0], "--warmup_steps 10 is not over in this run of 10 steps"));
}

TEST_CASE("resume: what changed, old -> new, and where the rate climbs") {
  Options before;
  before.max_lr = 1e-3f, before.warmup_steps = 10, before.max_steps = 100, before.train_data = "a.bin";
  before.run_name = "run";
  Options now = before;
  now.run_name = "other", now.precision = PrecisionChoice::bf16; // told elsewhere
  CHECK(notes_on_resume(before, now, 50).empty());
  CHECK(notes_on_resume(before, now, 5).empty()); // it warms up as it did

  now.max_lr = 5e-4f, now.train_data = "b.bin";
  CHECK(notes_on_resume(before, now, 50) ==
        Lines{"changed since the checkpoint: train_data \"a.bin\" -> \"b.bin\", max_lr 0.001 -> 5e-04"});

  now = before, now.max_steps = 200; // at its lowest after 100 steps
  const Lines longer = notes_on_resume(before, now, 100);
  REQUIRE(longer.size() == 2);
  CHECK(longer[0] == "changed since the checkpoint: max_steps 100 -> 200");
  CHECK(contains(longer[1], "the learning rate climbs again: 1.00e-04 at the checkpoint, "));
  CHECK(contains(longer[1], " at step 101"));
  now.max_steps = 1'000'000'000'000; // not walked one by one
  CHECK(contains(notes_on_resume(before, now, 100).back(), " at step 101"));
  now.warmup_steps = 500'000'000'000; // climbs above 1e-4 after a tenth of that
  CHECK(contains(notes_on_resume(before, now, 100).back(), "1.00e-04 at the checkpoint, 1.00e-04 at step 50000"));
  before.max_steps = now.max_steps, before.warmup_steps = now.warmup_steps;
  CHECK(notes_on_resume(before, now, 100).empty());
  before.max_steps = now.max_steps = INT64_MAX;
  CHECK(notes_on_resume(before, now, INT64_MAX / 2).empty());
  before.max_steps = 100, before.warmup_steps = 10;
  now = before, now.max_steps = 200;
  now.warmup_steps = 150; // below the old rate for a while
  CHECK(contains(notes_on_resume(before, now, 50).back(), "the learning rate climbs again"));
}
