// The two GEMMs of the MLP next to GELU, with GELU and GELU' fused into their epilogues. Hopper only.
#pragma once

#include "kernels/fp8_tensor.h"

namespace gpt2 {

struct CudaDevice;

// Else: gemm_fp8.h and gelu_fp8.h.
bool can_fuse_mlp_fp8(const CudaDevice& device, int64_t rows, int C, int OC);

// GELU' lies between -0.129 and 1.129. It is stored in 8 bits in steps of 1/202, 27 of them below zero, so that 0 and 1
// are exact: GELU' is near one of them for most inputs.
constexpr float kSlopeSteps = 202, kSlopeZero = 27;

// x = in weight^T + bias; gelu = quantize(gelu(x)), slope = gelu'(x). The epilogue writes 2 bytes per element; x stays
// in registers.
struct FcGeluFp8 {
  Fp8Output gelu;   // data only; not amax_only()
  uint8_t* slope;   // (rows, OC)
  Fp8Tensor in;     // (rows, C) E4M3
  Fp8Tensor weight; // (OC, C) E4M3
  const bf16* bias; // (OC)
  int64_t rows;
  int C, OC;
};
void fc_gelu_fp8(CudaStream&, const FcGeluFp8&);

// dx = quantize((dout weight) * slope), row-major and transposed, and gelu transposed. The epilogue reads 2 bytes and
// writes 3 bytes per element; dout weight stays in registers.
struct FcprojGeluGradientFp8 {
  Fp8Output dx;         // (rows, OC), row-major and transposed; not amax_only()
  uint8_t* gelu_t;      // (OC, rows)
  float* dbias;         // (OC) += column sums of dx before quantization
  Fp8Tensor dout;       // (rows, C)
  Fp8Tensor weight_t;   // (OC, C) E4M3: fcproj's weight (C, OC), transposed
  const uint8_t* gelu;  // (rows, OC), from the forward pass
  const uint8_t* slope; // (rows, OC)
  int64_t rows;
  int C, OC;
};
void fcproj_gelu_gradient_fp8(CudaStream&, const FcprojGeluGradientFp8&);

} // namespace gpt2
