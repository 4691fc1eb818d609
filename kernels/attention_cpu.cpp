// Causal attention on the CPU: per head, blocks of queries against all keys that any of them sees, as GEMMs on the
// packed layout. Only one block's scores are in memory; the upper triangle is skipped except inside diagonal blocks.
#include "kernels/attention.h"

#include <cblas.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/vector_math.h"

namespace gpt2 {
namespace {

// Larger blocks are faster in sgemm; smaller ones waste less above the diagonal and stay in cache. At T = 1024 and HS =
// 64, blocks of 64 to 128 take the same time on a Neoverse V1, 256 takes 8% more.
constexpr int kQueryBlock = 64;

struct QueryBlock {
  int start, rows; // queries start .. start + rows - 1
  int keys;        // keys 0 .. keys - 1 are visible to some query; query start + r sees the first start + r + 1
};

int block_count(int T) { return (T + kQueryBlock - 1) / kQueryBlock; }

QueryBlock query_block(int index, int T) {
  const int start = index * kQueryBlock, rows = std::min(kQueryBlock, T - start);
  return {start, rows, start + rows};
}

// Row-major sgemm. In a parallel region OpenBLAS runs on the calling thread.
constexpr CBLAS_TRANSPOSE kPlain = CblasNoTrans, kTransposed = CblasTrans;
void sgemm(CBLAS_TRANSPOSE transpose_a, CBLAS_TRANSPOSE transpose_b, int m, int n, int k, float alpha, const float* a,
           int stride_a, const float* b, int stride_b, float beta, float* c, int stride_c) {
  cblas_sgemm(CblasRowMajor, transpose_a, transpose_b, m, n, k, alpha, a, stride_a, b, stride_b, beta, c, stride_c);
}

// Per-thread scratch for `blocks` score matrices of (kQueryBlock, T).
class ScoreScratch {
 public:
  ScoreScratch(int blocks, int T)
      : floats_per_thread_(static_cast<size_t>(blocks) * kQueryBlock * T),
        memory_(floats_per_thread_ * static_cast<size_t>(omp_get_max_threads())) {}
  float* of_this_thread() { return memory_.data() + floats_per_thread_ * static_cast<size_t>(omp_get_thread_num()); }

 private:
  size_t floats_per_thread_;
  std::vector<float> memory_;
};

// Offsets of one head in the packed arrays: rows of q, k, v are 3C floats apart, rows of the output C floats.
struct HeadOffsets {
  int64_t qkv, out, stats, tokens;
};

HeadOffsets head_offsets(int head, int T, int NH, int HS) {
  const int64_t b = head / NH, h = head % NH, C = static_cast<int64_t>(NH) * HS;
  return {b * T * 3 * C + h * HS, b * T * C + h * HS, head * static_cast<int64_t>(T), b * T};
}

// The keys that a query sees.
struct Visible {
  int begin, end;
};

Visible visible_keys(const DocumentBounds& documents, const HeadOffsets& head, int query) {
  return {documents ? documents.begin[head.tokens + query] : 0, query + 1};
}

void mask_row(float* row, Visible visible, int keys) {
  std::fill(row, row + visible.begin, 0.0f);
  std::fill(row + visible.end, row + keys, 0.0f);
}

// Scores of a row to unnormalized probabilities.
Exponentiated exponentiate_row(float* row, Visible visible, int keys) {
  const Exponentiated softmax = exponentiate(row + visible.begin, visible.end - visible.begin);
  mask_row(row, visible, keys);
  return softmax;
}

void forward_block(const AttentionForward<float>& op, const HeadOffsets& head, QueryBlock block, float* scores) {
  const int HS = op.HS, C = op.NH * HS, keys = block.keys;
  const float *q = op.qkv + head.qkv, *k = q + C, *v = k + C;
  const float scale = 1 / std::sqrt(static_cast<float>(HS));
  float* out = op.out + head.out + static_cast<int64_t>(block.start) * C;
  float* stats = op.stats + head.stats + block.start;
  q += static_cast<int64_t>(block.start) * 3 * C;

  sgemm(kPlain, kTransposed, block.rows, keys, HS, scale, q, 3 * C, k, 3 * C, 0, scores, keys);
  float inverse_sums[kQueryBlock];
  for (int r = 0; r < block.rows; ++r) {
    const auto [highest, sum] = exponentiate_row(scores + static_cast<int64_t>(r) * keys,
                                                 visible_keys(op.documents, head, block.start + r), keys);
    stats[r] = highest + std::log(sum);
    inverse_sums[r] = 1 / sum;
  }
  sgemm(kPlain, kPlain, block.rows, HS, keys, 1, scores, keys, v, 3 * C, 0, out, C);
  for (int r = 0; r < block.rows; ++r) // HS multiplications instead of `keys`
    for (int i = 0; i < HS; ++i) out[static_cast<int64_t>(r) * C + i] *= inverse_sums[r];
}

// Scores to probabilities p, and dp to the gradient of the unscaled scores: p (dp - sum(p dp)), where the sum equals
// dout . out.
void softmax_backward_row(float* score, float* dp, float logsumexp, float dout_out, float scale, Visible visible,
                          int keys) {
  for (int j = visible.begin; j < visible.end; ++j) {
    score[j] = vector_exp(score[j] - logsumexp);
    dp[j] = score[j] * (dp[j] - dout_out) * scale;
  }
  mask_row(score, visible, keys);
  mask_row(dp, visible, keys);
}

void backward_block(const AttentionBackward<float>& op, const HeadOffsets& head, QueryBlock block, float* scores) {
  const int HS = op.HS, C = op.NH * HS, stride = 3 * C, keys = block.keys;
  const int64_t qkv_start = static_cast<int64_t>(block.start) * stride,
                out_start = static_cast<int64_t>(block.start) * C;
  const float *q = op.qkv + head.qkv, *k = q + C, *v = k + C;
  float *dq = op.dqkv + head.qkv, *dk = dq + C, *dv = dk + C;
  const float *out = op.out + head.out + out_start, *dout = op.dout + head.out + out_start;
  const float* stats = op.stats + head.stats + block.start;
  const float scale = 1 / std::sqrt(static_cast<float>(HS));
  float* dscores = scores + static_cast<int64_t>(block.rows) * keys;
  q += qkv_start;
  dq += qkv_start;

  sgemm(kPlain, kTransposed, block.rows, keys, HS, scale, q, stride, k, stride, 0, scores, keys);
  sgemm(kPlain, kTransposed, block.rows, keys, HS, 1, dout, C, v, stride, 0, dscores, keys);
  for (int r = 0; r < block.rows; ++r) {
    float dout_out = 0;
    for (int i = 0; i < HS; ++i)
      dout_out += dout[static_cast<int64_t>(r) * C + i] * out[static_cast<int64_t>(r) * C + i];
    const int64_t row = static_cast<int64_t>(r) * keys;
    softmax_backward_row(scores + row, dscores + row, stats[r], dout_out, scale,
                         visible_keys(op.documents, head, block.start + r), keys);
  }
  // The last block sees every key: it runs first and overwrites dk and dv; the others accumulate.
  const float beta = keys == op.T ? 0.0f : 1.0f;
  sgemm(kTransposed, kPlain, keys, HS, block.rows, 1, scores, keys, dout, C, beta, dv, stride);
  sgemm(kTransposed, kPlain, keys, HS, block.rows, 1, dscores, keys, q, stride, beta, dk, stride);
  sgemm(kPlain, kPlain, block.rows, HS, keys, 1, dscores, keys, k, stride, 0, dq, stride);
}

} // namespace

void attention_forward(Cpu&, const AttentionForward<float>& op) {
  ScoreScratch scratch(1, op.T);
#pragma omp parallel for schedule(static)
  for (int head = 0; head < op.B * op.NH; ++head) {
    const HeadOffsets offsets = head_offsets(head, op.T, op.NH, op.HS);
    for (int i = 0; i < block_count(op.T); ++i)
      forward_block(op, offsets, query_block(i, op.T), scratch.of_this_thread());
  }
}

void attention_backward(Cpu&, const AttentionBackward<float>& op) {
  ScoreScratch scratch(2, op.T);
#pragma omp parallel for schedule(static)
  for (int head = 0; head < op.B * op.NH; ++head) {
    const HeadOffsets offsets = head_offsets(head, op.T, op.NH, op.HS);
    for (int i = block_count(op.T) - 1; i >= 0; --i)
      backward_block(op, offsets, query_block(i, op.T), scratch.of_this_thread());
  }
}

} // namespace gpt2
