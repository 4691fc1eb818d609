// Autotuning: times every method for a GEMM on the real operands.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <variant>

#include "kernels/cuda/cublaslt.h"

namespace gpt2 {

// A cuBLASLt algorithm, or one of our kernels.
using GemmMethod = std::variant<CublasLtAlgorithm, const GemmKernel*>;

struct TimedMethod {
  GemmMethod method;
  float microseconds = 0; // 0: not timed
};

// Enqueues the GEMM with one method; false if the method does not run.
using GemmLaunch = std::function<bool(const GemmMethod&, const GemmArguments&)>;

// Runs every method at least twice, those near the best more often; synchronous, a few milliseconds. Overwrites D, or a
// temporary of its size if the problem accumulates. Empty if there is no memory for the temporary, or if no method
// runs.
std::optional<TimedMethod> autotune(CudaStream& cuda, const GemmProblem& problem, const GemmArguments& operands,
                                    std::span<const GemmMethod> methods, const GemmLaunch& launch);

} // namespace gpt2
