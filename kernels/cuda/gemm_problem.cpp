#include "kernels/cuda/gemm_problem.h"

#include <iterator>
#include <sstream>

namespace gpt2 {
namespace {

constexpr const char* kTypeNames[] = {"bf16", "fp32", "e4m3", "e5m2"}; // in the order of GemmType
constexpr const char* kEpilogueNames[] = {"", "_bias", "_gelu"};       // in the order of GemmEpilogue
static_assert(std::size(kTypeNames) == static_cast<size_t>(GemmType::e5m2) + 1);
static_assert(std::size(kEpilogueNames) == static_cast<size_t>(GemmEpilogue::gelu_aux_bias) + 1);

const char* name_of(GemmType type) { return kTypeNames[static_cast<size_t>(type)]; }

} // namespace

std::string GemmProblem::name() const {
  std::ostringstream out;
  out << (transpose_a ? 'T' : 'N') << (transpose_b ? 'T' : 'N') << '_' << m << 'x' << n << 'x' << k << '_' << name_of(a)
      << '_' << name_of(b) << '_' << name_of(d) << kEpilogueNames[static_cast<size_t>(epilogue)]
      << (accumulate ? "_accumulate" : "") << (residual ? "_residual" : "") << (fast_accumulation ? "_fast" : "")
      << (batch > 1 ? "_batch" + std::to_string(batch) : "") << (alignment < 256 ? "_unaligned" : "");
  return out.str();
}

size_t GemmProblem::output_bytes() const { return static_cast<size_t>(batch * m * n) * (d == GemmType::fp32 ? 4 : 2); }

} // namespace gpt2
