// FP8 GEMMs, all of the form D(m, n) = A(k, m)^T B(k, n).
#include "kernels/gemm_fp8.h"

#include "kernels/cuda/gemm_plans.h"
#include "kernels/cuda/profile.h"
#include "kernels/cuda/require.h"

namespace gpt2 {

namespace {

GemmType type_of(const Fp8Tensor& tensor) { return tensor.format == Fp8Format::e4m3 ? GemmType::e4m3 : GemmType::e5m2; }

constexpr int kMaxKFastAccumulation = 8192; // longest K with fast accumulation

// cuBLASLt requires multiples of 16, and has no GEMM of two E5M2 matrices.
GemmProblem problem_of(const char* operation, const Fp8Tensor& a, const Fp8Tensor& b, int64_t m, int64_t n, int64_t k) {
  const Requirements require(operation);
  require(m % 16 == 0 && n % 16 == 0 && k % 16 == 0, "rows, C and OC are multiples of 16");
  require(a.format == Fp8Format::e4m3 || b.format == Fp8Format::e4m3, "one operand is E4M3");
  return {.transpose_a = true, .m = m, .n = n, .k = k, .a = type_of(a), .b = type_of(b)};
}

GemmArguments arguments_of(void* d, const Fp8Tensor& a, const Fp8Tensor& b) {
  return {.d = d, .a = a.data, .b = b.data, .a_scale = &a.meta->scale_inv, .b_scale = &b.meta->scale_inv};
}

} // namespace

void gemm_forward_fp8(CudaStream& cuda, const GemmForwardFp8& x) {
  const NvtxRange range(cuda, "gemm_forward_fp8", 0, gemm_flops(x.OC, x.rows, x.C));
  GemmProblem problem = problem_of("gemm_forward_fp8", x.weight, x.in, x.OC, x.rows, x.C);
  problem.fast_accumulation = true;
  problem.residual = x.residual != nullptr;
  if (x.bias) problem.epilogue = GemmEpilogue::bias;
  GemmArguments arguments = arguments_of(x.out, x.weight, x.in);
  arguments.c = x.residual;
  arguments.bias = x.bias;
  cuda.device->gemms->run(cuda, problem, arguments);
}

void gemm_backward_input_fp8(CudaStream& cuda, const GemmBackwardInputFp8& x) {
  const NvtxRange range(cuda, "gemm_backward_input_fp8", 0, gemm_flops(x.C, x.rows, x.OC));
  GemmProblem problem = problem_of("gemm_backward_input_fp8", x.weight_t, x.dout, x.C, x.rows, x.OC);
  problem.fast_accumulation = x.OC <= kMaxKFastAccumulation;
  cuda.device->gemms->run(cuda, problem, arguments_of(x.din, x.weight_t, x.dout));
}

void gemm_backward_weight_fp8(CudaStream& cuda, const GemmBackwardWeightFp8& x) {
  const NvtxRange range(cuda, "gemm_backward_weight_fp8", 0, gemm_flops(x.C, x.OC, x.rows));
  GemmProblem problem = problem_of("gemm_backward_weight_fp8", x.in_t, x.dout_t, x.C, x.OC, x.rows);
  problem.d = GemmType::fp32;
  problem.accumulate = true;
  cuda.device->gemms->run(cuda, problem, arguments_of(x.dweight, x.in_t, x.dout_t));
}

} // namespace gpt2
