#include "kernels/cuda/matmul_product.h"

#include <sstream>

namespace gpt2 {
namespace {

const char* name_of(MatmulType type) {
  switch (type) {
    case MatmulType::fp32:
      return "fp32";
    case MatmulType::e4m3:
      return "e4m3";
    case MatmulType::e5m2:
      return "e5m2";
    default:
      return "bf16";
  }
}

const char* name_of(MatmulEpilogue epilogue) {
  switch (epilogue) {
    case MatmulEpilogue::bias:
      return "_bias";
    case MatmulEpilogue::gelu_aux_bias:
      return "_gelu";
    default:
      return "";
  }
}

} // namespace

std::string MatmulProduct::name() const {
  std::ostringstream out;
  out << (transpose_a ? 'T' : 'N') << (transpose_b ? 'T' : 'N') << '_' << m << 'x' << n << 'x' << k << '_' << name_of(a)
      << '_' << name_of(b) << '_' << name_of(d) << name_of(epilogue) << (accumulate ? "_accumulate" : "")
      << (residual ? "_residual" : "") << (fast_accumulation ? "_fast" : "")
      << (batch > 1 ? "_batch" + std::to_string(batch) : "") << (alignment < 256 ? "_unaligned" : "");
  return out.str();
}

size_t MatmulProduct::output_bytes() const {
  return static_cast<size_t>(batch * m * n) * (d == MatmulType::fp32 ? 4 : 2);
}

} // namespace gpt2
