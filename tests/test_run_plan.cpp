// What the options mean on a given machine: device and precision, batch arithmetic, steps, the roofline.
#include "engine/options/run_plan.h"

#include <doctest/doctest.h>

#include <climits>

#include "engine/backend/roofline.h"
#include "engine/base/divisors.h"
#include "engine/options/help.h"
#include "engine/options/parse_options.h"
#include "tests/expect_error.h"

using namespace gpt2;

namespace {

const GpuReport kNone{false, "no driver", "", 0, ""};
const GpuReport kHopper{true, "", "NVIDIA H200", 90, ""};
const GpuReport kOldLibrary{true, "", "NVIDIA H200", 90, "cuBLASLt has no algorithm"};
const GpuReport kBlackwell{true, "", "NVIDIA B200", 100, ""};
const GpuReport kAmpere{true, "", "NVIDIA A100", 80, ""};
const GpuReport kAda{true, "", "NVIDIA L40S", 89, ""};
const GpuReport kUnknown{true, "", "NVIDIA B200", 100, "they differ", "compute capability 10.0, checked"};

Options with(const char* device, const char* precision) {
  Options options;
  options.device = value_named<DeviceKind>(device).value();
  options.precision = value_named<PrecisionChoice>(precision).value();
  return options;
}

DeviceChoice choose_device(const Options& options, const GpuReport& gpu) {
  return gpt2::choose_device(backend_options(options), gpu);
}

RunPlan plan_for(const Options& options, int64_t sequences = 1000, int ranks = 1) {
  const auto backend = make_cpu_backend(0);
  return make_plan(options, resolve_config(options, false), Precision::fp32, sequences, *backend, ranks);
}

struct FakeGpu : Backend { // of the plan's questions it answers only this one
  bool is_gpu() const override { return true; }
  std::unique_ptr<Model> make_model(const ModelOptions&, RankGroup&) override { return nullptr; }
  std::string versions() const override { return ""; }
  int choose_batch_size(const ModelOptions&, int, int) override { return 1; }
};

} // namespace

TEST_CASE("FP8 on a GPU: a shape that its products cannot take is refused before anything is allocated") {
  FakeGpu gpu;
  Options options;
  options.model = "nano", options.seq_len = 100;
  const auto plan = [&](Precision precision) {
    return make_plan(options, resolve_config(options, true), precision, 1000, gpu, 1);
  };
  CHECK(expect_error([&] { plan(Precision::fp8); }).code() == ExitCode::usage);
  CHECK_NOTHROW(plan(Precision::bf16));
  options.seq_len = 96;
  CHECK_NOTHROW(plan(Precision::fp8));
  CHECK_NOTHROW(plan_for(options));            // the CPU's emulation takes any
  options.heads = 16, options.channels = 2064; // beyond what its LayerNorm holds
  CHECK(mentions(expect_error([&] { plan(Precision::fp8); }), "at most 2048 channels, not 2064"));
  CHECK_NOTHROW(plan(Precision::bf16));
}

TEST_CASE("device auto takes the GPU, and says so when there is none") {
  CHECK(choose_device(with("auto", "auto"), kHopper).gpu);
  const DeviceChoice cpu = choose_device(with("auto", "auto"), kNone);
  CHECK_FALSE(cpu.gpu);
  CHECK(cpu.precision == Precision::fp32);
  REQUIRE(cpu.notes.size() == 1);
  CHECK(cpu.notes[0].find("no driver") != std::string::npos);
}

TEST_CASE("device cpu needs no excuse; device cuda without a GPU is exit 6") {
  CHECK(choose_device(with("cpu", "auto"), kNone).notes.empty());
  CHECK_FALSE(choose_device(with("cpu", "auto"), kHopper).gpu);
  CHECK(expect_error([] { choose_device(with("cuda", "auto"), kNone); }).code() == ExitCode::device);
}

TEST_CASE("precision by device") {
  CHECK(choose_device(with("auto", "auto"), kHopper).precision == Precision::bf16);
  CHECK(choose_device(with("auto", "fp8"), kHopper).precision == Precision::fp8);
  CHECK(choose_device(with("cpu", "fp8"), kNone).precision == Precision::fp8); // emulated
  CHECK(expect_error([] { choose_device(with("cuda", "fp32"), kHopper); }).code() == ExitCode::usage);
}

TEST_CASE("FP8 on a GPU without it, and BF16 on the CPU, fall back with one line each") {
  const DeviceChoice old_gpu = choose_device(with("auto", "fp8"), kAmpere);
  CHECK(old_gpu.precision == Precision::bf16);
  REQUIRE(old_gpu.notes.size() == 1);
  CHECK(old_gpu.notes[0].find("8.0") != std::string::npos);
  const DeviceChoice cpu = choose_device(with("cpu", "bf16"), kNone);
  CHECK(cpu.precision == Precision::fp32);
  CHECK(cpu.notes.size() == 1);
}

TEST_CASE("FP8 from compute capability 8.9 on; a self-check is one line, and another if only FP8 failed it") {
  CHECK(choose_device(with("auto", "fp8"), kAda).precision == Precision::fp8);
  CHECK(choose_device(with("auto", "fp8"), kAda).notes.empty());
  CHECK(choose_device(with("auto", "fp8"), kBlackwell).precision == Precision::fp8);
  const DeviceChoice unknown = choose_device(with("auto", "fp8"), kUnknown);
  CHECK(unknown.precision == Precision::bf16);
  REQUIRE(unknown.notes.size() == 2);
  CHECK(unknown.notes[0] == "NVIDIA B200 has compute capability 10.0, checked");
  CHECK(unknown.notes[1] == "FP8 GEMMs fail on NVIDIA B200 (they differ): training in BF16");
  CHECK(choose_device(with("cpu", "fp8"), kUnknown).notes.empty());
}

TEST_CASE("FP8 that the library refuses falls back to BF16 with its reason; nobody else hears of it") {
  const DeviceChoice refused = choose_device(with("auto", "fp8"), kOldLibrary);
  CHECK(refused.precision == Precision::bf16);
  REQUIRE(refused.notes.size() == 1);
  CHECK(refused.notes[0] == "FP8 GEMMs fail on NVIDIA H200 (cuBLASLt has no algorithm): training in BF16");
  CHECK(choose_device(with("auto", "bf16"), kOldLibrary).notes.empty());
  CHECK(choose_device(with("auto", "fp8"), kHopper).notes.empty());
}

TEST_CASE("--fp8_scenario mxfp8 is not built: a note, and the recipe of --fp8_recipe") {
  Options options = with("auto", "fp8");
  options.fp8_scenario = Fp8Scenario::mxfp8;
  const DeviceChoice hopper = choose_device(options, kHopper);
  CHECK(hopper.precision == Precision::fp8);
  REQUIRE(hopper.notes.size() == 1);
  CHECK(hopper.notes[0] == kMxfp8Sentence);
  CHECK(choose_device(options, kBlackwell).notes == hopper.notes); // one truth on every GPU
  CHECK(choose_device(options, kAmpere).notes.size() == 1);        // BF16 for another reason: no second line
  options.precision = PrecisionChoice::bf16;
  CHECK(choose_device(options, kHopper).notes.empty());
}

TEST_CASE("lists of blocks: names, numbers and ranges; what is no block is exit 2 with a hint") {
  const auto parse = [](const std::string& list) { return parse_layer_list(list, 12); };
  CHECK(parse("").empty());
  CHECK(parse("first,last,3-5") == std::vector<int>{0, 3, 4, 5, 11});
  CHECK(parse("7") == std::vector<int>{7});
  CHECK(parse(" 4, 2-4 ,last") == std::vector<int>{2, 3, 4, 11});
  CHECK(parse("first-last").size() == 12);
  for (const char* bad : {"12", "-1", "3-12", "5-3", "middle", "1,,2", ",", "1-2-3", "2-", "1.5", "99999999999"}) {
    CAPTURE(bad);
    const Error error = expect_error([&] { parse(bad); });
    CHECK(error.code() == ExitCode::usage);
    CHECK(std::string(error.what()).find("--fp8_bf16_layers") != std::string::npos);
    CHECK(error.hint().find("0 to 11") != std::string::npos);
  }
}

TEST_CASE("every FP8 flag reaches the recipe") {
  Options options;
  options.model = "gpt2";
  CHECK(plan_for(options).model.fp8.bf16_layers.empty());
  CHECK(plan_for(options).model.fp8.scaling == Fp8ScalingRecipe::delayed);
  options.fp8_format = Fp8FormatChoice::e5m2, options.fp8_recipe = Fp8ScalingRecipe::current_grads,
  options.fp8_lm_head = true;
  options.fp8_current_steps = 700;
  options.fp8_margin = 2, options.fp8_interval = 3, options.fp8_amax_history = 5;
  options.fp8_bf16_layers = "first,last";
  const Fp8Options fp8 = plan_for(options).model.fp8;
  CHECK(fp8.format == Fp8FormatChoice::e5m2);
  CHECK(fp8.scaling == Fp8ScalingRecipe::current_grads);
  CHECK(fp8.current_steps == 700);
  options.fp8_current_steps = -1, options.fp8_bf16_steps = 0, options.warmup_steps = 40;
  CHECK(plan_for(options).model.fp8.current_steps == 40);
  CHECK(plan_for(options).options.fp8_current_steps == 40);
  options.fp8_bf16_steps = 50;
  CHECK(plan_for(options).options.fp8_current_steps == 0);
  options.fp8_bf16_steps = -1;
  CHECK(plan_for(options).options.fp8_current_steps == 10);
  CHECK(fp8.bf16_steps == 30); // of a warm-up of hundreds
  CHECK(plan_for(options).options.fp8_bf16_steps == 30);
  options.warmup_steps = 20;
  CHECK(plan_for(options).model.fp8.bf16_steps == 20);
  options.max_steps = 100;
  CHECK(plan_for(options).model.fp8.bf16_steps == 10);
  options.max_steps = 9;
  CHECK(plan_for(options).model.fp8.bf16_steps == 0);
  for (const int64_t given : {0, 40}) {
    options.fp8_bf16_steps = given;
    CHECK(plan_for(options).model.fp8.bf16_steps == given);
  }
  CHECK(fp8.lm_head);
  CHECK(fp8.margin == 2);
  CHECK(fp8.interval == 3);
  CHECK(fp8.amax_history == 5);
  CHECK(fp8.bf16_layers == std::vector<int>{0, 11});
  options.fp8_bf16_layers = "12";
  CHECK(expect_error([&] { plan_for(options); }).code() == ExitCode::usage);
}

TEST_CASE("target = ranks * batch_size * accumulation") {
  CHECK(plan_batches(512, 64, 1).accumulation == 8);
  CHECK(plan_batches(512, 64, 8).accumulation == 1);
  CHECK(plan_batches(6, 2, 1).accumulation == 3);
}

TEST_CASE("batch sizes that do not divide are refused with the nearest that do") {
  const Error error = expect_error([] { plan_batches(512, 48, 1); });
  CHECK(error.code() == ExitCode::usage);
  CHECK(error.hint() == "use --batch_size 32 or 64, or --target_batch_size 480 or 528");
  const Error too_large = expect_error([] { plan_batches(4, 8, 1); });
  CHECK(too_large.hint() == "use --batch_size 4, or --target_batch_size 8");
  const Error ranks = expect_error([] { plan_batches(10, 1, 4); });
  CHECK(ranks.hint() == "use --target_batch_size 8 or 12");
}

TEST_CASE("--batch_size alone: the default target becomes its nearest multiple") {
  Options options;
  options.model = "gpt2", options.batch_size = 12;
  const RunPlan plan = plan_for(options, 1000000);
  CHECK(plan.target_batch_size == 516);
  CHECK(plan.batch.accumulation == 43);
  REQUIRE(plan.notes.size() == 1);
  CHECK(plan.notes[0] ==
        "a step has 516 sequences, the multiple of --batch_size 12 nearest to 512; --target_batch_size sets another "
        "number");
  CHECK(plan_for(options, 1000000, 8).target_batch_size == 480);
  CHECK(plan_for(options, 300).target_batch_size == 36); // halved for little data, then rounded
  options.batch_size = 600;
  CHECK(plan_for(options, 1000000).target_batch_size == 600);
  options.batch_size = 12, options.target_batch_size = 512;
  CHECK(expect_error([&] { plan_for(options, 1000000); }).hint() ==
        "use --batch_size 8 or 16, or --target_batch_size 504 or 516");
}

TEST_CASE("batches beyond 32 bits are refused as others are") {
  Options options;
  options.model = "gpt2";
  options.batch_size = 1 << 29; // times 8 ranks: 2^32
  const Error error = expect_error([&] { plan_for(options, 1000, 8); });
  CHECK(error.code() == ExitCode::usage);
  CHECK(mentions(error, "--target_batch_size 512 is not a multiple of --batch_size 536870912 on 8 ranks"));
  CHECK(error.hint() == "use --batch_size 64"); // no target that an option could hold
  CHECK(expect_error([&] { plan_for(options, 100, 8); }).code() == ExitCode::usage); // fewer than 512 sequences
  CHECK(expect_error([] { plan_batches(512, INT_MAX, 1); }).hint() ==
        "use --batch_size 512, or --target_batch_size 2147483647");
  CHECK(expect_error([] { plan_batches(INT_MAX, 1, 2); }).hint() == "use --target_batch_size 2147483646");
  options = {}, options.target_batch_size = 1 << 30, options.batch_size = 1 << 10;
  CHECK(plan_for(options, int64_t{1} << 40).eval_sequences == 256);
}

TEST_CASE("largest divisor at most") {
  CHECK(largest_divisor_at_most(12, 5) == 4);
  CHECK(largest_divisor_at_most(12, 100) == 12);
  CHECK(largest_divisor_at_most(13, 12) == 1);
}

TEST_CASE("auto batch size divides the target and respects its bound") {
  Options options;
  options.model = "gpt2"; // would take 4
  options.target_batch_size = 12;
  options.max_batch_size = 5;
  CHECK(plan_for(options).batch.batch_size == 4);
  CHECK(plan_for(options).batch.accumulation == 3);
  options.max_batch_size = 3;
  CHECK(plan_for(options).batch.batch_size == 3);
}

TEST_CASE("steps come from --max_steps, from --num_epochs rounded up, or from the model") {
  Options options;
  options.target_batch_size = 16;
  CHECK(plan_for(options).max_steps == defaults_for(config_by_name("nano")).max_steps);
  options.num_epochs = 0.5;
  CHECK(plan_for(options, 1000).max_steps == 32); // 500 / 16 = 31.25
  options.num_epochs = 0;
  options.max_steps = 7;
  CHECK(plan_for(options).max_steps == 7);
}

TEST_CASE("a run without a length stops after 40 epochs of its data, and says so") {
  Options options;
  options.model = "gpt2";
  const RunPlan sample = plan_for(options, 4229); // the built-in sample
  CHECK(sample.target_batch_size == 512);
  CHECK(sample.max_steps == 331);
  REQUIRE(sample.notes.size() == 1);
  CHECK(sample.notes[0] ==
        "the default of 19073 steps would pass over this data 2309 times: stopping after 331 steps, 40 epochs; "
        "--max_steps or --num_epochs overrides it");
  CHECK(plan_for(options, 10'000'000).max_steps == 19073);
  CHECK(plan_for(options, 10'000'000).notes.empty());
  CHECK(plan_for(options, 9).max_steps == 360); // one sequence a step
  options.batch_size = 8;
  CHECK(plan_for(options, 9).max_steps == 100); // 88 epochs, but something to look at

  options = {}, options.model = "gpt2", options.max_steps = 19073;
  CHECK(plan_for(options, 4229).max_steps == 19073);
  CHECK(plan_for(options, 4229).notes.empty());
  options.max_steps = 0, options.num_epochs = 100;
  CHECK(plan_for(options, 4229).max_steps == 826);
  CHECK(plan_for(Options{}, 16917).notes.empty()); // nano on the built-in sample
}

TEST_CASE("the default batch follows the data; one beyond the data is exit 2 with a proposal") {
  Options options;
  options.model = "gpt2";
  const RunPlan play = plan_for(options, 293); // TinyShakespeare
  CHECK(play.target_batch_size == 32);
  CHECK(play.max_steps == 367);
  REQUIRE(play.notes.size() == 2);
  CHECK(contains(play.notes[0], "the data has 293 sequences: a step takes 32 of them, not 512"));
  CHECK(plan_for(options, 293, 32).target_batch_size == 32);
  CHECK(plan_for(options, 293, 64).target_batch_size == 64); // as many as there are ranks
  options.batch_size = 128;
  CHECK(plan_for(options, 293).target_batch_size == 128);
  options.batch_size = 0;

  options.target_batch_size = 293;
  CHECK(plan_for(options, 293).target_batch_size == 293);
  options.target_batch_size = 294;
  const Error beyond = expect_error([&] { plan_for(options, 293); });
  CHECK(beyond.code() == ExitCode::usage);
  CHECK(mentions(beyond, "--target_batch_size 294 is more than the 293 sequences of the training data"));
  CHECK(contains(beyond.hint(), "use --target_batch_size 293 or less"));
  options.target_batch_size = 512, options.batch_size = 16;
  CHECK(contains(expect_error([&] { plan_for(options, 293, 2); }).hint(), "--target_batch_size 288 or less"));
}

TEST_CASE("the resolved options repeat the plan: resolving them again changes nothing") {
  Options options;
  options.num_epochs = 2;
  const RunPlan once = plan_for(options);
  const RunPlan twice = plan_for(once.options);
  CHECK(once.options.model == "nano");
  CHECK(once.options == twice.options);
  CHECK(once.max_steps == twice.max_steps);
}

TEST_CASE("an automatic warm-up leaves room in a short run, an explicit one is obeyed") {
  Options options;
  const auto warmup = [&](int64_t steps) {
    options.max_steps = steps;
    return plan_for(options).schedule.warmup_steps;
  };
  const std::string rule = "in a short run a tenth of it, at least 10 steps, at most half of it"; // as --help prints it
  CHECK(contains(help_all_text({}, 1000), "700 for gpt2, 20 for nano; " + rule + "]"));
  CHECK(contains(to_explained_toml({}), "# 700 for gpt2, 20 for nano; " + rule + "\n"));
  CHECK(warmup(1) == 0);
  CHECK(warmup(2) == 1);
  CHECK(warmup(6) == 3);
  CHECK(warmup(12) == 6); // half: a tenth would be one step
  CHECK(warmup(20) == 10);
  CHECK(warmup(50) == 10);
  CHECK(warmup(200) == 20); // a tenth
  CHECK(warmup(100000) == defaults_for(config_by_name("nano")).warmup_steps);
  options.warmup_steps = 40;
  CHECK(plan_for(options).schedule.warmup_steps == 40);
}

TEST_CASE("shape flags change the model; impossible shapes are exit 2") {
  Options options;
  options.model = "gpt2";
  options.layers = 2, options.heads = 2, options.channels = 32, options.seq_len = 24;
  const GPT2Config config = resolve_config(options, false);
  CHECK(config.layers == 2);
  CHECK(config.channels == 32);
  CHECK(config.seq_len == 24);
  options.heads = 5;
  CHECK(expect_error([&] { resolve_config(options, false); }).code() == ExitCode::usage);
  CHECK(resolve_config(Options{}, true).name == "gpt2");
  CHECK(resolve_config(Options{}, false).name == "nano");
}

TEST_CASE("the roofline of the four sizes: GEMMs, attention and memory traffic") {
  struct Row {
    const char* model;
    double fp8, bf16; // tokens per second on one H200
  };
  // What training reaches of it on a fast machine: 94 to 101% (engine/backend/roofline.cpp).
  for (const Row& row : {Row{"gpt2", 1000e3, 660e3}, Row{"gpt2-medium", 373e3, 245e3},
                         Row{"gpt2-large", 184.5e3, 114.7e3}, Row{"gpt2-xl", 97.3e3, 59.8e3}}) {
    CAPTURE(row.model);
    ModelOptions model;
    model.config = config_by_name(row.model);
    model.precision = Precision::fp8;
    CHECK(h200_roofline(model) == doctest::Approx(row.fp8).epsilon(0.02));
    model.precision = Precision::bf16;
    CHECK(h200_roofline(model) == doctest::Approx(row.bf16).epsilon(0.02));
  }
}

TEST_CASE("the roofline is known for the H200 alone, and counts the LM head in its precision") {
  ModelOptions model;
  model.precision = Precision::fp8;
  const auto roofline = [&](const char* name) {
    CudaDeviceInfo device;
    device.name = name;
    return gpu_roofline(device, model);
  };
  CHECK(roofline("NVIDIA H200").has_value());
  for (const char* other : {"NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA GH200 480GB", "NVIDIA A100-SXM4-80GB"})
    CHECK_FALSE(roofline(other).has_value());
  const double with_head = h200_roofline(model);
  model.fp8.lm_head = false;
  CHECK(h200_roofline(model) < 0.95 * with_head);
}
