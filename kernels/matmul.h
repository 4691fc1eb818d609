// The linear layer, its three products. Weights are (OC, C) row-major: out = in weight^T + bias.
#pragma once

#include "kernels/backend.h"

namespace gpt2 {

template <class A>
struct MatmulForward {
  A* out;          // (rows, OC)
  const A* in;     // (rows, C)
  const A* weight; // (OC, C)
  const A* bias;   // (OC), or null
  int64_t rows;
  int C, OC;
};
void matmul_forward(Cpu&, const MatmulForward<float>&);
void matmul_forward(Cuda&, const MatmulForward<bf16>&);

// din = dout weight
template <class A>
struct MatmulBackwardInput {
  A* din;          // (rows, C)
  const A* dout;   // (rows, OC)
  const A* weight; // (OC, C)
  int64_t rows;
  int C, OC;
};
void matmul_backward_input(Cpu&, const MatmulBackwardInput<float>&);
void matmul_backward_input(Cuda&, const MatmulBackwardInput<bf16>&);

// dweight += dout^T in, accumulated in FP32
template <class A>
struct MatmulBackwardWeight {
  float* dweight; // (OC, C) +=
  const A* dout;  // (rows, OC)
  const A* in;    // (rows, C)
  int64_t rows;
  int C, OC;
};
void matmul_backward_weight(Cpu&, const MatmulBackwardWeight<float>&);
void matmul_backward_weight(Cuda&, const MatmulBackwardWeight<bf16>&);

// Forward with GELU (tanh) in the product's epilogue: GPU only, faster in BF16 than a kernel of its own
// (docs/benchmarks.md).
struct MatmulForwardGelu {
  bf16* out;          // (rows, OC) gelu(pre)
  bf16* pre;          // (rows, OC) in weight^T + bias; OC a multiple of 8
  const bf16* in;     // (rows, C)
  const bf16* weight; // (OC, C)
  const bf16* bias;   // (OC)
  int64_t rows;
  int C, OC;
};
void matmul_forward_gelu(Cuda&, const MatmulForwardGelu&);

} // namespace gpt2
