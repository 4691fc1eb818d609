// Token + position embedding on the GPU against the CPU reference.
#include "kernels/embedding.h"

#include <algorithm>
#include <string>

#include "tests/gpu/gpu_test.h"

namespace gpt2 {
namespace {

constexpr double kFp32Tolerance = 1e-5; // FP32 sums of up to 1,000 terms, by chunks

struct Shape {
  int B, T, C, vocab;
  int64_t elements() const { return static_cast<int64_t>(std::max(B * T, vocab)) * C; }
};

const Shape kShapes[] = {{1, 1, 64, 101},    {3, 33, 768, 101},   {2, 130, 1600, 997}, {5, 16, 1280, 7},
                         {1, 64, 1024, 101}, {4, 250, 64, 50257}, {1, 65, 40, 1}};

std::string name_of(const Shape& s) {
  return "B=" + std::to_string(s.B) + " T=" + std::to_string(s.T) + " C=" + std::to_string(s.C) +
         " vocab=" + std::to_string(s.vocab);
}

std::vector<int32_t> random_tokens(const Shape& s, uint64_t seed = 1) {
  const Rng rng(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(s.B) * static_cast<size_t>(s.T));
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<int32_t>(rng.bits(i) % static_cast<uint64_t>(s.vocab));
  }
  return tokens;
}

// Gradients on both sides, from values that are not zero; rows that no token names must keep their bits.
void check_backward(TestDevice& device, const Shape& s, const std::vector<int32_t>& tokens) {
  const size_t C = static_cast<size_t>(s.C);
  const std::vector<float> dout = random_values(tokens.size() * C, 2);
  const std::vector<float> before = random_values(static_cast<size_t>(s.vocab) * C, 3);
  std::vector<float> dwte = before, dwpe = random_values(static_cast<size_t>(s.T) * C, 4);
  DeviceBuffer<float> gpu_dwte(dwte), gpu_dwpe(dwpe), again(dwte), wpe_again(dwpe);
  DeviceBuffer<bf16> gpu_dout(to_bf16(dout));
  DeviceBuffer<int32_t> gpu_tokens(tokens);

  embedding_backward(device.cpu, EmbeddingBackward<float>{dwte.data(), dwpe.data(), dout.data(), tokens.data(), s.B,
                                                          s.T, s.C, s.vocab});
  embedding_backward(device.cuda,
                     EmbeddingBackward<bf16>{gpu_dwte, gpu_dwpe, gpu_dout, gpu_tokens, s.B, s.T, s.C, s.vocab});
  embedding_backward(device.cuda,
                     EmbeddingBackward<bf16>{again, wpe_again, gpu_dout, gpu_tokens, s.B, s.T, s.C, s.vocab});
  const std::vector<float> actual = gpu_dwte.download();
  CHECK(relative_error(actual, dwte) < kFp32Tolerance);
  CHECK(relative_error(gpu_dwpe.download(), dwpe) < kFp32Tolerance);
  CHECK(same_bits(again.download(), actual));
  CHECK(same_bits(wpe_again.download(), gpu_dwpe.download()));
  CHECK(gpu_tokens.download() == tokens);

  std::vector<bool> named(static_cast<size_t>(s.vocab));
  for (const int32_t token : tokens) named[static_cast<size_t>(token)] = true;
  size_t wrong = 0;
  for (size_t i = 0; i < actual.size(); ++i) wrong += (actual[i] != before[i]) && !named[i / C];
  CHECK(wrong == 0);
}

} // namespace

TEST_CASE("forward is the sum, rounded once") {
  TestDevice device;
  for (const Shape& s : tested(kShapes)) {
    CAPTURE(name_of(s));
    const size_t C = static_cast<size_t>(s.C);
    const std::vector<int32_t> tokens = random_tokens(s);
    const std::vector<float> wte = random_values(static_cast<size_t>(s.vocab) * C, 1);
    const std::vector<float> wpe = random_values(static_cast<size_t>(s.T) * C, 2);
    std::vector<float> expected(tokens.size() * C);
    embedding_forward(device.cpu,
                      EmbeddingForward<float>{expected.data(), tokens.data(), wte.data(), wpe.data(), s.B, s.T, s.C});
    DeviceBuffer<bf16> gpu_wte(to_bf16(wte)), gpu_wpe(to_bf16(wpe)), out(expected.size());
    DeviceBuffer<int32_t> gpu_tokens(tokens);
    embedding_forward(device.cuda, EmbeddingForward<bf16>{out, gpu_tokens, gpu_wte, gpu_wpe, s.B, s.T, s.C});
    CHECK(same_bits(out.download(), to_bf16(expected)));
  }
}

TEST_CASE("backward adds every token's gradient to its row, with the same bits every time") {
  TestDevice device;
  for (const Shape& s : tested(kShapes)) {
    CAPTURE(name_of(s));
    check_backward(device, s, random_tokens(s));
  }
}

// The sorted tokens are summed by chunks of 64: runs inside one, across one border, across many, and ending on one.
TEST_CASE("backward joins runs of equal tokens wherever they are cut") {
  TestDevice device;
  const Shape s{1, 1000, 64, 50};
  const auto runs = [&](std::initializer_list<int> lengths) {
    std::vector<int32_t> tokens;
    int32_t token = 3;
    for (const int length : lengths) tokens.insert(tokens.end(), static_cast<size_t>(length), token++);
    tokens.resize(1000, token);
    std::vector<int32_t> shuffled(tokens.size()); // 7 and 1000 share no factor: a permutation
    for (size_t i = 0; i < tokens.size(); ++i) shuffled[i * 7 % 1000] = tokens[i];
    return shuffled;
  };
  SUBCASE("one token everywhere") { check_backward(device, s, runs({})); }
  SUBCASE("runs that fill chunks exactly") { check_backward(device, s, runs({64, 64, 128, 192})); }
  SUBCASE("runs one short and one long") { check_backward(device, s, runs({63, 65, 64, 1, 127, 129})); }
  SUBCASE("a head and a tail in the same chunk") { check_backward(device, s, runs({100, 20, 100, 8, 300})); }
  SUBCASE("a long run, then many short ones") { check_backward(device, s, runs({900, 1, 2, 3, 4, 5, 6, 7, 8})); }
}

} // namespace gpt2
