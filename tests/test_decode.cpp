// Decoding kernels: one token at a time over what was kept is attention over the whole sequence.
#include "kernels/decode.h"

#include <doctest/doctest.h>

#include <numeric>

#include "kernels/attention.h"
#include "kernels/embedding.h"
#include "tests/kernel_testing.h"

using namespace gpt2;
using namespace gpt2::testing;

TEST_CASE("attention over what was kept is the last row of attention over all") {
  constexpr int T = 37, NH = 3, HS = 20, C = NH * HS, kRows = 3, kPositions = 50;
  Cpu cpu;
  for (const int row : {0, 2}) {
    const std::vector<float> qkv = random_tensor(T * 3 * C, 1);
    std::vector<float> expected(T * C), stats(NH * T);
    attention_forward(
        cpu, {.out = expected.data(), .stats = stats.data(), .qkv = qkv.data(), .B = 1, .T = T, .NH = NH, .HS = HS});

    // Poison: what was not kept must not be read.
    std::vector<float> keys(kRows * kPositions * C, kNan), values = keys, out(T * C);
    const KvCache<float> kept{.keys = keys.data(), .values = values.data(), .positions = kPositions};
    for (int32_t t = 0; t < T; ++t) {
      const TokenSlots places{.rows = &row, .positions = &t, .count = 1};
      const float* token = qkv.data() + t * 3 * C;
      append_kv_cache(cpu, {.cache = kept, .qkv = token, .slots = places, .NH = NH, .HS = HS});
      attention_decode(cpu,
                       {.out = out.data() + t * C, .qkv = token, .cache = kept, .slots = places, .NH = NH, .HS = HS});
    }
    CHECK(max_error(out, expected) < 1e-6);

    // All tokens at once, as a prompt is kept.
    std::vector<float> keys_at_once(keys.size(), kNan), values_at_once = keys_at_once;
    std::vector<int32_t> rows(T, row), positions(T);
    std::iota(positions.begin(), positions.end(), 0);
    append_kv_cache(cpu,
                    {.cache = {.keys = keys_at_once.data(), .values = values_at_once.data(), .positions = kPositions},
                     .qkv = qkv.data(),
                     .slots = {.rows = rows.data(), .positions = positions.data(), .count = T},
                     .NH = NH,
                     .HS = HS});
    CHECK(same_bits(keys_at_once, keys));
    CHECK(same_bits(values_at_once, values));
  }
}

TEST_CASE("tokens of a batch see their own rows up to their own positions") {
  constexpr int NH = 2, HS = 8, C = NH * HS, kRows = 4, kPositions = 9;
  Cpu cpu;
  std::vector<float> keys = random_tensor(kRows * kPositions * C, 1), values = random_tensor(kRows * kPositions * C, 2);
  const KvCache<float> kept{.keys = keys.data(), .values = values.data(), .positions = kPositions};
  const std::vector<float> qkv = random_tensor(3 * 3 * C, 3);
  const std::vector<int32_t> rows{3, 0, 2}, positions{8, 0, 4};
  std::vector<float> together(3 * C);
  attention_decode(cpu, {.out = together.data(),
                         .qkv = qkv.data(),
                         .cache = kept,
                         .slots = {.rows = rows.data(), .positions = positions.data(), .count = 3},
                         .NH = NH,
                         .HS = HS});
  for (size_t i = 0; i < rows.size(); ++i) {
    std::vector<float> alone(C);
    attention_decode(cpu, {.out = alone.data(),
                           .qkv = qkv.data() + i * 3 * C,
                           .cache = kept,
                           .slots = {.rows = &rows[i], .positions = &positions[i], .count = 1},
                           .NH = NH,
                           .HS = HS});
    CHECK(same_bits(alone, std::vector<float>(together.begin() + static_cast<int>(i) * C,
                                              together.begin() + static_cast<int>(i + 1) * C)));
  }
  // Only one key is visible: its value comes out as it is.
  for (int head = 0; head < NH; ++head)
    for (int i = 0; i < HS; ++i)
      CHECK(together[static_cast<size_t>(C + head * HS + i)] ==
            doctest::Approx(values[static_cast<size_t>(head * kPositions * HS + i)]));
}

TEST_CASE("embeddings at positions of their own") {
  constexpr int C = 12, T = 6;
  Cpu cpu;
  const std::vector<float> wte = random_tensor(20 * C, 1), wpe = random_tensor(T * C, 2);
  const std::vector<int32_t> tokens{4, 19, 0, 4, 7, 4}, rows(T, 0), positions{0, 1, 2, 3, 4, 5};
  std::vector<float> expected(T * C), out(T * C);
  embedding_forward(
      cpu,
      {.out = expected.data(), .tokens = tokens.data(), .wte = wte.data(), .wpe = wpe.data(), .B = 1, .T = T, .C = C});
  embedding_decode(cpu, {.out = out.data(),
                         .tokens = tokens.data(),
                         .slots = {.rows = rows.data(), .positions = positions.data(), .count = T},
                         .wte = wte.data(),
                         .wpe = wpe.data(),
                         .C = C});
  CHECK(same_bits(out, expected));
}
