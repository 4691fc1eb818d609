// The two products of the MLP whose neighbour is GELU, in one kernel each with it. Hopper only.
#pragma once

#include "kernels/fp8_tensor.h"

namespace gpt2 {

struct CudaDevice;

// Are there such kernels for this GPU and a layer of C -> OC channels? Otherwise: matmul_fp8.h and gelu_fp8.h.
bool fused_mlp_fp8(const CudaDevice& device, int64_t rows, int C, int OC);

// pre = in weight^T + bias, gelu = quantize(gelu(pre)). 3 bytes per element are written behind the product.
struct FcGeluFp8 {
  bf16* pre;        // (rows, OC)
  Fp8Sink gelu;     // data only; it does not measure
  Fp8Tensor in;     // (rows, C) E4M3
  Fp8Tensor weight; // (OC, C) E4M3
  const bf16* bias; // (OC)
  int64_t rows;
  int C, OC;
};
void fc_gelu_fp8(Cuda&, const FcGeluFp8&);

// dpre = quantize((dout weight) * gelu'(pre)) both ways round, and gelu(pre) again, transposed. 5 bytes per element (2
// read, 3 written) behind the product; dout weight itself never leaves the registers, nor is it rounded.
struct FcprojGeluGradientFp8 {
  Fp8Sink dpre;       // (rows, OC) both ways round; it does not measure
  Fp8Sink gelu;       // only .transposed: (OC, rows); unmetered where they are forward's
  float* dbias;       // (OC) += column sums of dpre before quantization
  Fp8Tensor dout;     // (rows, C)
  Fp8Tensor weight_t; // (OC, C) E4M3: fcproj's weight (C, OC), transposed
  const bf16* pre;    // (rows, OC)
  int64_t rows;
  int C, OC;
};
void fcproj_gelu_gradient_fp8(Cuda&, const FcprojGeluGradientFp8&);

} // namespace gpt2
