// Incremental decoding on the CPU. The keys and values of a head are streamed once: 512 KB at 1,024 positions of 64
// channels, which fits in the L2 cache for one head.
#include "kernels/decode.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/vector_math.h"

namespace gpt2 {
namespace {

// Offset of a head's first position in keys or values.
int64_t head_offset(const TokenSlots& slots, int64_t token, int head, int NH, int positions, int HS) {
  return (int64_t{slots.rows[token]} * NH + head) * positions * HS;
}

void attend(float* out, const float* q, const float* keys, const float* values, int visible, int HS, float* scores) {
  const float scale = 1 / std::sqrt(static_cast<float>(HS));
  for (int j = 0; j < visible; ++j) {
    float dot = 0;
    for (int i = 0; i < HS; ++i) dot += q[i] * keys[int64_t{j} * HS + i];
    scores[j] = dot * scale;
  }
  const float sum = exponentiate(scores, visible).sum;
  std::fill_n(out, HS, 0.0f);
  for (int j = 0; j < visible; ++j) {
#pragma omp simd
    for (int i = 0; i < HS; ++i) out[i] += scores[j] * values[int64_t{j} * HS + i];
  }
  for (int i = 0; i < HS; ++i) out[i] *= 1 / sum;
}

} // namespace

void embedding_decode(Cpu&, const EmbeddingDecode<float>& op) {
  for (int64_t token = 0; token < op.slots.count; ++token) {
    const float* word = op.wte + int64_t{op.tokens[token]} * op.C;
    const float* position = op.wpe + int64_t{op.slots.positions[token]} * op.C;
    float* out = op.out + token * op.C;
    for (int c = 0; c < op.C; ++c) out[c] = word[c] + position[c];
  }
}

void append_kv_cache(Cpu&, const AppendKvCache<float>& op) {
  const int NH = op.NH, HS = op.HS;
#pragma omp parallel for schedule(static)
  for (int64_t token = 0; token < op.slots.count; ++token) {
    const float* keys = op.qkv + (token * 3 + 1) * NH * HS;
    const float* values = keys + int64_t{NH} * HS;
    for (int head = 0; head < NH; ++head) {
      const int64_t to =
          head_offset(op.slots, token, head, NH, op.cache.positions, HS) + int64_t{op.slots.positions[token]} * HS;
      std::copy_n(keys + int64_t{head} * HS, HS, op.cache.keys + to);
      std::copy_n(values + int64_t{head} * HS, HS, op.cache.values + to);
    }
  }
}

void attention_decode(Cpu&, const AttentionDecode<float>& op) {
  const int NH = op.NH, HS = op.HS;
  std::vector<float> scores(static_cast<size_t>(op.cache.positions) * static_cast<size_t>(omp_get_max_threads()));
#pragma omp parallel for schedule(static)
  for (int64_t pair = 0; pair < op.slots.count * NH; ++pair) {
    const int64_t token = pair / NH;
    const int head = static_cast<int>(pair % NH);
    const int64_t from = head_offset(op.slots, token, head, NH, op.cache.positions, HS);
    attend(op.out + pair * HS, op.qkv + (token * 3 * NH + head) * HS, op.cache.keys + from, op.cache.values + from,
           op.slots.positions[token] + 1, HS, scores.data() + int64_t{op.cache.positions} * omp_get_thread_num());
  }
}

} // namespace gpt2
