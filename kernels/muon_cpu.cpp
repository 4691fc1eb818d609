// Muon on the CPU, in FP32: the reference of the BF16 kernels.
#include "kernels/muon.h"

#include <cblas.h>

#include <utility>
#include <vector>

namespace gpt2 {
namespace {

blasint blas_size(int64_t size) { return static_cast<blasint>(size); }

// Sums in a fixed order: one matrix, one thread.
void normalize(float* x, int64_t count) {
  double square = 0;
  for (int64_t i = 0; i < count; ++i) square += static_cast<double>(x[i]) * x[i];
  const auto factor = static_cast<float>(1 / (std::sqrt(square) + kMuonNormOffset));
  for (int64_t i = 0; i < count; ++i) x[i] *= factor;
}

// next = a x + (b A + c A A) x, A = x x^T; with more rows than columns from the right.
void iterate(float* next, const float* x, float* gram, float* poly, int64_t rows, int64_t cols) {
  constexpr MuonQuintic q = kNewtonSchulz;
  const bool wide = rows <= cols;
  const blasint m = blas_size(rows), n = blas_size(cols), side = std::min(m, n), longer = std::max(m, n);
  cblas_sgemm(CblasRowMajor, wide ? CblasNoTrans : CblasTrans, wide ? CblasTrans : CblasNoTrans, side, side, longer,
              1.0f, x, n, x, n, 0.0f, gram, side);
  std::copy_n(gram, int64_t{side} * side, poly);
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, side, side, side, q.c, gram, side, gram, side, q.b, poly,
              side);
  std::copy_n(x, rows * cols, next);
  const float *const left = wide ? poly : x, *const right = wide ? x : poly;
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, n, side, 1.0f, left, wide ? side : n, right,
              wide ? n : side, q.a, next, n);
}

} // namespace

void muon_momentum(Cpu&, const MuonMomentum<float>& op) {
  if (op.scalars->verdict != Verdict::applied) return;
  const float mu = muon_momentum_at(op.mu, op.warmup_steps, op.guard->adam_step), scale = op.scalars->grad_scale;
#pragma omp parallel for schedule(dynamic)
  for (int p = 0; p < op.segments.count; ++p) {
    const MuonSegment& segment = op.segments.data[p];
    const float* const grad = op.grad + segment.flat;
    float* const momentum = op.momentum + segment.compact;
    float* const out = op.out + (op.flat ? segment.flat : segment.stacked);
#pragma omp simd
    for (int64_t i = 0; i < segment.count; ++i) {
      const float g = grad[i] * scale;
      momentum[i] += (1 - mu) * (g - momentum[i]);
      out[i] = g + mu * (momentum[i] - g);
    }
  }
}

void orthogonalize(Cpu&, const Orthogonalize<float>& op) {
  const int64_t elements = op.rows * op.cols;
  for (int64_t matrix = 0; matrix < op.batch; ++matrix) {
    float *x = op.in + matrix * elements, *next = op.out + matrix * elements;
    normalize(x, elements);
    for (int i = 0; i < kMuonIterations; ++i) {
      iterate(next, x, op.gram, op.poly, op.rows, op.cols);
      std::swap(x, next);
    }
  }
}

void muon_update(Cpu&, const MuonUpdate<float>& op) {
  if (op.scalars->verdict != Verdict::applied) return;
  std::vector<double> squares(static_cast<size_t>(op.segments.count));
#pragma omp parallel for schedule(dynamic)
  for (int p = 0; p < op.segments.count; ++p) {
    const MuonSegment& segment = op.segments.data[p];
    const float* const x = op.update + segment.stacked;
    float* const w = op.master + segment.compact;
    double square = 0;
    for (int64_t i = 0; i < segment.count; ++i) {
      const float decay = op.cautious_decay && x[i] * w[i] <= 0 ? 0.0f : op.weight_decay;
      w[i] -= op.lr * (op.scale * x[i] + decay * w[i]);
      square += static_cast<double>(x[i]) * x[i];
    }
    squares[static_cast<size_t>(p)] = square;
    if (op.weights != nullptr) std::copy_n(w, segment.count, op.weights + segment.flat);
  }
  const double factor = static_cast<double>(op.lr) * op.scale;
  for (const double square : squares) *op.update_square += factor * factor * square;
}

} // namespace gpt2
