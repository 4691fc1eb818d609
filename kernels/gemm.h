// The three GEMMs of a linear layer. Weights are (OC, C) row-major: out = in weight^T + bias.
#pragma once

#include "kernels/backend.h"

namespace gpt2 {

template <class A>
struct GemmForward {
  A* out;          // (rows, OC)
  const A* in;     // (rows, C)
  const A* weight; // (OC, C)
  const A* bias;   // (OC), or null
  int64_t rows;
  int C, OC;
};
void gemm_forward(Cpu&, const GemmForward<float>&);
void gemm_forward(CudaStream&, const GemmForward<bf16>&);

// din = dout weight
template <class A>
struct GemmBackwardInput {
  A* din;          // (rows, C)
  const A* dout;   // (rows, OC)
  const A* weight; // (OC, C)
  int64_t rows;
  int C, OC;
};
void gemm_backward_input(Cpu&, const GemmBackwardInput<float>&);
void gemm_backward_input(CudaStream&, const GemmBackwardInput<bf16>&);

// dweight += dout^T in, accumulated in FP32
template <class A>
struct GemmBackwardWeight {
  float* dweight; // (OC, C) +=
  const A* dout;  // (rows, OC)
  const A* in;    // (rows, C)
  int64_t rows;
  int C, OC;
};
void gemm_backward_weight(Cpu&, const GemmBackwardWeight<float>&);
void gemm_backward_weight(CudaStream&, const GemmBackwardWeight<bf16>&);

// Forward with GELU (tanh) in cuBLASLt's epilogue. GPU only; in BF16 faster than a separate kernel
// (docs/benchmarks.md).
struct GemmForwardGelu {
  bf16* out;          // (rows, OC) gelu(pre)
  bf16* pre;          // (rows, OC) in weight^T + bias; OC a multiple of 8
  const bf16* in;     // (rows, C)
  const bf16* weight; // (OC, C)
  const bf16* bias;   // (OC)
  int64_t rows;
  int C, OC;
};
void gemm_forward_gelu(CudaStream&, const GemmForwardGelu&);

} // namespace gpt2
