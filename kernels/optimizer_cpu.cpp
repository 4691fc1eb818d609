// End of a step on the CPU: loss, gradient norm, verdict, AdamW.
#include "kernels/optimizer.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/ignored_target.h"

namespace gpt2 {
namespace {

double sum_of_squares(const float* x, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(x[i]) * x[i];
  return sum;
}

// Of the granule that the update is about to change.
double update_square(const AdamW<float>& op, int64_t start, float correction1, float correction2) {
  double square = 0;
  for (int64_t i = start; i < start + kDecayGranule; ++i) {
    const float g = op.grad[i] * op.scalars->grad_scale;
    const float m = op.beta1 * op.m[i] + (1 - op.beta1) * g, v = op.beta2 * op.v[i] + (1 - op.beta2) * g * g;
    const double update = op.lr * (m * correction1 / (std::sqrt(v * correction2) + op.eps));
    square += update * update;
  }
  return square;
}

} // namespace

void accumulate_loss(Cpu&, const LossAccumulate& op) {
  for (int64_t row = 0; row < op.rows; ++row) {
    if (op.targets[row] == kIgnoredTarget) continue;
    op.sums->loss += op.losses[row];
    op.sums->tokens += 1;
  }
}

// Fixed-size chunks, added in order: deterministic for any number of threads.
void gradient_norm(Cpu&, const GradientNorm& op) {
  constexpr int64_t kChunk = 1 << 16;
  const int64_t chunks = (op.count + kChunk - 1) / kChunk;
  std::vector<double> sums(static_cast<size_t>(chunks));
#pragma omp parallel for schedule(static)
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t start = chunk * kChunk;
    sums[static_cast<size_t>(chunk)] = sum_of_squares(op.grad + start, std::min(kChunk, op.count - start));
  }
  double total = 0;
  for (double sum : sums) total += sum;
  op.sums->norm_square += total;
}

void judge(Cpu&, const JudgeStep& op) { conclude_step(*op.scalars, *op.guard, op.limits, op.grad_clip); }

void adamw(Cpu&, const AdamW<float>& op) {
  if (op.scalars->verdict != Verdict::applied) return;
  const double t = static_cast<double>(op.guard->adam_step);
  const float correction1 = static_cast<float>(1 / (1 - std::pow(static_cast<double>(op.beta1), t)));
  const float correction2 = static_cast<float>(1 / (1 - std::pow(static_cast<double>(op.beta2), t)));
  const float grad_scale = op.scalars->grad_scale, lr = op.lr, beta1 = op.beta1, beta2 = op.beta2, eps = op.eps;
  std::vector<double> squares(op.update_square ? static_cast<size_t>(op.count / kDecayGranule) : 0);
#pragma omp parallel for schedule(static)
  for (int64_t start = 0; start < op.count; start += kDecayGranule) {
    if (op.update_square) {
      squares[static_cast<size_t>(start / kDecayGranule)] = update_square(op, start, correction1, correction2);
    }
    const float decay = op.decay_mask[start / kDecayGranule] != 0 ? op.weight_decay : 0.0f;
    float *master = op.master + start, *m = op.m + start, *v = op.v + start;
    const float* grad = op.grad + start;
#pragma omp simd
    for (int i = 0; i < kDecayGranule; ++i) {
      const float g = grad[i] * grad_scale;
      m[i] = beta1 * m[i] + (1 - beta1) * g;
      v[i] = beta2 * v[i] + (1 - beta2) * g * g;
      const float update = m[i] * correction1 / (std::sqrt(v[i] * correction2) + eps);
      master[i] -= lr * (update + decay * master[i]);
    }
    if (op.weights != nullptr) std::copy_n(master, kDecayGranule, op.weights + start);
  }
  for (const double square : squares) *op.update_square += square;
}

} // namespace gpt2
