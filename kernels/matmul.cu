// The linear layer on cuBLASLt. A row-major (rows, C) matrix is a column-major (C, rows) one, so every product below is
// the transpose of the formula in matmul.h: D = op(A) op(B) with weights as A.
#include "kernels/matmul.h"

#include "kernels/cuda/matmul_plans.h"
#include "kernels/cuda/profile.h"
#include "kernels/cuda/require.h"

namespace gpt2 {

namespace {

double flops(int64_t rows, int C, int OC) { return 2.0 * static_cast<double>(rows) * C * OC; }

} // namespace

// out (OC, rows) = weight^T (OC, C) in (C, rows) + bias
void matmul_forward(Cuda& cuda, const MatmulForward<bf16>& x) {
  const Range range(cuda, "matmul_forward", 0, flops(x.rows, x.C, x.OC));
  MatmulProduct product{.transpose_a = true, .m = x.OC, .n = x.rows, .k = x.C};
  if (x.bias) product.epilogue = MatmulEpilogue::bias;
  cuda.device->matmuls->run(cuda, product, {.d = x.out, .a = x.weight, .b = x.in, .bias = x.bias});
}

void matmul_forward_gelu(Cuda& cuda, const MatmulForwardGelu& x) {
  const Range range(cuda, "matmul_forward_gelu", 0, flops(x.rows, x.C, x.OC));
  const Requirements require("matmul_forward_gelu");
  require(x.OC % 8 == 0, "OC is a multiple of 8");
  const MatmulProduct product{
      .transpose_a = true, .m = x.OC, .n = x.rows, .k = x.C, .epilogue = MatmulEpilogue::gelu_aux_bias};
  cuda.device->matmuls->run(cuda, product, {.d = x.out, .a = x.weight, .b = x.in, .bias = x.bias, .aux = x.pre});
}

// din (C, rows) = weight (C, OC) dout (OC, rows)
void matmul_backward_input(Cuda& cuda, const MatmulBackwardInput<bf16>& x) {
  const Range range(cuda, "matmul_backward_input", 0, flops(x.rows, x.C, x.OC));
  const MatmulProduct product{.m = x.C, .n = x.rows, .k = x.OC};
  cuda.device->matmuls->run(cuda, product, {.d = x.din, .a = x.weight, .b = x.dout});
}

// dweight (C, OC) += in (C, rows) dout^T (rows, OC)
void matmul_backward_weight(Cuda& cuda, const MatmulBackwardWeight<bf16>& x) {
  const Range range(cuda, "matmul_backward_weight", 0, flops(x.rows, x.C, x.OC));
  const MatmulProduct product{
      .transpose_b = true, .m = x.C, .n = x.OC, .k = x.rows, .d = MatmulType::fp32, .accumulate = true};
  cuda.device->matmuls->run(cuda, product, {.d = x.dweight, .a = x.in, .b = x.dout});
}

} // namespace gpt2
