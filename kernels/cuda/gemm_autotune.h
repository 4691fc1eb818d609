// The fastest way to compute a problem, found by running each on the real operands.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <variant>

#include "kernels/cuda/cublaslt.h"

namespace gpt2 {

// A way to compute a problem: an algorithm of cuBLASLt's, or a kernel of ours.
using GemmMethod = std::variant<CublasLtAlgorithm, const GemmKernel*>;

struct TimedMethod {
  GemmMethod method;
  float microseconds = 0; // 0: not timed
};

// Enqueues the problem on `cuda` by one method; false where the method does not run.
using GemmLaunch = std::function<bool(const GemmMethod&, const GemmArguments&)>;

// Runs every method at least twice, those near the best more often; synchronous, some milliseconds. D is overwritten,
// except where the problem accumulates: then a copy of its size stands in. Nothing where there is no memory for that
// copy or nothing runs.
std::optional<TimedMethod> autotune(CudaStream& cuda, const GemmProblem& problem, const GemmArguments& operands,
                                    std::span<const GemmMethod> methods, const GemmLaunch& launch);

} // namespace gpt2
