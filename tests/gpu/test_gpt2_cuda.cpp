// GPT-2 on the GPU in BF16 against the CPU engine in FP32, tensor by tensor, and against itself, bit by bit.
#include "engine/cuda/gpt2_cuda.h"

#include "tests/expect_error.h"
#include "tests/gpu/model_test.h"

namespace gpt2 {
namespace {

std::unique_ptr<Model> gpu_model(const CudaModelOptions& cuda = {}, const GPT2Config& config = small_config()) {
  return make_cuda_model(small_options(Precision::bf16, config), cuda);
}
std::unique_ptr<Model> cpu_model(const GPT2Config& config = small_config()) {
  return make_cpu_model(small_options(Precision::fp32, config));
}

} // namespace

TEST_CASE("both engines start from the same weights") {
  const auto cpu = cpu_model(), gpu = gpu_model();
  for (const ParameterTensor& tensor : cpu->parameters().tensors()) {
    CAPTURE(tensor.name);
    CHECK(relative_error(gpu->read_tensor(tensor, TensorKind::weight).values,
                         cpu->read_tensor(tensor, TensorKind::weight).values) < 1e-6);
  }
}

TEST_CASE("loss and every gradient agree with the CPU, accumulated over two micro-batches") {
  for (const GPT2Config& config : {small_config(2, 2, 128), small_config(3, 4, 128), small_config(1, 1, 64)}) {
    CAPTURE(config.layers);
    CAPTURE(config.heads);
    const auto cpu = cpu_model(config), gpu = gpu_model({}, config);
    randomize(*cpu);
    copy_state(*cpu, *gpu);
    const TokenBatch first(4, 64, 1000, 1), second(4, 64, 1000, 2, 7);
    const StepResult expected = train_step(*cpu, {&first, &second}), actual = train_step(*gpu, {&first, &second});
    CHECK(actual.tokens == expected.tokens);
    CHECK(actual.verdict == Verdict::applied);
    CHECK(std::fabs(actual.loss - expected.loss) < 2e-3 * expected.loss);
    CHECK(std::fabs(actual.grad_norm - expected.grad_norm) < 1e-2 * expected.grad_norm);
    check_gradients(*gpu, *cpu, 0.999, 0.02);
  }
}

TEST_CASE("the hand-written attention gives the same gradients") {
  CudaModelOptions own;
  own.attention = AttentionKind::handwritten;
  const auto cpu = cpu_model(), gpu = gpu_model(own);
  randomize(*cpu);
  copy_state(*cpu, *gpu);
  const TokenBatch batch(4, 48, 1000, 1); // no whole tiles: the kernels for all GPUs, on a Hopper too
  train_step(*cpu, {&batch});
  train_step(*gpu, {&batch});
  check_gradients(*gpu, *cpu, 0.999, 0.02);
}

TEST_CASE("a batch smaller than the model was built for") {
  const auto cpu = cpu_model(), gpu = gpu_model();
  randomize(*cpu);
  copy_state(*cpu, *gpu);
  for (const int T : {64, 32}) {
    CAPTURE(T);
    const TokenBatch batch(1, T, 1000, 3);
    const LossSum expected = evaluate(*cpu, batch.view), actual = evaluate(*gpu, batch.view);
    CHECK(actual.tokens == expected.tokens);
    CHECK(std::fabs(actual.sum - expected.sum) < 2e-3 * expected.sum);
  }
  const TokenBatch batch(2, 32, 1000, 4);
  train_step(*cpu, {&batch});
  train_step(*gpu, {&batch});
  check_gradients(*gpu, *cpu, 0.999, 0.02);
}

TEST_CASE("more than one chunk of the LM head") {
  ModelOptions options = small_options(Precision::fp32);
  options.batch_size = 132; // 8,448 rows: a whole chunk of 8,192 and a piece
  const auto cpu = make_cpu_model(options);
  options.precision = Precision::bf16;
  const auto gpu = make_cuda_model(options, {});
  randomize(*cpu);
  copy_state(*cpu, *gpu);
  const TokenBatch batch(132, 64, 1000, 3, 5);
  const StepResult expected = train_step(*cpu, {&batch}), actual = train_step(*gpu, {&batch});
  CHECK(actual.tokens == expected.tokens);
  CHECK(std::fabs(actual.loss - expected.loss) < 2e-3 * expected.loss);
  check_gradients(*gpu, *cpu, 0.999, 0.02);
}

TEST_CASE("124M: loss and next-token logits of a short text") {
  ModelOptions options;
  options.config = config_by_name("gpt2");
  options.batch_size = 1;
  options.seq_len = 128;
  const auto cpu = make_cpu_model(options);
  options.precision = Precision::bf16;
  const auto gpu = make_cuda_model(options, {});
  const TokenBatch batch(1, 128, 50257, 1);
  const LossSum expected = evaluate(*cpu, batch.view), actual = evaluate(*gpu, batch.view);
  CHECK(actual.tokens == 128);
  CHECK(std::fabs(actual.sum - expected.sum) < 2e-3 * expected.sum);
  for (const size_t length : {size_t{1}, size_t{77}, size_t{128}}) {
    CAPTURE(length);
    std::vector<float> cpu_logits(50257), gpu_logits(50257, std::numeric_limits<float>::quiet_NaN());
    cpu->next_token_logits(std::span(batch.inputs).first(length), cpu_logits);
    gpu->next_token_logits(std::span(batch.inputs).first(length), gpu_logits);
    CHECK(relative_error(gpu_logits, cpu_logits) <
          2e-2); // 12 layers of BF16 rounding: 1.2e-2 seen // BF16 through twelve blocks
  }
}

TEST_CASE("three steps move the weights as on the CPU") {
  const auto cpu = cpu_model(), gpu = gpu_model();
  randomize(*cpu);
  copy_state(*cpu, *gpu);
  MemoryState before = state_of(*cpu);
  const std::vector<float> expected = train(*cpu, 0, 3), actual = train(*gpu, 0, 3);
  for (size_t i = 0; i < 3; ++i) CHECK(std::fabs(actual[i] - expected[i]) < 2e-3 * expected[i]);
  for (const ParameterTensor& tensor : cpu->parameters().tensors()) {
    CAPTURE(tensor.name);
    NamedTensor on_cpu = cpu->read_tensor(tensor, TensorKind::weight),
                on_gpu = gpu->read_tensor(tensor, TensorKind::weight);
    const std::vector<float>& start = before.floats.at("params/" + tensor.name).values;
    for (size_t i = 0; i < start.size(); ++i) on_cpu.values[i] -= start[i], on_gpu.values[i] -= start[i];
    // Adam's first steps are the gradient's signs: those of the smallest gradients are BF16's to choose.
    const Agreement moved = agreement(meaningful(on_gpu, 128), meaningful(on_cpu, 128));
    CHECK(moved.cosine >= 0.97);
    CHECK(std::fabs(moved.norm_ratio - 1) <= 0.03);
  }
}

TEST_CASE("a skipped step changes no weight, no moment and no count") {
  const auto gpu = gpu_model();
  train(*gpu, 0, 2);
  const TokenBatch batch(4, 64, 1000, 1), nothing(4, 64, 1000, 1, 1);
  MemoryState before = state_of(*gpu);
  Verdict expected = Verdict::skipped_nonfinite;
  UpdateSettings settings = update_settings();
  const TokenBatch* chosen = &batch;
  SUBCASE("a NaN in a weight") {
    before.floats["params/wpe.weight"].values[5] = std::numeric_limits<float>::quiet_NaN();
  }
  SUBCASE("not a single target") { chosen = &nothing; }
  SUBCASE("a loss far above the window") {
    auto& losses = before.floats["guard/losses"].values;
    for (size_t i = 0; i < losses.size(); ++i) losses[i] = 1.0f + 0.001f * static_cast<float>(i % 2);
    before.ints["guard/filled"] = 64;
    before.ints["guard/next"] = 64;
    settings.limits.loss_z = 5;
    expected = Verdict::skipped_loss_z;
  }
  gpu->load_state(before);
  const StepResult result = train_step(*gpu, {chosen}, settings);
  CHECK(result.verdict == expected);
  CHECK(result.adam_step == 2);
  before.ints["guard/skipped_in_a_row"] += 1;
  CHECK(same_state(state_of(*gpu), before));
}

TEST_CASE("after a skipped step training goes on") {
  const auto gpu = gpu_model();
  const float loss = train(*gpu, 0, 2).back();
  const TokenBatch nothing(4, 64, 1000, 1, 1);
  CHECK(train_step(*gpu, {&nothing}).verdict == Verdict::skipped_nonfinite);
  const float next = train(*gpu, 2, 1).back();
  CHECK(std::fabs(next - loss) < 0.5f);
}

TEST_CASE("a saved state continues bit for bit in another process") {
  const auto first = gpu_model(deterministic());
  train(*first, 0, 2);
  MemoryState saved = state_of(*first);
  train(*first, 2, 3);
  ModelOptions options = small_options(Precision::bf16);
  options.seed = 99;
  const auto second = make_cuda_model(options, deterministic());
  second->load_state(saved);
  CHECK(same_state(state_of(*second), saved));
  train(*second, 2, 3);
  CHECK(same_state(state_of(*second), state_of(*first)));
}

TEST_CASE("bitwise equal: a second run, without the graph, with evaluations in between") {
  const auto reference = gpu_model(deterministic());
  const std::vector<float> losses = train(*reference, 0, 4);
  CudaModelOptions options = deterministic();
  bool evaluating = false;
  SUBCASE("again") {}
  SUBCASE("without the graph") { options.cuda_graph = false; }
  SUBCASE("with evaluations") { evaluating = true; }
  const auto other = gpu_model(options);
  const TokenBatch batch(2, 32, 1000, 5);
  std::vector<float> other_losses;
  for (int step = 0; step < 4; ++step) {
    if (evaluating) evaluate(*other, batch.view);
    other_losses.push_back(train(*other, step, 1)[0]);
  }
  CHECK(same_bits(other_losses, losses));
  CHECK(same_state(state_of(*other), state_of(*reference)));
}

TEST_CASE("recomputation changes memory, not bits") {
  const GPT2Config config = small_config(3);
  CudaModelOptions plain = deterministic();
  plain.fuse_gelu = false; // the library's GELU rounds differently from ours, which makes it again
  const auto reference = gpu_model(plain, config);
  randomize(*reference);
  const TokenBatch first(4, 64, 1000, 1), second(4, 64, 1000, 2), third(4, 64, 1000, 3);
  const auto accumulate = [&](Model& model) { // eager, captured, replayed
    int index = 0;
    for (const TokenBatch* batch : {&first, &second, &third}) model.micro_step(batch->view, index++, 3);
    return gradients(model);
  };
  const auto expected = accumulate(*reference);
  int64_t memory = cuda_model_bytes(small_options(Precision::bf16, config), deterministic());
  for (const Recompute recompute : {Recompute::gelu, Recompute::block}) {
    CAPTURE(static_cast<int>(recompute));
    CudaModelOptions options = plain;
    options.recompute = recompute;
    const auto model = gpu_model(options, config);
    copy_state(*reference, *model);
    CHECK(same_gradients(accumulate(*model), expected));
    const int64_t less = cuda_model_bytes(small_options(Precision::bf16, config), options);
    CHECK(less < memory);
    memory = less;
  }
}

TEST_CASE("evaluation gives the loss of training") {
  const auto gpu = gpu_model();
  const TokenBatch batch(4, 64, 1000, 1, 5);
  const LossSum sum = evaluate(*gpu, batch.view);
  const StepResult result = train_step(*gpu, {&batch});
  CHECK(sum.tokens == result.tokens);
  CHECK(static_cast<float>(sum.sum / static_cast<double>(sum.tokens)) == doctest::Approx(result.loss).epsilon(1e-6));
}

TEST_CASE("too large a batch is refused before anything is allocated, with advice") {
  ModelOptions options = small_options(Precision::bf16);
  options.batch_size = 1 << 22;
  const Error error = expect_error([&] { make_cuda_model(options, {}); });
  CHECK(error.code() == ExitCode::device);
  CHECK(error.hint().find("--batch_size") != std::string::npos);
}

} // namespace gpt2
