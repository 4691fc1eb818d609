// Options that do nothing, and what a resumed run does otherwise than before.
#include "engine/run/option_notes.h"

#include <doctest/doctest.h>

#include <iterator>
#include <sstream>

#include "engine/options/option_fields.h"
#include "engine/options/parse_options.h"
#include "tests/contains.h"
#include "tests/parse_words.h"

using namespace gpt2;

namespace {

using Lines = std::vector<std::string>;

struct Case {
  Precision precision = Precision::fp32;
  bool gpu = false, evaluates = true;
  std::string checkpoint = {};
  int ranks = 1;

  // On a command line of these words.
  Lines notes(const std::string& flags) const {
    std::istringstream stream(flags);
    const CommandLine line = parse_words(Lines(std::istream_iterator<std::string>(stream), {}));
    RunSettings settings{.options = line.options, .given = line.given, .typed = line.typed};
    if (!checkpoint.empty()) settings.resumed = ResumePoint{.checkpoint = checkpoint};
    return notes(settings);
  }
  Lines notes(const RunSettings& start) const {
    const auto backend = make_cpu_backend(0);
    const RunPlan plan =
        make_plan(start.options, resolve_config(start.options, false), precision, 1000, *backend, ranks);
    return notes_on_options_without_effect(start, plan, gpu, evaluates);
  }
};

} // namespace

TEST_CASE("FP8's options without FP8") {
  Case run;
  CHECK(run.notes("--max_lr 1e-3 --seed 3").empty());
  CHECK(run.notes("--fp8_margin 2") == Lines{"--fp8_margin has no effect without FP8: --use_fp8 turns it on"});
  CHECK(run.notes("--fp8_detail") == Lines{"--fp8_detail has no effect without FP8: --use_fp8 turns it on"});
  CHECK(run.notes("--fp8_interval 2 --fp8_margin 2 --fp8_recipe current") ==
        Lines{"--fp8_margin, --fp8_interval and --fp8_recipe have no effect without FP8: --use_fp8 turns it on"});
  CHECK(run.notes("--precision fp8 --fp8_margin 2").empty()); // asked for: the device has said why not
  run.precision = Precision::fp8;
  CHECK(run.notes("--fp8_margin 2 --fp8_amax_history 8").empty());
  CHECK(
      run.notes("--fp8_recipe current --fp8_margin 2 --fp8_amax_history 8 --fp8_interval 2") ==
      Lines{"--fp8_interval and --fp8_amax_history have no effect with --fp8_recipe current, which keeps no history"});
  CHECK(run.notes("--fp8_detail").empty());
  CHECK(run.notes("--max_steps 5 --fp8_bf16_steps 5") ==
        Lines{"--fp8_bf16_steps 5: FP8 does not begin in this run of 5 steps"});
}

TEST_CASE("a file that names every option as it is anyway is no reason for a note") {
  const Case run{.evaluates = false};
  std::set<std::string> all;
  for (const OptionField& field : option_fields()) all.insert(field.name);
  CHECK(run.notes({.options = {}, .given = all}).empty());
  CHECK(run.notes("--no-log_ranks --no-share_gpu --no-allow_other_data --no-fp8_detail").empty());
  CHECK(run.notes("--cuda_graph --zero 1") == // typed, they are a wish
        Lines{"--zero has no effect with one rank", "--cuda_graph has no effect on the CPU"});
}

TEST_CASE("options that others make idle") {
  Case run;
  CHECK(run.notes("--target_batch_size 4 --max_batch_size 8").empty()); // --batch_size auto
  CHECK(run.notes("--target_batch_size 4 --max_batch_size 8 --batch_size 2") ==
        Lines{"--max_batch_size has no effect with --batch_size"});
  CHECK(run.notes("--hf_cache cache") == Lines{"--hf_cache has no effect without --init_from"});
  CHECK(run.notes("--hellaswag_tasks 3") == Lines{"--hellaswag_tasks has no effect without --hellaswag_freq"});
  CHECK(run.notes("--keep_every 5 --keep_checkpoints all") ==
        Lines{"--keep_every has no effect with --keep_checkpoints all"});

  CHECK(run.notes("--prompt x --top_k 3 --sample_seed 4").empty());
  CHECK(run.notes("--temperature 0 --prompt x --top_k 3") ==
        Lines{"--top_k has no effect with --temperature 0: the likeliest token is taken"});
  CHECK(run.notes("--prompt x --top_k 1 --temperature 0.7 --sample_seed 4") ==
        Lines{"--temperature and --sample_seed have no effect with --top_k 1: the likeliest token is taken"});
  CHECK(run.notes("--prompt x --top_k 1").empty());
  CHECK(run.notes("--sample_tokens 0 --prompt x --top_k 3") ==
        Lines{"--prompt and --top_k have no effect with --sample_tokens 0"});

  CHECK(run.notes("--histogram_freq 3").empty());
  CHECK(run.notes("--histogram_freq 3 --no-use_tensorboard") ==
        Lines{"--histogram_freq has no effect without TensorBoard's files"});

  CHECK(run.notes("--wsd_decay_ratio 0.3") == Lines{"--wsd_decay_ratio has no effect without --lr_schedule wsd"});
  CHECK(run.notes("--wsd_decay_ratio 0.3 --lr_schedule wsd --min_lr_ratio 0.2").empty());
  CHECK(run.notes("--wsd_decay_ratio 0 --lr_schedule wsd --min_lr_ratio 0.2") ==
        Lines{"--min_lr_ratio has no effect with --wsd_decay_ratio 0"});
  CHECK(run.notes("--min_lr_ratio 0.3").empty());
  CHECK(run.notes("--min_lr_ratio 0.3 --lr_schedule constant") ==
        Lines{"--min_lr_ratio has no effect with --lr_schedule constant"});
}

TEST_CASE("evaluation that there is not") {
  Case run;
  CHECK(run.notes("--save_best --eval_sequences 3").empty());
  CHECK(run.notes("--eval_freq 0 --train_data t.bin --val_data v.bin") ==
        Lines{"--val_data has no effect with --eval_freq 0"});
  CHECK(run.notes("--eval_freq 0 --train_data t.bin --val_data v.bin --eval_at_start").empty());
  run.evaluates = false;
  CHECK(run.notes("--save_best") == Lines{"--save_best has no effect without evaluation on --val_data"});
  CHECK(run.notes("").empty());
  CHECK(run.notes("--no-save_best").empty()); // says what happens anyway
  CHECK(run.notes("--eval_sequences 3") == Lines{"--eval_sequences has no effect without evaluation"});
}

TEST_CASE("a new run and a resumed one") {
  Case run;
  CHECK(run.notes("--allow_other_data") == Lines{"--allow_other_data has no effect without --resume"});
  CHECK(run.notes("--eval_at_start").empty());
  run.checkpoint = "checkpoints_fp8/run/step_00000010";
  CHECK(run.notes("--allow_other_data").empty());
  CHECK(run.notes("--eval_at_start") ==
        Lines{"--eval_at_start has no effect with --resume: it evaluates before step 1"});
}

TEST_CASE("what --eval_only does not read, where it is typed") {
  RunSettings start{.options = {}, .given = {"max_lr", "batch_size", "prompt"}};
  CHECK(notes_on_flags_without_effect_on_evaluation(start).empty()); // of the run's option file
  start.typed = {"batch_size", "eval_sequences", "seq_len", "precision"};
  CHECK(notes_on_flags_without_effect_on_evaluation(start).empty());
  start.typed = {"batch_size", "max_lr", "prompt", "log_freq", "keep_every", "max_skipped"}; // one of each group
  CHECK(notes_on_flags_without_effect_on_evaluation(start) ==
        Lines{"--max_lr, --prompt, --log_freq, --keep_every and --max_skipped have no effect with --eval_only"});
}

TEST_CASE("options of many ranks, of the GPU and of the CPU") {
  Case run;
  CHECK(run.notes("--zero 0 --grad_reduce bf16 --share_gpu") ==
        Lines{"--zero, --grad_reduce and --share_gpu have no effect with one rank"});
  CHECK(run.notes("--no-cuda_graph --recompute block --timeline t.json") ==
        Lines{"--cuda_graph, --recompute and --timeline have no effect on the CPU"});
  CHECK(run.notes("--threads 1").empty());
  const Lines waiting = run.notes("--threads 4096"); // more than any machine's cores
  REQUIRE(waiting.size() == 1);
  CHECK(waiting[0].starts_with("--threads 4096 on "));
  CHECK(waiting[0].ends_with(": threads wait for each other; --threads auto takes all cores"));
  run.ranks = 2;
  CHECK(run.notes("--zero 0 --grad_reduce bf16 --share_gpu") == Lines{"--share_gpu has no effect on the CPU"});
  run.gpu = true;
  CHECK(run.notes("--zero 0 --share_gpu --no-cuda_graph --recompute block").empty());
  CHECK(run.notes("--threads 1") == Lines{"--threads has no effect on a GPU"});
}

TEST_CASE("a timeline of steps that the run does not have") {
  Case run{.gpu = true};
  CHECK(run.notes("--timeline t.json --max_steps 4").empty()); // the first of its two steps
  CHECK(run.notes("--timeline t.json --max_steps 3") ==
        Lines{"--timeline writes nothing: steps 4 and 5 are not in this run of 3 steps"});
  run.precision = Precision::fp8;
  CHECK(run.notes("--timeline t.json --max_steps 13 --fp8_bf16_steps 10") ==
        Lines{"--timeline writes nothing: steps 14 and 15 are not in this run of 13 steps"});
}

TEST_CASE("a warm-up that is longer than the run") {
  const Case run;
  CHECK(run.notes("--max_steps 10 --warmup_steps 9").empty());
  const Lines climbs = run.notes("--max_steps 10 --warmup_steps 10");
  REQUIRE(climbs.size() == 1);
  CHECK(contains(climbs[0], "--warmup_steps 10 does not end in this run of 10 steps"));
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
  CHECK(contains(longer[1], "the learning rate rises again: 1.00e-04 at the checkpoint, "));
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
  CHECK(contains(notes_on_resume(before, now, 50).back(), "the learning rate rises again"));
}
