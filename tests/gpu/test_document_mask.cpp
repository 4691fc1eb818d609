// Attention within documents on the GPU against the CPU engine.
#include "kernels/documents.h"
#include "tests/gpu/model_test.h"

namespace gpt2 {
namespace {

constexpr int32_t kSeparator = 3; // about every thousandth random token: planted more often below

struct PackedBatch : TokenBatch {
  PackedBatch(int B, int T, uint64_t seed) : TokenBatch(B, T, 1000, seed) {
    for (size_t i = 0; i < inputs.size(); i += 7 + static_cast<size_t>(inputs[i] % 50)) inputs[i] = kSeparator;
  }
};

ModelOptions masked_options(Precision precision, DocumentPositions positions, int seq_len) {
  GPT2Config config = small_config();
  config.seq_len = seq_len;
  ModelOptions options = small_options(precision, config);
  options.documents = {.mask = true, .positions = positions, .separator = kSeparator};
  return options;
}

} // namespace

TEST_CASE("documents are found as on the CPU") {
  TestDevice device;
  for (const int T : {1, 2, 64, 100, 256, 1024, 5000}) {
    CAPTURE(T);
    constexpr int B = 3;
    const PackedBatch batch(B, T, 5);
    const size_t rows = batch.inputs.size();
    for (const int32_t separator : {kSeparator, kNoSeparator}) {
      std::vector<int32_t> begin(rows), end(rows), positions(rows);
      find_documents(device.cpu, {begin.data(), end.data(), positions.data(), batch.inputs.data(), B, T, separator});
      DeviceBuffer<int32_t> tokens(batch.inputs), gpu_begin(rows), gpu_end(rows), gpu_positions(rows);
      find_documents(device.cuda, {gpu_begin, gpu_end, gpu_positions, tokens, B, T, separator});
      CHECK(gpu_begin.download() == begin);
      CHECK(gpu_end.download() == end);
      CHECK(gpu_positions.download() == positions);
    }
  }
}

// Whole tiles take the Hopper kernels, others the general ones.
TEST_CASE("within documents loss and every gradient agree with the CPU") {
  for (const DocumentPositions positions : {DocumentPositions::restart, DocumentPositions::absolute}) {
    for (const int T : {192, 80}) {
      CAPTURE(T);
      const auto cpu = make_cpu_model(masked_options(Precision::fp32, positions, T));
      const auto gpu = make_cuda_model(masked_options(Precision::bf16, positions, T), {});
      randomize(*cpu);
      copy_state(*cpu, *gpu);
      const PackedBatch first(4, T, 1), second(4, T, 2);
      const StepResult expected = train_step(*cpu, {&first, &second}), actual = train_step(*gpu, {&first, &second});
      CHECK(std::fabs(actual.loss - expected.loss) < 2e-3 * expected.loss);
      check_gradients(*gpu, *cpu, 0.999, 0.02);
      const LossSum want = evaluate(*cpu, first.view), got = evaluate(*gpu, first.view);
      CHECK(std::fabs(got.sum - want.sum) < 2e-3 * want.sum);
    }
  }
}

// The Hopper kernels take the same tiles in the same order, masked or not. The general ones do not, and cuDNN has no
// mask: other roundings flip FP8 values, and three steps of training carry them on.
TEST_CASE("a masked sequence without a separator gives what an unmasked one gives; generated text too") {
  const bool same_order = TestDevice().cuda.device->sm90_kernels;
  for (const Precision precision : {Precision::bf16, Precision::fp8}) {
    ModelOptions options = masked_options(precision, DocumentPositions::restart, 128);
    const auto masked = make_cuda_model(options, deterministic());
    options.documents = {};
    const auto plain = make_cuda_model(options, deterministic());
    TokenBatch batch(4, 128, 1000, 6);
    for (int32_t& token : batch.inputs) token += token == kSeparator;
    for (int step = 0; step < 3; ++step) {
      const float got = train_step(*masked, {&batch}).loss, want = train_step(*plain, {&batch}).loss;
      CHECK((same_order ? got == want : std::fabs(got - want) < 1e-3f * want));
    }
    const PackedBatch packed(4, 128, 7);
    evaluate(*masked, packed.view);
    std::vector<float> got(1000), want(1000);
    const std::span<const int32_t> text = std::span(packed.inputs).first(100);
    masked->next_token_logits(text, got);
    plain->next_token_logits(text, want);
    CHECK((same_order ? same_bits(got, want) : relative_error(got, want) < 0.1));
  }
}

TEST_CASE("within documents training repeats bit for bit, in FP8 with CUDA graphs too") {
  for (const Precision precision : {Precision::bf16, Precision::fp8}) {
    const ModelOptions options = masked_options(precision, DocumentPositions::restart, 128);
    const auto a = make_cuda_model(options, deterministic()), b = make_cuda_model(options, deterministic());
    for (uint64_t step = 0; step < 4; ++step) { // other documents in every step: graphs must not keep the first ones
      const PackedBatch first(4, 128, 2 * step), second(4, 128, 2 * step + 1);
      CHECK(train_step(*a, {&first, &second}).loss == train_step(*b, {&first, &second}).loss);
    }
    const PackedBatch probe(4, 128, 99);
    CHECK(evaluate(*a, probe.view).sum == evaluate(*b, probe.view).sum);
  }
}

TEST_CASE("a CUDA graph sees the documents of each micro-batch") {
  const ModelOptions options = masked_options(Precision::bf16, DocumentPositions::restart, 128);
  CudaModelOptions eager = deterministic();
  eager.cuda_graph = false;
  const auto graph = make_cuda_model(options, deterministic()), plain = make_cuda_model(options, eager);
  for (uint64_t step = 0; step < 4; ++step) {
    const PackedBatch batch(4, 128, step);
    CHECK(train_step(*graph, {&batch}).loss == train_step(*plain, {&batch}).loss);
  }
}

} // namespace gpt2
