// GPT-2 on the GPU in FP8 against the CPU's emulation of the same recipe, against FP32 and BF16, and against itself.
#include "engine/cuda/gpt2_cuda.h"
#include "tests/gpu/model_test.h"

namespace gpt2 {
namespace {

ModelOptions fp8_options(const Fp8Options& fp8 = {}, const GPT2Config& config = small_config()) {
  ModelOptions options = small_options(Precision::fp8, config);
  options.fp8 = fp8;
  return options;
}

std::unique_ptr<Model> gpu_model(const Fp8Options& fp8 = {}, const CudaModelOptions& cuda = {},
                                 const GPT2Config& config = small_config()) {
  return make_cuda_model(fp8_options(fp8, config), cuda);
}

bool has_fp8() {
  if (probe_cuda_device(0).compute_capability >= 89) return true;
  MESSAGE("skipped: FP8 products need compute capability 8.9");
  return false;
}

// A model with the same random weights in every engine, and one step of two micro-batches on it.
struct Steps {
  void load(Model& model) const { randomize(model); }
  StepResult run(Model& model) const {
    load(model);
    return train_step(model, {&first, &second});
  }
  TokenBatch first{4, 64, 1000, 1}, second{4, 64, 1000, 2, 7};
};

// Sixteen tokens, each followed by one of them: learnt in a few steps.
struct PatternBatch : TokenBatch {
  explicit PatternBatch(uint64_t seed) : TokenBatch(4, 64, 16, seed) {
    for (size_t i = 0; i < inputs.size(); ++i) targets[i] = (5 * inputs[i] + 3) % 16;
  }
};

float loss_after(Model& model, int steps) {
  float loss = 0;
  for (int step = 0; step < steps; ++step) {
    const PatternBatch batch(static_cast<uint64_t>(step));
    const StepResult result = train_step(model, {&batch}, update_settings(3e-3f));
    CHECK(result.verdict == Verdict::applied);
    loss = result.loss;
  }
  return loss;
}

const Fp8TensorStats& find(const std::vector<Fp8TensorStats>& stats, const std::string& name) {
  const auto found =
      std::find_if(stats.begin(), stats.end(), [&](const Fp8TensorStats& s) { return s.tensor.text() == name; });
  REQUIRE(found != stats.end());
  return *found;
}

// Healthy weights and moments with the recipe, the guard and the plans as they stand now.
MemoryState with_weights_of(const MemoryState& healthy, MemoryState now) {
  for (const auto& [name, tensor] : healthy.floats) {
    if (name.rfind("fp8/", 0) != 0) now.floats.at(name) = tensor;
  }
  return now;
}

void check_scales_fit(Model& model) {
  for (const Fp8TensorStats& tensor : model.fp8_stats()) {
    CAPTURE(tensor.tensor.text());
    CHECK(std::isfinite(tensor.amax));
    if (!tensor.fixed_scale) CHECK(tensor.scale * tensor.amax > fp8_max(tensor.format) / 16);
    CHECK(tensor.saturated < 0.05);
  }
}

} // namespace

TEST_CASE("a GPU that has FP8 does not refuse it") {
  if (!has_fp8()) return;
  CHECK(fp8_refusal(0) == "");
}

TEST_CASE("loss and every gradient agree with the emulation and stay near FP32") {
  if (!has_fp8()) return;
  const Steps steps;
  const auto fp32 = make_cpu_model(small_options(Precision::fp32));
  const StepResult exact = steps.run(*fp32);
  for (const Fp8FormatChoice format : {Fp8FormatChoice::hybrid, Fp8FormatChoice::e4m3, Fp8FormatChoice::e5m2}) {
    for (const bool lm_head : {true, false}) {
      CAPTURE(static_cast<int>(format));
      CAPTURE(lm_head);
      Fp8Options options;
      options.format = format;
      options.lm_head = lm_head;
      const auto cpu = make_cpu_model(fp8_options(options)), gpu = gpu_model(options);
      const StepResult expected = steps.run(*cpu), actual = steps.run(*gpu);
      CHECK(actual.tokens == expected.tokens);
      CHECK(actual.verdict == Verdict::applied);
      CHECK(std::fabs(actual.loss - expected.loss) < 3e-3 * expected.loss);
      CHECK(std::fabs(actual.loss - exact.loss) < 1e-2 * exact.loss);
      check_gradients(*gpu, *cpu, 0.98, 0.05); // other BF16 roundings, so other FP8 codes: 0.984 and 0.033 seen
      CHECK(check_gradients(*gpu, *fp32, 0.97, 0.07) > 0.985);
    }
  }
}

TEST_CASE("so do those of a model whose products have GELU and softmax in them") {
  if (!has_fp8()) return;
  const Steps steps;
  const auto fp32 = make_cpu_model(small_options(Precision::fp32, wide_config()));
  const StepResult exact = steps.run(*fp32);
  for (const Fp8FormatChoice format : {Fp8FormatChoice::hybrid, Fp8FormatChoice::e4m3}) {
    CAPTURE(static_cast<int>(format));
    Fp8Options options;
    options.format = format;
    const auto cpu = make_cpu_model(fp8_options(options, wide_config())), gpu = gpu_model(options, {}, wide_config());
    const StepResult expected = steps.run(*cpu), actual = steps.run(*gpu);
    CHECK(actual.tokens == expected.tokens);
    CHECK(actual.verdict == Verdict::applied);
    CHECK(std::fabs(actual.loss - expected.loss) < 3e-3 * expected.loss);
    CHECK(std::fabs(actual.loss - exact.loss) < 1e-2 * exact.loss);
    check_gradients(*gpu, *cpu, 0.97, 0.07);                // a slope in 8 bits besides
    CHECK(check_gradients(*gpu, *fp32, 0.96, 0.09) > 0.98); // the emulation's: 0.988, mean 0.993
  }
}

TEST_CASE("current scaling agrees with the emulation, and over more than one chunk of the LM head") {
  if (!has_fp8()) return;
  ModelOptions options = fp8_options();
  options.batch_size = 68; // 4,352 rows: a whole chunk of 4,096 and a piece
  const TokenBatch batch(68, 64, 1000, 3, 5);
  for (const bool current : {false, true}) {
    for (const Fp8FormatChoice format : {Fp8FormatChoice::hybrid, Fp8FormatChoice::e5m2}) {
      CAPTURE(current);
      CAPTURE(static_cast<int>(format));
      options.fp8.scaling = current ? Fp8ScalingRecipe::current : Fp8ScalingRecipe::delayed;
      options.fp8.format = format;
      const auto cpu = make_cpu_model(options), gpu = make_cuda_model(options, {});
      randomize(*cpu);
      randomize(*gpu);
      const StepResult expected = train_step(*cpu, {&batch}), actual = train_step(*gpu, {&batch});
      CHECK(std::fabs(actual.loss - expected.loss) < 3e-3 * expected.loss);
      check_gradients(*gpu, *cpu, 0.98, 0.05);
      const float amax = find(cpu->fp8_stats(), "lm_head/act").amax; // of all chunks
      CHECK(find(gpu->fp8_stats(), "lm_head/act").amax == doctest::Approx(amax).epsilon(0.05));
    }
  }
}

TEST_CASE("current scaling: a micro-batch is scaled by its own values, whatever came before it in the step") {
  if (!has_fp8()) return;
  Fp8Options options;
  options.scaling = Fp8ScalingRecipe::current;
  const TokenBatch a(4, 64, 1000, 1), b(4, 64, 1000, 2);
  const auto total_loss = [&](const std::vector<const TokenBatch*>& batches) {
    const auto model = gpu_model(options, deterministic());
    randomize(*model);
    const StepResult result = train_step(*model, batches);
    for (const Fp8TensorStats& tensor : model->fp8_stats()) CHECK(tensor.saturated <= 1.0);
    return static_cast<double>(result.loss) * static_cast<double>(result.tokens);
  };
  const double apart = total_loss({&a}) + total_loss({&b});
  CHECK(total_loss({&a, &b}) == doctest::Approx(apart).epsilon(1e-6));
  CHECK(total_loss({&b, &a}) == doctest::Approx(apart).epsilon(1e-6));
}

TEST_CASE("a model for inference reads a training model's state and gives its losses and logits, in less memory") {
  if (!has_fp8()) return;
  for (const Precision precision : {Precision::bf16, Precision::fp8}) {
    CAPTURE(static_cast<int>(precision));
    ModelOptions options = small_options(precision);
    const auto trained = make_cuda_model(options, deterministic());
    train(*trained, 0, 3);
    options.purpose = Purpose::inference;
    const auto reader = make_cuda_model(options, deterministic());
    copy_state(*trained, *reader);
    const TokenBatch batch(4, 64, 1000, 5, 9);
    std::vector<LossSum> expected(4), actual(4);
    trained->evaluate(batch.view, expected);
    reader->evaluate(batch.view, actual);
    for (size_t row = 0; row < expected.size(); ++row) {
      CHECK(actual[row].tokens == expected[row].tokens);
      CHECK(actual[row].sum == expected[row].sum);
    }
    std::vector<float> expected_logits(1000), logits(1000);
    trained->next_token_logits(std::span(batch.inputs).first(40), expected_logits);
    reader->next_token_logits(std::span(batch.inputs).first(40), logits);
    CHECK(same_bits(logits, expected_logits));
    CHECK_THROWS_AS(reader->micro_step(batch.view, 0, 1), std::logic_error);
    const int64_t training = cuda_model_bytes(small_options(precision), {}), inference = cuda_model_bytes(options, {});
    CHECK(inference < training);
  }
}

TEST_CASE("weights alone: a fresh optimizer and a cold recipe on them") {
  if (!has_fp8()) return;
  const auto trained = gpu_model({}, deterministic()), other = gpu_model({}, deterministic());
  train(*trained, 0, 3);
  train(*other, 10, 2);
  MemoryState state = state_of(*trained);
  other->load_weights(state);
  const MemoryState loaded = state_of(*other);
  for (const auto& [name, tensor] : loaded.floats) {
    CAPTURE(name);
    if (name.starts_with("params/")) CHECK(same_bits(tensor.values, state.floats.at(name).values));
    if (name.starts_with("adam_")) CHECK(std::ranges::all_of(tensor.values, [](float x) { return x == 0; }));
  }
  CHECK(loaded.ints.at("adam_step") == 0);
  CHECK(loaded.ints.at("fp8/calibration_due") == 1);
}

TEST_CASE("the statistics are the emulation's: names, formats, amaxes and scales") {
  if (!has_fp8()) return;
  const Steps steps;
  for (const Fp8FormatChoice format : {Fp8FormatChoice::hybrid, Fp8FormatChoice::e5m2}) {
    Fp8Options options;
    options.format = format;
    const auto cpu = make_cpu_model(fp8_options(options)), gpu = gpu_model(options);
    steps.run(*cpu);
    steps.run(*gpu);
    const std::vector<Fp8TensorStats> expected = cpu->fp8_stats(), actual = gpu->fp8_stats();
    REQUIRE(actual.size() == expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(expected[i].tensor.text());
      CHECK(actual[i].tensor.text() == expected[i].tensor.text());
      CHECK(actual[i].format == expected[i].format);
      if (expected[i].tensor.text() == "lm_head/grad") { // a static scale: nothing is metered
        CHECK(actual[i].scale == kDlogitsScale);
        continue;
      }
      CHECK(std::fabs(actual[i].amax - expected[i].amax) <=
            0.15f * expected[i].amax); // one value, after BF16 and FP8 noise
      CHECK(std::fabs(actual[i].scale - expected[i].scale) <= 0.15f * expected[i].scale);
      CHECK(std::fabs(actual[i].flushed - expected[i].flushed) <= 0.02);
      CHECK(actual[i].saturated < 0.01);
    }
  }
}

TEST_CASE("blocks told to stay in BF16, current scaling, and margins leave the gradients right") {
  if (!has_fp8()) return;
  const Steps steps;
  const auto fp32 = make_cpu_model(small_options(Precision::fp32));
  steps.run(*fp32);
  Fp8Options options;
  SUBCASE("the first block in BF16") { options.bf16_layers = {0}; }
  SUBCASE("the last block in BF16") { options.bf16_layers = {1}; }
  SUBCASE("current scaling") { options.scaling = Fp8ScalingRecipe::current; }
  SUBCASE("current scaling, e5m2") {
    options.scaling = Fp8ScalingRecipe::current;
    options.format = Fp8FormatChoice::e5m2;
  }
  SUBCASE("current scaling of gradients") { options.scaling = Fp8ScalingRecipe::current_grads; }
  SUBCASE("current scaling of activations") { options.scaling = Fp8ScalingRecipe::current_activations; }
  SUBCASE("current scaling of activations, e5m2") {
    options.scaling = Fp8ScalingRecipe::current_activations;
    options.format = Fp8FormatChoice::e5m2;
  }
  SUBCASE("current scaling of weights") { options.scaling = Fp8ScalingRecipe::current_weights; }
  SUBCASE("a margin") { options.margin = 1; }
  const auto gpu = gpu_model(options);
  const StepResult result = steps.run(*gpu);
  CHECK(result.verdict == Verdict::applied);
  CHECK(check_gradients(*gpu, *fp32, 0.97, 0.07) > 0.985);
}

TEST_CASE("with every product in BF16 it is the BF16 model") {
  if (!has_fp8()) return;
  const Steps steps;
  Fp8Options options;
  options.bf16_layers = {0, 1};
  options.lm_head = false;
  const auto gpu = gpu_model(options), bf16 = make_cuda_model(small_options(Precision::bf16), {});
  const StepResult actual = steps.run(*gpu), expected = steps.run(*bf16);
  CHECK(std::fabs(actual.loss - expected.loss) < 1e-4 * expected.loss);
  check_gradients(*gpu, *bf16, 0.9999, 0.002);
}

TEST_CASE("twenty steps learn what BF16 learns") {
  if (!has_fp8()) return;
  const auto bf16 = make_cuda_model(small_options(Precision::bf16), {});
  const float expected = loss_after(*bf16, 20);
  CHECK(expected < 1.0f); // from log(1000) = 6.9
  for (const Fp8FormatChoice format : {Fp8FormatChoice::hybrid, Fp8FormatChoice::e4m3, Fp8FormatChoice::e5m2}) {
    CAPTURE(static_cast<int>(format));
    Fp8Options options;
    options.format = format;
    const auto gpu = gpu_model(options);
    CHECK(std::fabs(loss_after(*gpu, 20) - expected) < 0.05f);
  }
}

TEST_CASE("a skipped step leaves weights, scales and histories alone; two in a row lead to a calibration") {
  if (!has_fp8()) return;
  const auto gpu = gpu_model();
  train(*gpu, 0, 3);
  const TokenBatch nothing(4, 64, 1000, 1, 1), batch(4, 64, 1000, 2);
  MemoryState before = state_of(*gpu);
  CHECK(before.ints.at("fp8/calibration_due") == 0);
  CHECK(before.ints.at("fp8/applied_steps") == 3);

  CHECK(train_step(*gpu, {&nothing}).verdict == Verdict::skipped_nonfinite);
  before.ints["guard/skipped_in_a_row"] = before.ints["fp8/skipped_in_a_row"] = 1;
  CHECK(same_state(state_of(*gpu), before));
  CHECK(train_step(*gpu, {&nothing}).verdict == Verdict::skipped_nonfinite);
  before.ints["guard/skipped_in_a_row"] = before.ints["fp8/skipped_in_a_row"] = 2;
  before.ints["fp8/calibration_due"] = 1;
  CHECK(same_state(state_of(*gpu), before));

  const StepResult result = train_step(*gpu, {&batch});
  CHECK(result.verdict == Verdict::applied);
  CHECK(std::isfinite(result.grad_norm));
  const MemoryState after = state_of(*gpu);
  CHECK(after.ints.at("fp8/calibration_due") == 0);
  CHECK(after.ints.at("fp8/applied_steps") == 4);
  const MemoryState::Floats& history =
      after.floats.at("fp8/amax_history"); // only the calibration's and this step's amaxes
  const size_t length = static_cast<size_t>(history.shape[1]);
  for (size_t id = 0; id < static_cast<size_t>(history.shape[0]); ++id) {
    const auto begin = history.values.begin() + static_cast<std::ptrdiff_t>(id * length);
    CHECK(std::count_if(begin, begin + static_cast<std::ptrdiff_t>(length), [](float amax) { return amax != 0; }) <= 2);
  }
}

TEST_CASE("activations that outgrow their scale saturate once, and the scales recover") {
  if (!has_fp8()) return;
  const auto gpu = gpu_model();
  const TokenBatch batch(4, 64, 1000, 1);
  train_step(*gpu, {&batch}, update_settings(1e-6f));
  MemoryState state = state_of(*gpu);
  for (float& weight : state.floats["params/ln_f.weight"].values) weight *= 64;
  gpu->load_state(state);
  CHECK(train_step(*gpu, {&batch}, update_settings(1e-6f)).verdict == Verdict::applied);
  CHECK(find(gpu->fp8_stats(), "lm_head/act").saturated > 0.1);
  CHECK(train_step(*gpu, {&batch}, update_settings(1e-6f)).verdict == Verdict::applied);
  CHECK(find(gpu->fp8_stats(), "lm_head/act").saturated < 1e-3);
}

TEST_CASE("what has its own scale does not saturate when all grows, what has that of the step before does") {
  if (!has_fp8()) return;
  using enum Fp8ScalingRecipe;
  const TokenBatch batch(4, 64, 1000, 1);
  for (const Fp8ScalingRecipe scaling : {delayed, current, current_grads, current_activations, current_weights}) {
    CAPTURE(static_cast<int>(scaling));
    Fp8Options options;
    options.scaling = scaling;
    const auto gpu = gpu_model(options);
    train_step(*gpu, {&batch}, update_settings(0));
    MemoryState state = state_of(*gpu);
    for (const char* name : {"params/ln_f.weight", "params/h.0.mlp.c_fc.weight"})
      for (float& weight : state.floats.at(name).values) weight *= 64;
    gpu->load_state(state);
    CHECK(train_step(*gpu, {&batch}, update_settings(0)).verdict == Verdict::applied);
    const std::vector<Fp8TensorStats> stats = gpu->fp8_stats();
    const auto saturates = [&](const char* name) { return find(stats, name).saturated > 1e-3; };
    CHECK(saturates("lm_head/act") == (scaling != current && scaling != current_activations));
    CHECK(saturates("h.0/fc/weight") == (scaling != current && scaling != current_weights));
    CHECK(saturates("h.1/fcproj/grad") == (scaling != current && scaling != current_grads));
  }
}

TEST_CASE(
    "the first steps under current scaling, then delayed with the history they left: graph, evaluations, resume") {
  if (!has_fp8()) return;
  Fp8Options fp8;
  fp8.scaling = Fp8ScalingRecipe::current;
  const auto current = gpu_model(fp8, deterministic());
  fp8.scaling = Fp8ScalingRecipe::delayed;
  const auto delayed = gpu_model(fp8, deterministic());
  fp8.current_steps = 4; // in the first of which the graph is captured
  const auto mixed = gpu_model(fp8, deterministic()), resumed = gpu_model(fp8, deterministic());
  const TokenBatch batch(4, 64, 1000, 5);
  CHECK(same_bits(train(*mixed, 0, 3), train(*current, 0, 3)));
  MemoryState early = state_of(*mixed);
  evaluate(*mixed, batch.view);
  CHECK(same_bits(train(*mixed, 3, 1), train(*current, 3, 1)));
  MemoryState state = state_of(*current);
  CHECK(same_state(state_of(*mixed), state));
  evaluate(*mixed, batch.view);

  delayed->load_state(state);
  const std::vector<float> losses = train(*mixed, 4, 4);
  CHECK(same_bits(train(*delayed, 4, 4), losses));
  CHECK_FALSE(same_bits(train(*current, 4, 4), losses));
  train(*resumed, 0, 6); // has graphs of its own, with scales of the past
  resumed->load_state(early);
  train(*resumed, 3, 1);
  CHECK(same_bits(train(*resumed, 4, 4), losses));
}

// As if of a run without FP8.
MemoryState without_recipe(MemoryState state) {
  const auto forget = [](auto& entries) {
    std::erase_if(entries, [](const auto& entry) { return entry.first.starts_with("fp8/"); });
  };
  forget(state.floats);
  forget(state.ints);
  forget(state.texts);
  return state;
}

TEST_CASE("FP8 that begins later: BF16 until then, then as if resumed from there: graph, evaluations, resume") {
  if (!has_fp8()) return;
  Fp8Options fp8;
  fp8.bf16_steps = 4; // in the first of which the graph is captured
  const auto model = gpu_model(fp8, deterministic()), resumed = gpu_model(fp8, deterministic());
  const auto bf16 = make_cuda_model(small_options(Precision::bf16), deterministic());
  const auto cold = gpu_model({}, deterministic());
  const TokenBatch batch(4, 64, 1000, 5);
  std::vector<float> before = train(*model, 0, 3);
  MemoryState early = state_of(*model);
  before.push_back(train(*model, 3, 1).at(0));
  CHECK(same_bits(before, train(*bf16, 0, 4)));
  CHECK(evaluate(*model, batch.view).sum == evaluate(*bf16, batch.view).sum);
  CHECK(model->before_fp8());
  CHECK(model->step_label() == "BF16");
  CHECK(model->fp8_stats().empty());

  MemoryState in_bf16 = without_recipe(state_of(*model));
  CHECK(same_state(in_bf16, state_of(*bf16)));
  cold->load_state(in_bf16);
  const std::vector<float> losses = train(*model, 4, 4);
  CHECK_FALSE(model->before_fp8());
  CHECK(model->step_label() == "FP8");
  CHECK_FALSE(model->fp8_stats().empty());
  CHECK(same_bits(train(*cold, 4, 4), losses));
  train(*resumed, 0, 6); // has graphs of its own, in FP8
  resumed->load_state(early);
  train(*resumed, 3, 1);
  CHECK(same_bits(train(*resumed, 4, 4), losses));
  CHECK(same_state(state_of(*model), state_of(*resumed)));
}

TEST_CASE(
    "before FP8 begins a step has BF16's bits: more rows than a chunk of logits, GELU fused and not, recomputation") {
  if (!has_fp8()) return;
  for (const GPT2Config& config : {small_config(), wide_config()}) {
    for (const Recompute recompute : {Recompute::none, Recompute::gelu, Recompute::block}) {
      CAPTURE(config.channels);
      CAPTURE(static_cast<int>(recompute));
      CudaModelOptions cuda = deterministic();
      cuda.recompute = recompute;
      ModelOptions options = small_options(Precision::bf16, config);
      options.batch_size = 144; // 9,216 rows
      const auto bf16 = make_cuda_model(options, cuda);
      options.precision = Precision::fp8;
      options.fp8.bf16_steps = 2;
      const auto model = make_cuda_model(options, cuda);
      const TokenBatch batch(options.batch_size, config.seq_len, config.vocab, 5, 9);
      for (int i = 0; i < 2; ++i) {
        const StepResult expected = train_step(*bf16, {&batch}), actual = train_step(*model, {&batch});
        CHECK(actual.loss == expected.loss);
        CHECK(actual.grad_norm == expected.grad_norm);
      }
      CHECK(same_state(without_recipe(state_of(*model)), state_of(*bf16)));
    }
  }
}

TEST_CASE("a step with gradients a million times too large is survived, and the scales come back") {
  if (!has_fp8()) return;
  Fp8Options options;
  options.amax_history = 4;
  const auto gpu = gpu_model(options);
  const TokenBatch batch(4, 64, 1000, 1);
  float before = 0;
  for (int i = 0; i < 5; ++i) before = train_step(*gpu, {&batch}).loss;
  const MemoryState healthy = state_of(*gpu);
  MemoryState inflated = healthy;
  for (float& weight : inflated.floats.at("params/ln_f.weight").values) weight *= 1e6f;
  gpu->load_state(inflated);
  train_step(*gpu, {&batch}, update_settings(0));
  CHECK(find(gpu->fp8_stats(), "lm_head/act").saturated > 0.1);

  MemoryState mixed = with_weights_of(healthy, state_of(*gpu));
  gpu->load_state(mixed);
  for (int i = 0; i < options.amax_history + 1; ++i) {
    const StepResult result = train_step(*gpu, {&batch});
    CHECK(result.verdict == Verdict::applied);
    CHECK(std::isfinite(result.loss));
  }
  check_scales_fit(*gpu);
  CHECK(train_step(*gpu, {&batch}).loss < before);
}

TEST_CASE("a gradient that overflows skips the step; after two skips the recipe calibrates and training goes on") {
  if (!has_fp8()) return;
  const auto gpu = gpu_model();
  const TokenBatch batch(4, 64, 1000, 1);
  for (int i = 0; i < 3; ++i) train_step(*gpu, {&batch});
  const MemoryState healthy = state_of(*gpu);
  MemoryState inflated = healthy;
  inflated.floats.at("params/ln_f.weight").values[3] =
      std::numeric_limits<float>::infinity(); // FP8 saturates, gradients cannot
  gpu->load_state(inflated);
  for (int i = 0; i < 2; ++i) CHECK(train_step(*gpu, {&batch}).verdict == Verdict::skipped_nonfinite);
  MemoryState skipped = with_weights_of(healthy, state_of(*gpu));
  CHECK(skipped.ints.at("fp8/calibration_due") == 1);
  gpu->load_state(skipped);
  const StepResult result = train_step(*gpu, {&batch});
  CHECK(result.verdict == Verdict::applied);
  CHECK(std::isfinite(result.loss));
  CHECK(state_of(*gpu).ints.at("fp8/calibration_due") == 0);
  check_scales_fit(*gpu);
}

TEST_CASE("a block left in BF16 amid a run computes as one that was asked for, graph or not, and after a resume") {
  if (!has_fp8()) return;
  const Steps steps;
  for (const int layer : {0, 1}) {
    CAPTURE(layer);
    Fp8Options asked;
    asked.bf16_layers = {layer};
    const auto expected = gpu_model(asked, deterministic()), gpu = gpu_model({}, deterministic());
    train(*gpu, 0, 3); // the graph is captured with the block in FP8
    MemoryState saved = state_of(*gpu);
    gpu->leave_in_bf16(layer);
    expected->load_state(saved);
    CHECK(same_bits(train(*gpu, 3, 3), train(*expected, 3, 3)));
    for (const Fp8TensorStats& tensor : gpu->fp8_stats())
      CHECK((tensor.tensor.is_lm_head() || tensor.tensor.layer != layer));

    MemoryState later = state_of(*gpu);
    CHECK(later.texts.at("fp8/left_in_bf16") == std::to_string(layer));
    const auto resumed = gpu_model({}, deterministic());
    train(*resumed, 0, 2); // has a graph of its own, with every block in FP8
    resumed->load_state(later);
    CHECK(same_bits(train(*resumed, 6, 2), train(*gpu, 6, 2)));
  }
}

TEST_CASE("a saved state continues bit for bit, and moves between FP8 and BF16") {
  if (!has_fp8()) return;
  const auto first = gpu_model({}, deterministic());
  train(*first, 0, 3);
  MemoryState saved = state_of(*first);
  const auto second = gpu_model({}, deterministic());
  second->load_state(saved);
  CHECK(same_state(state_of(*second), saved));
  train(*first, 3, 3);
  train(*second, 3, 3);
  CHECK(same_state(state_of(*second), state_of(*first)));

  const auto bf16 = make_cuda_model(small_options(Precision::bf16), deterministic());
  bf16->load_state(saved);
  const float in_bf16 = train(*bf16, 3, 1)[0];
  MemoryState plain = state_of(*bf16); // has no scales: the recipe is cold and calibrates
  const auto back = gpu_model({}, deterministic());
  back->load_state(plain);
  CHECK(state_of(*back).ints.at("fp8/calibration_due") == 1);
  CHECK(std::fabs(train(*back, 3, 1)[0] - in_bf16) < 0.3f); // the same batch, one update later
}

namespace {

void check_bitwise(const GPT2Config& config) {
  Fp8Options fp8;
  fp8.amax_history = 2; // a trace that an evaluation left would show soon
  const auto reference = gpu_model(fp8, deterministic(), config);
  const std::vector<float> losses = train(*reference, 0, 5);
  CudaModelOptions options = deterministic();
  bool evaluating = false;
  SUBCASE("again") {}
  SUBCASE("without the graph") { options.cuda_graph = false; }
  SUBCASE("recomputing blocks") { options.recompute = Recompute::block; }
  SUBCASE("with evaluations, one before the first step") { evaluating = true; }
  const auto other = gpu_model(fp8, options, config);
  const TokenBatch batch(4, 64, 1000, 5);
  std::vector<float> other_losses, logits(1000);
  for (int step = 0; step < 5; ++step) {
    if (evaluating) {
      evaluate(*other, batch.view);
      other->next_token_logits(std::span(batch.inputs).first(10), logits);
    }
    other_losses.push_back(train(*other, step, 1)[0]);
  }
  CHECK(same_bits(other_losses, losses));
  CHECK(same_state(state_of(*other), state_of(*reference)));
}

void check_evaluation(const GPT2Config& config, double tolerance) {
  for (const bool lm_head : {true, false}) {
    CAPTURE(lm_head);
    Fp8Options options;
    options.lm_head = lm_head;
    const auto cpu = make_cpu_model(fp8_options(options, config)), gpu = gpu_model(options, {}, config);
    randomize(*cpu);
    randomize(*gpu);
    const TokenBatch batch(4, 64, 1000, 1, 5);
    std::vector<float> expected(1000), actual(1000);
    cpu->next_token_logits(std::span(batch.inputs).first(64), expected);
    gpu->next_token_logits(std::span(batch.inputs).first(64), actual);
    CHECK(agreement(actual, expected).cosine > 0.99);
    gpu->micro_step(batch.view, 0, 1);
    const LossSum sum = evaluate(*gpu, batch.view); // the same weights and scales
    gpu->update(update_settings());
    const StepResult result = gpu->step_result();
    CHECK(sum.tokens == result.tokens);
    CHECK(static_cast<float>(sum.sum / static_cast<double>(sum.tokens)) ==
          doctest::Approx(result.loss).epsilon(tolerance));
  }
}

} // namespace

TEST_CASE("bitwise equal: a second run, without the graph, recomputing, with evaluations in between") {
  if (has_fp8()) check_bitwise(small_config());
}

TEST_CASE("so is a model whose products have GELU and softmax in them") {
  if (has_fp8()) check_bitwise(wide_config());
}

TEST_CASE("evaluation gives the loss of training, and logits near the emulation's") {
  if (!has_fp8()) return;
  check_evaluation(small_config(), 1e-6);
  check_evaluation(wide_config(), 1e-4); // the LM head's product is another kernel there
}

TEST_CASE("FP8 keeps less than BF16") {
  const GPT2Config config = small_config(8);
  const int64_t fp8 = cuda_model_bytes(fp8_options({}, config), {});
  ModelOptions large = small_options(Precision::bf16, config);
  ModelOptions large_fp8 = fp8_options({}, config);
  large.batch_size = large_fp8.batch_size = 256;
  CHECK(cuda_model_bytes(large_fp8, {}) < cuda_model_bytes(large, {}));
  CHECK(cuda_model_bytes(large_fp8, {}) > fp8);
}

} // namespace gpt2
