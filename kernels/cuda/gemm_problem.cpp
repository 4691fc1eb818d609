#include "kernels/cuda/gemm_problem.h"

#include <sstream>

namespace gpt2 {
namespace {

const char* name_of(GemmType type) {
  switch (type) {
    case GemmType::fp32:
      return "fp32";
    case GemmType::e4m3:
      return "e4m3";
    case GemmType::e5m2:
      return "e5m2";
    default:
      return "bf16";
  }
}

const char* name_of(GemmEpilogue epilogue) {
  switch (epilogue) {
    case GemmEpilogue::bias:
      return "_bias";
    case GemmEpilogue::gelu_aux_bias:
      return "_gelu";
    default:
      return "";
  }
}

} // namespace

std::string GemmProblem::name() const {
  std::ostringstream out;
  out << (transpose_a ? 'T' : 'N') << (transpose_b ? 'T' : 'N') << '_' << m << 'x' << n << 'x' << k << '_' << name_of(a)
      << '_' << name_of(b) << '_' << name_of(d) << name_of(epilogue) << (accumulate ? "_accumulate" : "")
      << (residual ? "_residual" : "") << (fast_accumulation ? "_fast" : "")
      << (batch > 1 ? "_batch" + std::to_string(batch) : "") << (alignment < 256 ? "_unaligned" : "");
  return out.str();
}

size_t GemmProblem::output_bytes() const { return static_cast<size_t>(batch * m * n) * (d == GemmType::fp32 ? 4 : 2); }

} // namespace gpt2
