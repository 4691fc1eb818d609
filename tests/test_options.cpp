#include "engine/options/parse_options.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/toml.h"
#include "engine/model/config.h"
#include "engine/options/help.h"
#include "engine/options/option_fields.h"
#include "engine/options/run_plan.h"
#include "tests/expect_error.h"
#include "tests/parse_words.h"
#include "tools/manual/manual.h"

using namespace gpt2;

namespace {

std::string usage_error(const std::vector<std::string>& words) { // "what | hint"
  const Error error = expect_error([&] { parse_words(words); });
  CHECK(error.code() == ExitCode::usage);
  return std::string(error.what()) + " | " + error.hint();
}

struct TemporaryFile {
  std::string path;
  explicit TemporaryFile(const std::string& text, const std::string& ending = ".toml")
      : path(std::filesystem::temp_directory_path() / ("test_options_" + std::to_string(std::rand()) + ending)) {
    std::ofstream(path) << text;
  }
  ~TemporaryFile() { std::filesystem::remove(path); }
};

Options everything_changed() {
  Options o;
  o.model = "d4", o.layers = 3, o.heads = 2, o.channels = 48, o.seq_len = 96;
  o.dataset = "books", o.data_dir = "sets";
  o.train_data = "a/*.bin,b \"quoted\" #1/*.h5", o.val_data = "C:\\v.bin", o.tokenizer = "tok", o.seed = UINT64_MAX;
  o.document_mask = true, o.document_positions = DocumentPositions::absolute;
  o.batch_size = 3, o.max_batch_size = 9, o.target_batch_size = 27, o.batch_ramp = "9@0,27@500", o.batch_ramp_lr = true;
  o.max_steps = 123456789012;
  o.max_lr = 0.1234567f, o.min_lr_ratio = 1.0f / 3, o.warmup_steps = 0, o.lr_schedule = Decay::wsd;
  o.wsd_decay_ratio = 0.3f, o.weight_decay = 0.05f, o.beta1 = 0.8f, o.beta2 = 0.999f, o.adam_eps = 1e-6f;
  o.grad_clip = 0, o.optimizer = Optimizer::muon, o.adamw_lr = 0.0123f, o.muon_momentum = 0.9f;
  o.muon_momentum_warmup = 300, o.muon_cautious_decay = true;
  o.init_projections = InitProjections::zero;
  o.device = DeviceKind::cpu, o.precision = PrecisionChoice::fp8, o.use_fp8 = true,
  o.fp8_format = Fp8FormatChoice::e5m2;
  o.fp8_margin = 2, o.fp8_interval = 4, o.fp8_amax_history = 8, o.fp8_lm_head = false, o.threads = 2;
  o.fp8_recipe = Fp8ScalingRecipe::current, o.fp8_scenario = Fp8Scenario::mxfp8, o.fp8_bf16_layers = "first,last,3-5",
  o.fp8_auto_fallback = false, o.fp8_current_steps = 19, o.fp8_bf16_steps = 23;
  o.deterministic = true, o.cuda_graph = false, o.recompute = Recompute::block,
  o.attention = AttentionKind::handwritten, o.kernels = KernelChoice::general, o.memory_limit = 7.5, o.plan_cache = "",
  o.timeline = "steps.json";
  o.eval_freq = 7, o.eval_sequences = 11, o.eval_at_start = true, o.sample_freq = 13;
  o.hellaswag_freq = 17, o.hellaswag_data = "tasks.jsonl", o.hellaswag_tasks = 23;
  o.prompt = "two\nlines\tand 'both' \"quotes\" \x01 \xc3\xa9", o.sample_tokens = 5;
  o.temperature = 1.5f, o.top_k = 3, o.sample_seed = 99;
  o.log_freq = 5, o.use_tensorboard = false, o.histogram_freq = 19, o.fp8_detail = true, o.run_name = "run",
  o.log_dir = "logs";
  o.checkpoint_dir = "ckpt", o.checkpoint_freq = 17, o.keep_checkpoints = 5, o.keep_every = 34, o.save_best = false,
  o.strict_saves = true, o.init_from = "gpt2", o.hf_cache = "hub", o.resume = "best";
  o.skip_loss_z = 4.5f, o.skip_grad_z = 6.25f, o.max_skipped = 3;
  o.zero = 0, o.grad_reduce = GradExchange::bf16, o.nccl_timeout = 7, o.log_ranks = true;
  return o;
}

// Of a checkpoint's options and a command line's.
Options over(const CommandLine& weaker, const std::vector<std::string>& words) {
  Options options = weaker.options;
  std::set<std::string> given = weaker.given;
  const CommandLine line = parse_words(words);
  override_options(options, given, line.options, line.given);
  check_conflicts(options);
  return options;
}

} // namespace

TEST_CASE("no flags: the defaults") {
  const CommandLine line = parse_words({});
  CHECK(line.options == Options{});
  CHECK(line.given.empty());
}

TEST_CASE("print_config and config are inverse for every field") {
  Options changed = everything_changed(), defaults;
  for (const OptionField& field : option_fields()) {
    CAPTURE(field.name);
    if (!field.not_stored && field.name != "num_epochs") CHECK_FALSE(field.same(changed, defaults));
    Options copied = defaults;
    field.copy(changed, copied);
    CHECK(field.same(copied, changed));
    CHECK(field.text(copied) == field.text(changed));
  }
  CHECK(from_toml(to_toml(changed), "test").options == changed);
  CHECK(from_toml(to_toml(defaults), "test").options == defaults);

  Options epochs; // excludes max_steps
  epochs.num_epochs = 0.1;
  CHECK(from_toml(to_toml(epochs), "test").options == epochs);
}

TEST_CASE("of two ways to name the data, the stronger place decides") {
  const TemporaryFile by_name("dataset = \"books\"\n"), by_pattern("train_data = \"a.bin\"\nval_data = \"b.bin\"\n");
  CHECK(parse_words({"--config", by_name.path}).options.dataset == "books");
  CHECK(parse_words({"--config", by_name.path, "--train_data", "c.bin"}).options.dataset.empty());
  const Options named = parse_words({"--config", by_pattern.path, "--dataset", "books", "--data_dir", "sets"}).options;
  CHECK(named.dataset == "books");
  CHECK(named.train_data.empty());
  CHECK(named.val_data.empty());
  CHECK(parse_words({"--dataset", "books", "--val_data", "v.bin"}).options.val_data == "v.bin");

  CHECK(over(parse_words({"--train_data", "a", "--val_data", "b"}), {"--dataset", "books"}).train_data.empty());
  CHECK(over(parse_words({"--dataset", "books"}), {"--train_data", "a"}).dataset.empty());
  CHECK(over(parse_words({"--dataset", "books"}), {}).dataset == "books");
}

TEST_CASE("how processes are started is remembered by no file") {
  Options options;
  options.gpus = "8", options.share_gpu = true, options.master = "node1";
  CHECK(to_toml(options) == to_toml(Options{}));
  CHECK(parse_words({"--gpus", "8"}).options.gpus == "8");
  CHECK(contains(usage_error({"--ranks", "2"}), "--ranks and --rank need each other"));
  CHECK(contains(usage_error({"--ranks", "2", "--rank", "2"}),
                 "--rank 2 is not below --ranks 2 | give each process one of 0 to 1"));
  CHECK(contains(usage_error({"--ranks", "2", "--rank", "0", "--gpus", "2"}), "--gpus starts all ranks itself"));
}

TEST_CASE("every flag is accepted on the command line with the value that print_config writes") {
  Options changed = everything_changed();
  std::vector<std::string> words;
  for (const OptionField& field : option_fields()) words.push_back("--" + field.name + "=" + field.text(changed));
  const Options parsed = parse_words(words).options;
  CHECK(to_toml(parsed) == to_toml(changed)); // a difference that can be read
  CHECK(parsed == changed);
}

TEST_CASE("flags win over the config file, the file over defaults") {
  const TemporaryFile file("max_lr = 0.5 # half\nseq_len = 32\nuse_tensorboard = false\n");
  const CommandLine line = parse_words({"--config", file.path, "--max_lr", "0.25"});
  CHECK(line.options.max_lr == 0.25f);
  CHECK(line.options.seq_len == 32);
  CHECK_FALSE(line.options.use_tensorboard);
  CHECK(line.given == std::set<std::string>{"max_lr", "seq_len", "use_tensorboard"});
}

TEST_CASE("a bad config file is named with its line") {
  const auto error_with = [](const std::string& text) {
    const TemporaryFile file(text);
    const std::string error = usage_error({"--config", file.path});
    CHECK(contains(error, file.path));
    return error;
  };
  CHECK(contains(error_with("seed = 1\nmax_lrr = 1\n"), ":2: unknown key max_lrr | did you mean max_lr?"));
  CHECK(contains(error_with("max_lr = -1\n"), ":1: max_lr: must be above 0 or auto, not -1"));
  CHECK(contains(error_with("model = nano\n"), "quotes"));
  CHECK(contains(error_with("model = \"nano\n"), "not closed"));
  CHECK(contains(error_with("[model]\nlayers = 2\n"), "sections"));
  CHECK(contains(error_with("seed = 1\nseed = 2\n"), "occurs twice"));
  CHECK(contains(error_with("seed = 1 2\n"), "unexpected text"));
  CHECK(contains(error_with("seed\n"), "="));
  CHECK(contains(usage_error({"--config", "/no/such.toml"}), "/no/such.toml"));
}

TEST_CASE("folders: never the root by an empty word, and a run's name stays below --log_dir") {
  CHECK(contains(usage_error({"--log_dir", ""}), "must not be empty"));
  CHECK(contains(usage_error({"--checkpoint_dir="}), "must not be empty"));
  for (const std::string name : {"../x", "a/../../x", "/tmp/x"})
    CHECK(contains(usage_error({"--run_name", name}), "'" + name + "' must be a relative path without .."));
  for (const std::string name : {"latest", "best", "sweep/step_00001000", "."})
    CHECK(contains(usage_error({"--run_name", name}), "is reserved for checkpoints"));
  CHECK(parse_words({"--run_name", "sweep/lr..1"}).options.run_name == "sweep/lr..1");
}

TEST_CASE("unknown flags get one line and a guess") {
  CHECK(usage_error({"--max_ler", "1"}) == "unknown flag --max_ler | did you mean --max_lr?");
  CHECK(usage_error({"--no-cuda_grap"}) == "unknown flag --no-cuda_grap | did you mean --no-cuda_graph?");
  CHECK(usage_error({"--zzzzzzzzzzzz"}) == "unknown flag --zzzzzzzzzzzz | see --help");
  CHECK(contains(usage_error({"nano"}), "unexpected argument 'nano'"));
  CHECK(contains(usage_error({"--use_fp8", "true"}), "unexpected argument 'true'"));
  CHECK(contains(usage_error({"--model"}), "--model"));
}

TEST_CASE("dashes for underscores are as good") {
  const CommandLine line = parse_words({"--max-lr=1e-3", "--seq-len", "32", "--no-use-tensorboard", "--no_cuda_graph"});
  CHECK(line.options.max_lr == 1e-3f);
  CHECK(line.options.seq_len == 32);
  CHECK_FALSE(line.options.use_tensorboard);
  CHECK_FALSE(line.options.cuda_graph);
  CHECK(line.notes.empty());
  CHECK(parse_words({"--prompt", "--max-lr"}).options.prompt == "--max-lr"); // a value stays what it is
  CHECK(parse_words({"--print-config"}).options.print_config);
}

TEST_CASE("whole numbers may be written as 1e3") {
  CHECK(parse_words({"--max_steps", "1e3"}).options.max_steps == 1000);
  CHECK(parse_words({"--max_steps", "1.5E3"}).options.max_steps == 1500);
  CHECK(contains(usage_error({"--max_steps", "1e-1"}), "not a whole number"));
  CHECK(contains(usage_error({"--max_steps", "1e30"}), "too large"));
  CHECK(contains(usage_error({"--batch_size", "1e10"}), "too large"));
  CHECK(contains(usage_error({"--seed", "-1e1"}), "not a whole number"));
  CHECK(contains(usage_error({"--max_steps", "1e3x"}), "not a number"));
}

TEST_CASE("a word without a flag gets the flag that it needs") {
  CHECK(contains(usage_error({"configs/nano.toml"}), "use --config configs/nano.toml"));
  CHECK(contains(usage_error({"nano.yml"}), "use --config nano.yml"));
  CHECK(contains(usage_error({"train.bin"}), "use --train_data train.bin"));
  CHECK(contains(usage_error({"play.txt"}), "bin/prepare_data play.txt"));
  CHECK(contains(usage_error({"configs"}), "--train_data 'configs/train_*.bin'"));
  CHECK(contains(usage_error({"gpt2-xl"}), "use --model gpt2-xl"));
}

TEST_CASE("a config in YAML is read like TOML") {
  const TemporaryFile file(
      "---\n# a comment\nmodel: gpt2-medium\nmax_lr: 3e-4 # the peak\nprompt: \"Once: upon\"\ntrain_data: data/a "
      "b/*.bin\n"
      "use_fp8: yes\nlearning_rate: 1e-3\n",
      ".yaml");
  const CommandLine line = parse_words({"--config", file.path});
  CHECK(line.options.model == "gpt2-medium");
  CHECK(line.options.max_lr == 1e-3f); // the last word
  CHECK(line.options.prompt == "Once: upon");
  CHECK(line.options.train_data == "data/a b/*.bin");
  CHECK(line.options.use_fp8);
  REQUIRE(line.notes.size() == 1);
  CHECK(contains(line.notes[0], ":8: learning_rate is max_lr here"));

  const auto error_with = [](const std::string& text) {
    const TemporaryFile bad(text, ".yml");
    return usage_error({"--config", bad.path});
  };
  CHECK(contains(error_with("optimizer:\n  lr: 1\n"), ":1: expected a value after the colon"));
  CHECK(contains(error_with("seed: 1\n  max_lr: 1\n"), ":2: nested"));
  CHECK(contains(error_with("seed = 1\n"), ":1: expected :"));
  CHECK(contains(error_with("seed: [1]\n"), "lists"));
  CHECK(contains(error_with("dtype: bf16\n"), ":1: unknown key dtype | use --precision"));
}

TEST_CASE("choices suggest the nearest") {
  CHECK(contains(usage_error({"--lr_schedule", "cosin"}), "did you mean cosine?"));
  CHECK(contains(usage_error({"--precision", "pf8"}), "did you mean fp8?"));
}

TEST_CASE("bounds are the model's and the recipe's own") {
  const auto beyond = [](int bound) { return std::to_string(bound + 1); };
  CHECK(contains(usage_error({"--fp8_margin", beyond(kMaxFp8Margin)}), "between 0 and 16"));
  CHECK(contains(usage_error({"--fp8_amax_history", beyond(kMaxAmaxHistory)}), "between 1 and 4096"));
  CHECK(contains(usage_error({"--layers", beyond(kMaxModelLayers)}), "between 1 and 1000"));
  CHECK(contains(usage_error({"--channels", beyond(kMaxModelChannels)}), "between 1 and 65536"));
  CHECK(contains(usage_error({"--seq_len", beyond(kMaxSequenceLength)}), "between 1 and 1048576"));
}

TEST_CASE("switches: --x, --no-x and --x=false; the last one counts") {
  CHECK(parse_words({"--deterministic"}).options.deterministic);
  CHECK_FALSE(parse_words({"--no-use_tensorboard"}).options.use_tensorboard);
  CHECK_FALSE(parse_words({"--use_tensorboard=false"}).options.use_tensorboard);
  CHECK(parse_words({"--no-cuda_graph", "--cuda_graph"}).options.cuda_graph);
  CHECK(contains(usage_error({"--use_fp8=maybe"}), "neither true nor false"));
}

TEST_CASE("--resume and --init_from without a value are no new run") {
  for (const std::string flag : {"--resume", "--init_from"}) {
    CHECK(contains(usage_error({flag, ""}), flag + " needs a value: "));
    CHECK(contains(usage_error({flag + "="}), flag + " needs a value: "));
    CHECK(contains(usage_error({flag}), flag + " needs a value: "));
  }
}

TEST_CASE("--use_fp8 means --precision fp8, and a contradiction is an error") {
  CHECK(parse_words({"--use_fp8"}).options.precision == PrecisionChoice::fp8);
  CHECK(parse_words({"--use_fp8", "--precision", "fp8"}).options.precision == PrecisionChoice::fp8);
  CHECK(parse_words({"--use_fp8=false", "--precision", "bf16"}).options.precision == PrecisionChoice::bf16);
  CHECK(contains(usage_error({"--use_fp8", "--precision", "bf16"}), "contradict"));
  CHECK(contains(usage_error({"--max_steps", "5", "--num_epochs", "1"}), "--num_epochs"));
  CHECK(contains(usage_error({"--val_data", "x.bin"}), "--train_data"));
}

TEST_CASE("the FP8 switches and choices are checked") {
  CHECK(parse_words({"--fp8_recipe", "current"}).options.fp8_recipe == Fp8ScalingRecipe::current);
  CHECK(parse_words({"--fp8_recipe", "current_grads"}).options.fp8_recipe == Fp8ScalingRecipe::current_grads);
  CHECK(
      contains(usage_error({"--fp8_current_steps", "-1"}), "--fp8_current_steps: must be at least 0 or auto, not -1"));
  CHECK(parse_words({}).options.fp8_current_steps == 0);
  CHECK(contains(usage_error({"--fp8_bf16_steps", "-1"}), "--fp8_bf16_steps: must be at least 0 or auto, not -1"));
  CHECK(parse_words({}).options.fp8_bf16_steps == -1);
  CHECK(parse_words({"--fp8_bf16_steps", "0"}).options.fp8_bf16_steps == 0);
  CHECK(parse_words({"--fp8_bf16_steps", "auto"}).options.fp8_bf16_steps == -1);
  CHECK(parse_words({"--fp8_current_steps", "auto"}).options.fp8_current_steps == -1);
  CHECK(parse_words({"--fp8_bf16_layers", "first,last,3-5"}).options.fp8_bf16_layers == "first,last,3-5");
  CHECK(parse_words({}).options.fp8_auto_fallback);
  CHECK_FALSE(parse_words({"--no-fp8_auto_fallback"}).options.fp8_auto_fallback);
  CHECK(contains(usage_error({"--fp8_recipe", "curent"}), "did you mean current?"));
  CHECK(contains(usage_error({"--fp8_scenario", "mxfp4"}), "did you mean mxfp8?"));
}

TEST_CASE("zero, negative and senseless numbers are refused") {
  for (const char* name : {"layers", "heads", "channels", "seq_len", "batch_size", "max_batch_size",
                           "target_batch_size", "max_steps", "num_epochs", "max_lr", "adam_eps", "fp8_interval",
                           "fp8_amax_history", "threads", "log_freq", "eval_sequences", "max_skipped"}) {
    const std::string flag = std::string("--") + name;
    CHECK(contains(usage_error({flag, "0"}), flag + ": must be "));
    CHECK(contains(usage_error({flag, "0"}), ", not 0"));
  }
  for (const char* name :
       {"layers",      "seq_len",      "batch_size",      "target_batch_size", "max_steps",   "num_epochs",
        "max_lr",      "warmup_steps", "weight_decay",    "grad_clip",         "beta1",       "fp8_margin",
        "eval_freq",   "sample_freq",  "checkpoint_freq", "sample_tokens",     "temperature", "top_k",
        "skip_loss_z", "skip_grad_z",  "max_skipped",     "min_lr_ratio"}) {
    const std::string flag = std::string("--") + name;
    CHECK(contains(usage_error({flag, "-1"}), flag + ": must be "));
  }
  CHECK(contains(usage_error({"--adam_eps", "-1"}), "--adam_eps: must be above 0, not -1"));
  CHECK(contains(usage_error({"--resume"}), "--resume needs a value: latest, best, a step, a run or a path"));
  CHECK(contains(usage_error({"--beta1", "1"}), "below 1"));
  CHECK(contains(usage_error({"--seed", "-1"}), "--seed"));
  CHECK(contains(usage_error({"--batch_size", "four"}), "not a whole number"));
  CHECK(contains(usage_error({"--batch_size", "1.5"}), "not a whole number"));
  CHECK(contains(usage_error({"--batch_size", "99999999999"}), "too large"));
  CHECK(contains(usage_error({"--max_lr", "nan"}), "finite"));
  CHECK(parse_words({"--batch_size", "auto"}).options.batch_size == 0);
}

TEST_CASE("what auto means is told in numbers, and reads back as auto") {
  Options options;
  CHECK(meaning_of_auto("max_lr", options) == "0.0006 for gpt2, 0.003 for nano");
  CHECK(meaning_of_auto("batch_size", options).empty()); // the device decides
  options.model = "gpt2";
  const std::string text = to_explained_toml(options);
  CHECK(contains(text, "max_lr = \"auto\" # 0.0006 for gpt2\n"));
  CHECK(contains(
      text,
      "warmup_steps = \"auto\" # 700 for gpt2; in a short run a tenth of it, at least 10 steps, at most half of it\n"));
  CHECK(from_toml(text, "test").options == options);
}

TEST_CASE("the short help is a part of the whole one, and a switch has no value") {
  const std::string all = help_all_text({}, 100), some = help_text({}, 100);
  int common = 0;
  for (const OptionField& field : option_fields()) {
    CHECK(contains(all, "\n  --" + field.name));
    common += contains(some, "\n  --" + field.name + " ");
  }
  CHECK(common == 26);
  CHECK(contains(some, "--fp8_format"));
  CHECK(std::ranges::count(help_text({}, 80), '\n') <= 80);
  CHECK_FALSE(contains(all, "{false}"));
  CHECK(contains(completion_script("zsh"),
                 "'--lr_schedule=[learning rate after the warm-up]:cosine|linear|constant|wsd:(cosine"));
}

TEST_CASE("a resumed run keeps the checkpoint's options where the command line is silent") {
  CommandLine before;
  before.options.model = "gpt2-medium";
  before.options.max_lr = 0.5f;
  before.options.max_steps = 100;
  before.options.use_fp8 = true;
  before.options.precision = PrecisionChoice::fp8;
  before.options.prompt = "with \"quotes\"";

  const Options silent = over(before, {"--resume", "latest"});
  CHECK(silent.max_lr == 0.5f);
  CHECK(silent.max_steps == 100);
  CHECK(silent.precision == PrecisionChoice::fp8);
  CHECK(silent.prompt == before.options.prompt);

  const Options spoken =
      over(before, {"--resume", "latest", "--num_epochs", "3", "--precision", "bf16", "--no-use_tensorboard"});
  CHECK(spoken.max_steps == 0);
  CHECK(spoken.num_epochs == 3);
  CHECK(spoken.precision == PrecisionChoice::bf16);
  CHECK_FALSE(spoken.use_fp8);
  CHECK_FALSE(spoken.use_tensorboard);
  CHECK(spoken.max_lr == 0.5f);
}

TEST_CASE("the stronger source wins for every pair that says the same thing") {
  using enum PrecisionChoice;
  const auto both = [](const std::string& text, const std::vector<std::string>& flags) {
    const TemporaryFile file(text);
    std::vector<std::string> words{"--config", file.path};
    words.insert(words.end(), flags.begin(), flags.end());
    const Options by_file = parse_words(words).options, by_checkpoint = over(from_toml(text, "stored"), flags);
    CHECK(by_file == by_checkpoint); // one rule, whichever the sources
    return by_file;
  };
  CHECK(both("precision = \"fp8\"\n", {"--no-use_fp8"}).precision == automatic);
  CHECK(both("precision = \"fp8\"\nuse_fp8 = true\n", {"--no-use_fp8"}).precision == automatic);
  CHECK(both("use_fp8 = true\n", {"--no-use_fp8"}).precision == automatic);
  CHECK(both("precision = \"fp32\"\n", {"--no-use_fp8"}).precision == fp32); // says no more than not FP8
  CHECK(both("precision = \"bf16\"\n", {"--use_fp8"}).precision == fp8);
  CHECK(both("precision = \"bf16\"\nuse_fp8 = false\n", {"--use_fp8"}).precision == fp8);
  CHECK(both("use_fp8 = true\n", {"--precision", "bf16"}).precision == bf16);
  CHECK_FALSE(both("use_fp8 = true\n", {"--precision", "bf16"}).use_fp8);
  CHECK(both("use_fp8 = true\n", {"--precision", "auto"}).precision == automatic);
  CHECK(both("max_steps = 100\n", {"--num_epochs", "2"}).max_steps == 0);
  CHECK(both("num_epochs = 2.0\n", {"--max_steps", "5"}).num_epochs == 0);
  CHECK(both("num_epochs = 2.0\n", {"--max_steps", "auto"}).num_epochs == 2); // auto says nothing
  CHECK(both("max_steps = 100\n", {"--num_epochs", "auto"}).max_steps == 100);
  CHECK(both("gpus = \"2\"\n", {"--ranks", "1", "--rank", "0"}).gpus.empty());
  CHECK(both("gpus = \"2\"\n", {"--ranks", "auto"}).gpus == "2");
  const Options by_gpus = both("ranks = 2\nrank = 0\nmaster = \"node1\"\n", {"--gpus", "2"});
  CHECK(by_gpus.ranks == 0);
  CHECK(by_gpus.rank == -1);
  CHECK(by_gpus.master.empty());
  CHECK(both("train_data = \"a\"\nval_data = \"b\"\n", {"--dataset", "books"}).val_data.empty());
  CHECK(both("dataset = \"a\"\nval_data = \"b\"\n", {"--dataset", "books"}).val_data == "b"); // goes with either
  CHECK(both("train_data = \"a\"\nval_data = \"b\"\n", {"--train_data", "c"}).val_data == "b");
  const Options all = both(to_toml(parse_words({"--precision", "bf16"}).options), {"--use_fp8", "--num_epochs", "2"});
  CHECK(all.precision == fp8); // a file that names every option
  CHECK(all.num_epochs == 2);

  for (const char* contradiction : {"precision = \"bf16\"\nuse_fp8 = true\n", "max_steps = 5\nnum_epochs = 1.0\n"}) {
    const TemporaryFile file(contradiction); // within one source nothing wins
    CHECK(contains(usage_error({"--config", file.path}), "give one of the two"));
  }
  CHECK(contains(usage_error({"--precision", "fp8", "--no-use_fp8"}), "contradict"));
  CHECK(parse_words({"--resume", "latest", "--val_data", "v.bin"}).options.val_data == "v.bin"); // of its train_data
}

TEST_CASE("a checkpoint may hold a key that is retired, and no other unknown one") {
  CHECK(from_toml("seed = 3\nmuon_iteration = \"newton_schulz\"\n", "stored").options.seed == 3);
  CHECK(contains(expect_error([] { from_toml("once = 1\n", "stored"); }).what(), "unknown key once"));
  CHECK(contains(usage_error({"--config", TemporaryFile("muon_iteration = \"newton_schulz\"\n").path}), "unknown key"));
}

TEST_CASE("--keep_checkpoints all, or 0 as it used to be written") {
  CHECK(parse_words({}).options.keep_checkpoints == -1); // auto
  for (const char* all : {"all", "0"}) {
    const Options options = parse_words({"--keep_checkpoints", all}).options;
    CHECK(options.keep_checkpoints == 0);
    CHECK(contains(to_toml(options), "keep_checkpoints = \"all\"\n"));
  }
  CHECK(from_toml("keep_checkpoints = 0\n", "stored").options.keep_checkpoints == 0);
  CHECK(contains(usage_error({"--keep_checkpoints", "-1"}), "at least 0 or auto or all, not -1"));
}

TEST_CASE("dashes without a name are no flag") {
  for (const char* word : {"-", "--", "---", "--=x", "-=", "----=y"})
    CHECK(usage_error({word}) == "'" + std::string(word) + "' names no flag | see --help");
  CHECK(parse_words({"--prompt", "-"}).options.prompt == "-"); // a value stays what it is
  CHECK(parse_words({"--prompt=--"}).options.prompt == "--");
}

TEST_CASE("every ready config loads and names a model that exists, unless it is made for any machine") {
  const std::set<std::string> any_machine{"test_fp8", "test_auto_batch", "tinyshakespeare_fp8"}; // 124M or nano
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator("configs")) {
    if (entry.path().extension() != ".toml") continue;
    CAPTURE(entry.path().string());
    const CommandLine line = parse_words({"--config", entry.path().string()});
    const bool named = line.given.contains("model") || line.given.contains("init_from");
    CHECK(named != any_machine.contains(entry.path().stem().string()));
    for (const bool gpu : {false, true}) CHECK_NOTHROW(resolve_config(line.options, gpu));
    files += 1;
  }
  CHECK(files >= 5);
}
