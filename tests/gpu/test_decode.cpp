// The decoding kernels on the GPU against the CPU reference.
#include "kernels/decode.h"

#include <string>

#include "kernels/gelu.h"
#include "kernels/gemm.h"
#include "kernels/layernorm.h"
#include "tests/gpu/gpu_test.h"

namespace gpt2 {
namespace {

constexpr double kBf16Tolerance = 6e-3; // one rounding to BF16, of the output

struct Places {
  std::vector<int32_t> rows, positions;
  DeviceBuffer<int32_t> gpu_rows, gpu_positions;
  Places(std::vector<int32_t> r, std::vector<int32_t> p)
      : rows(std::move(r)), positions(std::move(p)), gpu_rows(rows), gpu_positions(positions) {}
  TokenSlots cpu() const { return {rows.data(), positions.data(), static_cast<int64_t>(rows.size())}; }
  TokenSlots gpu() { return {gpu_rows, gpu_positions, static_cast<int64_t>(rows.size())}; }
};

} // namespace

TEST_CASE("embedding_decode: tokens at positions of their own") {
  TestDevice device;
  for (const int C : {8, 40, 768}) {
    const std::vector<int32_t> tokens{4, 19, 0, 4};
    Places places({0, 1, 2, 3}, {7, 0, 3, 1});
    const std::vector<float> wte = random_values(20 * static_cast<size_t>(C), 1),
                             wpe = random_values(8 * static_cast<size_t>(C), 2);
    std::vector<float> expected(4 * static_cast<size_t>(C));
    DeviceBuffer<bf16> out(expected.size()), gpu_wte(to_bf16(wte)), gpu_wpe(to_bf16(wpe));
    DeviceBuffer<int32_t> gpu_tokens(tokens);
    embedding_decode(device.cpu,
                     EmbeddingDecode<float>{expected.data(), tokens.data(), places.cpu(), wte.data(), wpe.data(), C});
    embedding_decode(device.cuda, EmbeddingDecode<bf16>{out, gpu_tokens, places.gpu(), gpu_wte, gpu_wpe, C});
    CHECK(relative_error(to_float(out.download()), expected) < kBf16Tolerance);
  }
}

TEST_CASE("keys and values are kept where they belong, and attention reads the visible ones") {
  TestDevice device;
  for (const int HS : {8, 16, 64, 128}) {
    for (const int NH : {1, 12}) {
      CAPTURE(HS);
      CAPTURE(NH);
      constexpr int kRows = 4, kPositions = 150;
      const size_t C = static_cast<size_t>(NH) * static_cast<size_t>(HS);
      std::vector<float> keys = random_values(kRows * kPositions * C, 1), values = random_values(keys.size(), 2);
      const std::vector<float> qkv = random_values(4 * 3 * C, 3);
      Places places({2, 0, 3, 1}, {0, 31, 149, 64}); // one key; groups that see none; all
      std::vector<float> expected(4 * C);
      DeviceBuffer<bf16> gpu_keys(to_bf16(keys)), gpu_values(to_bf16(values)), gpu_qkv(to_bf16(qkv)), out(4 * C);
      const KvCache<float> kept{keys.data(), values.data(), kPositions};
      const KvCache<bf16> gpu_kept{gpu_keys, gpu_values, kPositions};

      append_kv_cache(device.cpu, AppendKvCache<float>{kept, qkv.data(), places.cpu(), NH, HS});
      append_kv_cache(device.cuda, AppendKvCache<bf16>{gpu_kept, gpu_qkv, places.gpu(), NH, HS});
      CHECK(to_float(gpu_keys.download()) == keys);
      CHECK(to_float(gpu_values.download()) == values);
      attention_decode(device.cpu, AttentionDecode<float>{expected.data(), qkv.data(), kept, places.cpu(), NH, HS});
      attention_decode(device.cuda, AttentionDecode<bf16>{out, gpu_qkv, gpu_kept, places.gpu(), NH, HS});
      CHECK(relative_error(to_float(out.download()), expected) < kBf16Tolerance);
    }
  }
}

TEST_CASE("linear_decode: a product with what stands before and after it") {
  TestDevice device;
  struct Shape {
    int rows, C, OC;
  };
  for (const Shape& s :
       {Shape{1, 768, 2304}, Shape{2, 8, 5}, Shape{3, 64, 33}, Shape{5, 3072, 768}, Shape{8, 6400, 160}}) {
    for (const bool fused : {false, true}) { // LayerNorm, GELU and residual, or the plain product
      CAPTURE(s.rows);
      CAPTURE(s.C);
      CAPTURE(fused);
      const size_t rows = static_cast<size_t>(s.rows), C = static_cast<size_t>(s.C), OC = static_cast<size_t>(s.OC);
      const std::vector<float> in = random_values(rows * C, 1), weight = random_values(OC * C, 2, 0.05f),
                               bias = random_values(OC, 3), ln_weight = random_values(C, 4, 0.2f, 1.0f),
                               ln_bias = random_values(C, 5, 0.2f), residual = random_values(rows * OC, 6);
      std::vector<float> h = in, mean(rows), rstd(rows), expected(rows * OC);
      if (fused) {
        layernorm_forward(device.cpu, {.out = h.data(),
                                       .residual_out = nullptr,
                                       .mean = mean.data(),
                                       .rstd = rstd.data(),
                                       .residual_in = in.data(),
                                       .branch = nullptr,
                                       .weight = ln_weight.data(),
                                       .bias = ln_bias.data(),
                                       .rows = s.rows,
                                       .C = s.C});
      }
      gemm_forward(device.cpu, {.out = expected.data(),
                                .in = h.data(),
                                .weight = weight.data(),
                                .bias = bias.data(),
                                .rows = s.rows,
                                .C = s.C,
                                .OC = s.OC});
      if (fused) {
        gelu_forward(device.cpu, {.out = expected.data(), .in = expected.data(), .rows = s.rows, .cols = s.OC});
        for (size_t i = 0; i < expected.size(); ++i) expected[i] += residual[i];
      }
      DeviceBuffer<bf16> gpu_in(to_bf16(in)), gpu_weight(to_bf16(weight)), gpu_bias(to_bf16(bias)),
          out(to_bf16(residual)); // in place, as the residual stream is
      DeviceBuffer<float> gpu_ln_weight(ln_weight), gpu_ln_bias(ln_bias);
      linear_decode(device.cuda, {.out = out,
                                  .in = gpu_in,
                                  .weight = gpu_weight,
                                  .bias = gpu_bias,
                                  .ln_weight = fused ? gpu_ln_weight.get() : nullptr,
                                  .ln_bias = fused ? gpu_ln_bias.get() : nullptr,
                                  .residual = fused ? out.get() : nullptr,
                                  .gelu = fused,
                                  .rows = s.rows,
                                  .C = s.C,
                                  .OC = s.OC});
      CHECK(relative_error(to_float(out.download()), expected) < kBf16Tolerance);
    }
  }
}

} // namespace gpt2
