// The two products of the MLP whose neighbour is GELU, in one kernel each with it. Hopper only.
#pragma once

#include "kernels/fp8_tensor.h"

namespace gpt2 {

struct CudaDevice;

// Are there such kernels for this GPU and a layer of C -> OC channels? Otherwise: gemm_fp8.h and gelu_fp8.h.
bool can_fuse_mlp_fp8(const CudaDevice& device, int64_t rows, int C, int OC);

// GELU' lies between -0.129 and 1.129. In 8 bits: steps of 1/202, of which 27 are below zero, so that 0 and 1, which it
// is nearly everywhere, are exact.
constexpr float kSlopeSteps = 202, kSlopeZero = 27;

// x = in weight^T + bias; gelu = quantize(gelu(x)), slope = gelu'(x). 2 bytes per element are written behind the
// product; x itself never leaves the registers.
struct FcGeluFp8 {
  Fp8Output gelu;   // data only; it does not measure
  uint8_t* slope;   // (rows, OC)
  Fp8Tensor in;     // (rows, C) E4M3
  Fp8Tensor weight; // (OC, C) E4M3
  const bf16* bias; // (OC)
  int64_t rows;
  int C, OC;
};
void fc_gelu_fp8(CudaStream&, const FcGeluFp8&);

// dx = quantize((dout weight) * slope) both ways round, and gelu transposed. 5 bytes per element (2 read, 3 written)
// behind the product; dout weight never leaves the registers.
struct FcprojGeluGradientFp8 {
  Fp8Output dx;         // (rows, OC) both ways round; it does not measure
  uint8_t* gelu_t;      // (OC, rows)
  float* dbias;         // (OC) += column sums of dx before quantization
  Fp8Tensor dout;       // (rows, C)
  Fp8Tensor weight_t;   // (OC, C) E4M3: fcproj's weight (C, OC), transposed
  const uint8_t* gelu;  // (rows, OC), as forward wrote them
  const uint8_t* slope; // (rows, OC)
  int64_t rows;
  int C, OC;
};
void fcproj_gelu_gradient_fp8(CudaStream&, const FcprojGeluGradientFp8&);

} // namespace gpt2
