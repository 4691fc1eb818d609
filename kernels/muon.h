// Muon (K. Jordan 2024; Moonlight, arXiv 2502.16982): the update of the blocks' matrices, after the step's verdict.
//
//   M = lerp(M, g, 1 - mu)                            g: gradient of the mean over tokens, clipped
//   u = lerp(g, M, mu)                                Nesterov
//   X = u / |u|_F                                     then per iteration: A = X X^T, X = a X + (b A + c A A) X
//   W -= lr (0.2 sqrt(max(rows, cols)) X + decay W)   Moonlight's scale: the update has AdamW's RMS
//
// A matrix with more rows than columns takes A = X^T X and X = a X + X (b A + c A A): the same X, without a transpose.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/backend.h"
#include "kernels/optimizer.h"

namespace gpt2 {

// Newton-Schulz: the same quintic a X + b A X + c A A X in each iteration.
struct MuonQuintic {
  float a, b, c;
};
constexpr MuonQuintic kNewtonSchulz{.a = 3.4445f, .b = -4.7750f, .c = 2.0315f};
constexpr int kMuonIterations = 5; // odd: the result is in Orthogonalize::out
static_assert(kMuonIterations % 2 == 1);
constexpr float kMuonNormOffset = 1e-7f; // X = u / (|u|_F + offset): a zero matrix stays zero

constexpr float kMuonFirstMomentum = 0.85f;

// mu of update number `applied`, from 1: a linear warm-up over `warmup_steps` updates.
GPT2_HOST_DEVICE inline float muon_momentum_at(float momentum, int64_t warmup_steps, int64_t applied) {
  if (applied > warmup_steps || momentum <= kMuonFirstMomentum) return momentum;
  const float share = static_cast<float>(applied - 1) / static_cast<float>(warmup_steps);
  return kMuonFirstMomentum + (momentum - kMuonFirstMomentum) * share;
}

inline float muon_scale(int64_t rows, int64_t cols) {
  return 0.2f * std::sqrt(static_cast<float>(std::max(rows, cols)));
}

// A part of one matrix that a rank updates; in elements.
struct MuonSegment {
  int64_t flat;    // in the flat buffers: gradients, BF16 weights
  int64_t compact; // in the rank's own buffers: master weights, momentum
  int64_t stacked; // in the stack of matrices of one shape
  int64_t count;   // GPU: a multiple of 8
};

struct MuonSegments {
  const MuonSegment* data; // in the backend's memory
  int count;
  int64_t longest; // elements
};

// Writes momentum and out for every segment; nothing if the step is skipped.
template <class A>
struct MuonMomentum {
  A* out; // u, stacked, or flat if `flat`
  bool flat;
  float* momentum;   // compact
  const float* grad; // flat, of the sum over tokens
  MuonSegments segments;
  const StepScalars* scalars;
  const GuardState* guard; // counts applied updates
  float mu;
  int64_t warmup_steps; // of mu
};
void muon_momentum(Cpu&, const MuonMomentum<float>&);
void muon_momentum(CudaStream&, const MuonMomentum<bf16>&);

// out = polynomial of in / |in|_F, for each matrix. All singular values approach 1, except tiny ones.
// FLOPs per iteration and matrix with s = min(rows, cols), l = max(rows, cols): 4 s^2 l + 2 s^3.
template <class A>
struct Orthogonalize {
  A* out;  // (batch, rows, cols)
  A* in;   // (batch, rows, cols), overwritten
  A* gram; // (batch, side, side), side = min(rows, cols); CPU: one matrix
  A* poly; // the same
  int64_t batch, rows, cols;
};
void orthogonalize(Cpu&, const Orthogonalize<float>&);
void orthogonalize(CudaStream&, const Orthogonalize<bf16>&);

// w -= lr (scale x + decay w) for every segment; nothing if the step is skipped.
template <class A>
struct MuonUpdate {
  float* master;   // compact
  A* weights;      // flat copy for the forward pass; null: the forward pass reads master
  const A* update; // x, stacked
  MuonSegments segments;
  const StepScalars* scalars;
  float lr, scale, weight_decay;
  bool cautious_decay;   // decay only where x and w have the same sign
  double* update_square; // += squares of lr scale x
};
void muon_update(Cpu&, const MuonUpdate<float>&);
void muon_update(CudaStream&, const MuonUpdate<bf16>&);

} // namespace gpt2
