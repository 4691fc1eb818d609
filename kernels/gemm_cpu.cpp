// The linear layer's GEMMs on the CPU with OpenBLAS; the bias is copied to C and accumulated into.
#include "kernels/gemm.h"

#include <cblas.h>

#include <algorithm>

namespace gpt2 {
namespace {

blasint blas_size(int64_t size) { return static_cast<blasint>(size); }

} // namespace

void gemm_forward(Cpu&, const GemmForward<float>& op) {
  if (op.bias != nullptr) {
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < op.rows; ++row) std::copy_n(op.bias, op.OC, op.out + row * op.OC);
  }
  const float beta = op.bias != nullptr ? 1.0f : 0.0f;
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, blas_size(op.rows), op.OC, op.C, 1.0f, op.in, op.C, op.weight,
              op.C, beta, op.out, op.OC);
}

void gemm_backward_input(Cpu&, const GemmBackwardInput<float>& op) {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, blas_size(op.rows), op.C, op.OC, 1.0f, op.dout, op.OC,
              op.weight, op.C, 0.0f, op.din, op.C);
}

void gemm_backward_weight(Cpu&, const GemmBackwardWeight<float>& op) {
  cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, op.OC, op.C, blas_size(op.rows), 1.0f, op.dout, op.OC, op.in,
              op.C, 1.0f, op.dweight, op.C);
}

} // namespace gpt2
