// What people who come from other trainers type: each line has the meaning that its writer expects, or is refused with
// the sentence that helps.
#include "engine/options/flag_aliases.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "engine/base/split.h"
#include "engine/options/option_fields.h"
#include "engine/options/run_plan.h"
#include "tests/expect_error.h"
#include "tests/parse_words.h"
#include "tests/temporary_folder.h"

using namespace gpt2;

namespace {

std::vector<std::string> split_at_blanks(const std::string& text) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

CommandLine typed(const std::string& text) { return parse_words(split_at_blanks(text)); }

std::string refusal(const std::string& text) { // "what | hint"
  const Error error = expect_error([&] { typed(text); });
  CHECK(error.code() == ExitCode::usage);
  return std::string(error.what()) + " | " + error.hint();
}

std::string joined(const std::vector<std::string>& lines) {
  std::string out;
  for (const std::string& line : lines) out += line + "\n";
  return out;
}

struct OptionFile {
  TemporaryFolder folder;
  std::string path;
  OptionFile(const std::string& name, const std::string& text) : path(folder / name) { std::ofstream(path) << text; }
};

} // namespace

TEST_CASE("flags that are taken: the same options as ours, and a note") {
  struct Row {
    const char *theirs, *ours, *note; // an empty note: none
  };
  for (const auto& [theirs, ours, note] : std::vector<Row>{
           {"--mixed_precision fp8", "--precision fp8", "--mixed_precision is --precision here"},
           {"--mixed-precision bf16", "--precision bf16", "--mixed-precision is --precision here"},
           {"--mixed_precision no", "--precision auto",
            "--mixed_precision no is --precision auto here: bf16 on a GPU, fp32 on the CPU"},
           {"--bf16", "--precision bf16", "--bf16 is --precision bf16 here"},
           {"--bf16 True", "--precision bf16", "--bf16 is --precision bf16 here"},
           {"--bf16=false", "", ""},
           {"--fp8 True", "--use_fp8", "--fp8 is --use_fp8 here"},
           {"--no_wandb", "", ""},
           {"--no-wandb", "", ""},
           {"--use_wandb=false", "", ""},
           {"--report_to none", "", ""},
           {"--use_wandb", "", "--use_wandb has no effect: tools/wandb_sync RUN --follow"},
           {"--wandb_project P", "", "--wandb_project has no effect: tools/wandb_sync RUN --follow --project P"},
           {"--wandb_run_name N", "", "--wandb_run_name has no effect: tools/wandb_sync"},
           {"--use_wandb --wandb_project P --wandb_run_name N", "", "--use_wandb has no effect: tools/wandb_sync"},
           {"--batch_size 2 --gradient_accumulation_steps 8", "--batch_size 2 --target_batch_size 16",
            "--gradient_accumulation_steps 8 is --target_batch_size 16 here: 2 sequences x 8 micro-batches"},
           {"--gradient_accumulation_steps=8 --batch_size 2 --gpus 4", "--batch_size 2 --target_batch_size 64 --gpus 4",
            "2 sequences x 8 micro-batches x 4 ranks"},
           {"--grad_accum_steps 3 --batch_size 2 --ranks 2 --rank 0",
            "--batch_size 2 --target_batch_size 12 --ranks 2 --rank 0", "x 2 ranks"},
           {"--auto_batch_size", "--batch_size auto", "--auto_batch_size is --batch_size auto here"},
           {"--gradient_checkpointing", "--recompute block", "--gradient_checkpointing is --recompute block here"},
           {"--no-gradient_checkpointing", "", ""},
           {"--total_steps 20", "--max_steps 20", "--total_steps is --max_steps here"},
           {"--num_workers 4", "", "--num_workers has no effect: two threads read ahead"},
           {"--compile", "", "--compile has no effect: all kernels are compiled"},
           {"--compile=False", "", ""},
           {"--dataset_name HuggingFaceFW/fineweb-edu --split_name sample-10BT", "--dataset fineweb-edu",
            "--dataset_name HuggingFaceFW/fineweb-edu is --dataset fineweb-edu here"},
           {"--split sample-100BT --dataset_name HuggingFaceFW/fineweb-edu", "--dataset fineweb-edu-100B",
            "--split sample-100BT is --dataset fineweb-edu-100B here"},
           {"--split_name sample-10BT", "--dataset fineweb-edu",
            "--split_name sample-10BT is --dataset fineweb-edu here"},
           {"--dataset_name books --split train", "--dataset books", "--dataset_name is --dataset here"},
           {"--dataset books --split_name sample-10BT", "--dataset books", "--split_name has no effect"},
           {"--optim adamw", "--optimizer adamw", "--optim is --optimizer here"},
           {"--optim muon", "--optimizer muon", "--optim is --optimizer here"},
           {"--tensorboard_dir x", "--log_dir x", "--tensorboard_dir is --log_dir here"},
           {"--fp8_format HYBRID", "--fp8_format hybrid", ""},
           {"--fp8_format E4M3", "--fp8_format e4m3", ""}}) {
    CAPTURE(theirs);
    const CommandLine taken = typed(theirs), same = typed(ours);
    CHECK(taken.options == same.options);
    CHECK(taken.given == same.given);
    CHECK(contains(joined(taken.notes), note));
    CHECK(taken.notes.empty() == std::string(note).empty());
  }
  CHECK(typed("--use_wandb --wandb_project P --wandb_run_name N").notes.size() == 1);
}

TEST_CASE("flags that are refused: what to type instead") {
  struct Row {
    const char *theirs, *sentence;
  };
  for (const auto& [theirs, sentence] :
       std::vector<Row>{{"--use_te", "use --use_fp8"},
                        {"--fp8_backend te", "use --use_fp8"},
                        {"--deepspeed F", "--zero 1 shards master weights and moments, --gpus 8 starts the ranks"},
                        {"--sharding_mode M", "use --zero 1"},
                        {"--empty_cache_freq 5", "memory is allocated once"},
                        {"--penalty_weight 0.1", "the loss has no penalty term; --fp8_margin and --fp8_auto_fallback"},
                        {"--load_in_fp8", "checkpoints hold FP32 master weights; --use_fp8"},
                        {"--dtype bf16", "use --precision"},
                        {"--out_dir x", "--checkpoint_dir"},
                        {"--lr_decay_iters 8", "--max_steps"},
                        {"--min_lr 6e-5", "--min_lr_ratio"},
                        {"-i x", "--train_data"},
                        {"-j x", "--val_data"},
                        {"-o x", "--log_dir"},
                        {"-v 8", "--eval_freq"},
                        {"-s 8", "--sample_freq"},
                        {"-g 8", "--sample_tokens"},
                        {"-b 8", "--batch_size"},
                        {"-t 8", "--seq_len"},
                        {"-d 8", "--target_batch_size"},
                        {"-l 8", "--max_lr"},
                        {"-x 8", "--max_steps"},
                        {"-z 1", "--zero"},
                        {"-e d12", "--model"}}) {
    CAPTURE(theirs);
    CHECK(contains(refusal(theirs), "unknown flag " + split_at_blanks(theirs).front() + " | "));
    CHECK(contains(refusal(theirs), sentence));
  }
  CHECK(contains(refusal("--gradient_accumulation_steps 8"), "needs --batch_size"));
  CHECK(contains(refusal("--gradient_accumulation_steps 8 --batch_size auto"), "needs --batch_size"));
  CHECK(contains(refusal("--gradient_accumulation_steps 8 --batch_size 2 --target_batch_size 16"),
                 "--gradient_accumulation_steps and --target_batch_size both give the size of a step"));
  CHECK(
      contains(refusal("--gradient_accumulation_steps x --batch_size 2"), "--gradient_accumulation_steps: 'x' is not"));
  CHECK(contains(refusal("--gradient_accumulation_steps 2e9 --batch_size 2"), "is too large"));
  CHECK(contains(refusal("--split_name sample-350BT"), "use --dataset NAME: bin/prepare_data makes it"));
  CHECK(contains(refusal("--mixed_precision fp16"), "did you mean bf16?"));
  CHECK(contains(refusal("--fp8_recipe DelayedScaling"), "did you mean delayed?"));
  CHECK(contains(refusal("--optim adamw_torch"), "did you mean adamw?"));
}

TEST_CASE("an option file in another trainer's words") {
  const OptionFile file("o.yaml",
                        "use_wandb: false\nauto_batch_size: true\ntotal_steps: 9\nmixed_precision: no\n"
                        "gradient_checkpointing: True\nuse_fp8: True\nnum_workers: 4\n");
  const CommandLine line = typed("--config " + file.path);
  CHECK(line.options == typed("--batch_size auto --max_steps 9 --recompute block --use_fp8").options);
  CHECK(contains(joined(line.notes), ":2: auto_batch_size is batch_size auto here\n"));
  CHECK(contains(joined(line.notes), ":7: num_workers has no effect: two threads read ahead\n"));
  CHECK_FALSE(contains(joined(line.notes), "wandb"));

  const OptionFile steps("steps.yaml", "batch_size: 2\ngradient_accumulation_steps: 8\n");
  const std::string config = "--config " + steps.path;
  CHECK(typed(config).options.target_batch_size == 16);
  CHECK(typed(config + " --batch_size 4").options.target_batch_size == 32);
  CHECK(typed(config + " --gradient_accumulation_steps 3").options.target_batch_size == 6);
  CHECK(typed(config + " --target_batch_size 24").options.target_batch_size == 24); // the flag wins
  const OptionFile target("target.yaml", "batch_size: 2\ntarget_batch_size: 64\n");
  CHECK(typed("--config " + target.path + " --gradient_accumulation_steps 3").options.target_batch_size == 6);

  CHECK(refusal("--config configs/fineweb_edu_fp8.yaml") ==
        "there is no configs/fineweb_edu_fp8.yaml | did you mean --config configs/fineweb_edu_fp8.toml?");
}

TEST_CASE("--gradient_accumulation_steps counts the ranks of a launcher") {
  ::setenv("WORLD_SIZE", "4", 1), ::setenv("RANK", "1", 1);
  CHECK(typed("--batch_size 2 --gradient_accumulation_steps 8").options.target_batch_size == 64);
  ::unsetenv("WORLD_SIZE"), ::unsetenv("RANK");
}

TEST_CASE("other trainers' flags of the same meaning are taken, with a note") {
  const CommandLine line = parse_words({"--learning_rate", "1e-3", "--block-size=64", "--max_iters", "7", "--fp8",
                                        "--eval_interval", "5", "--save_steps", "9", "--max_grad_norm", "0.5"});
  CHECK(line.options.max_lr == 1e-3f);
  CHECK(line.options.seq_len == 64);
  CHECK(line.options.max_steps == 7);
  CHECK(line.options.use_fp8);
  CHECK(line.options.eval_freq == 5);
  CHECK(line.options.checkpoint_freq == 9);
  CHECK(line.options.grad_clip == 0.5f);
  CHECK(line.given.count("max_lr") == 1);
  REQUIRE(line.notes.size() == 7);
  CHECK(line.notes[0] == "--learning_rate is --max_lr here");
  CHECK(line.notes[1] == "--block-size is --seq_len here");
  CHECK_FALSE(parse_words({"--no_tensorboard"}).options.use_tensorboard);
  CHECK(contains(refusal("--lr fast"), "--max_lr: 'fast' is not a number"));
}

TEST_CASE("every alias leads to an option that exists, and hides none") {
  std::set<std::string> ours, theirs;
  for (const OptionField& field : option_fields()) ours.insert(field.name);
  for (const FlagAlias& alias : flag_aliases()) {
    CAPTURE(alias.names);
    for (const std::string& name : split(alias.names, ' ')) {
      CHECK(theirs.insert(name).second);
      CHECK(ours.count(name) == 0);
    }
    const bool sets = alias.kind == AliasKind::renamed || alias.kind == AliasKind::implied;
    CHECK(sets == (alias.option != nullptr));
    CHECK((alias.kind == AliasKind::implied) == (alias.value != nullptr));
    if (sets) CHECK(ours.count(alias.option) == 1);
    if (alias.kind == AliasKind::unsupported || alias.kind == AliasKind::without_effect) CHECK(alias.sentence);
    if (alias.value) CHECK_NOTHROW(parse_words({std::string("--") + alias.option, alias.value}));
  }
}

TEST_CASE("choices know other trainers' words") {
  CHECK(contains(refusal("--device gpu"), "did you mean cuda?")); // cpu is nearer
  CHECK(contains(refusal("--precision fp16"), "did you mean bf16?"));
  CHECK(contains(refusal("--precision bfloat16"), "did you mean bf16?"));
  CHECK(contains(refusal("--lr_schedule constant_with_warmup"), "did you mean constant?"));
  CHECK_FALSE(contains(refusal("--lr_schedule gpu"), "cuda"));
}
