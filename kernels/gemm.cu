// The linear layer's GEMMs in BF16. A row-major (rows, C) matrix is a column-major (C, rows) one, so every GEMM below
// is the transpose of the formula in gemm.h: D = op(A) op(B) with weights as A.
#include "kernels/gemm.h"

#include "kernels/cuda/gemm_plans.h"
#include "kernels/cuda/profile.h"
#include "kernels/cuda/require.h"

namespace gpt2 {

// out (OC, rows) = weight^T (OC, C) in (C, rows) + bias
void gemm_forward(CudaStream& cuda, const GemmForward<bf16>& x) {
  const NvtxRange range(cuda, "gemm_forward", 0, gemm_flops(x.rows, x.C, x.OC));
  GemmProblem problem{.transpose_a = true, .m = x.OC, .n = x.rows, .k = x.C};
  if (x.bias) problem.epilogue = GemmEpilogue::bias;
  cuda.device->gemms->run(cuda, problem, {.d = x.out, .a = x.weight, .b = x.in, .bias = x.bias});
}

void gemm_forward_gelu(CudaStream& cuda, const GemmForwardGelu& x) {
  const NvtxRange range(cuda, "gemm_forward_gelu", 0, gemm_flops(x.rows, x.C, x.OC));
  const Requirements require("gemm_forward_gelu");
  require(x.OC % 8 == 0, "OC is a multiple of 8");
  const GemmProblem problem{
      .transpose_a = true, .m = x.OC, .n = x.rows, .k = x.C, .epilogue = GemmEpilogue::gelu_aux_bias};
  cuda.device->gemms->run(cuda, problem, {.d = x.out, .a = x.weight, .b = x.in, .bias = x.bias, .aux = x.pre});
}

// din (C, rows) = weight (C, OC) dout (OC, rows)
void gemm_backward_input(CudaStream& cuda, const GemmBackwardInput<bf16>& x) {
  const NvtxRange range(cuda, "gemm_backward_input", 0, gemm_flops(x.rows, x.C, x.OC));
  const GemmProblem problem{.m = x.C, .n = x.rows, .k = x.OC};
  cuda.device->gemms->run(cuda, problem, {.d = x.din, .a = x.weight, .b = x.dout});
}

// dweight (C, OC) += in (C, rows) dout^T (rows, OC)
void gemm_backward_weight(CudaStream& cuda, const GemmBackwardWeight<bf16>& x) {
  const NvtxRange range(cuda, "gemm_backward_weight", 0, gemm_flops(x.rows, x.C, x.OC));
  const GemmProblem problem{
      .transpose_b = true, .m = x.C, .n = x.OC, .k = x.rows, .d = GemmType::fp32, .accumulate = true};
  cuda.device->gemms->run(cuda, problem, {.d = x.dweight, .a = x.in, .b = x.dout});
}

} // namespace gpt2
