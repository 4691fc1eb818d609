// The fastest way to compute a product, found by running each on the real operands.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <variant>

#include "kernels/cuda/cublaslt.h"

namespace gpt2 {

// A way to compute a product: an algorithm of cuBLASLt's, or a kernel of ours.
using MatmulMethod = std::variant<CublasLtAlgorithm, const MatmulKernel*>;

struct TimedMethod {
  MatmulMethod method;
  float microseconds = 0; // 0: not timed
};

// Enqueues the product on `cuda` by one method; false where the method does not run.
using MatmulLaunch = std::function<bool(const MatmulMethod&, const MatmulOperands&)>;

// Runs every method at least twice, those near the best more often; synchronous, some milliseconds. D is overwritten,
// except where the product accumulates: then a copy of its size stands in. Nothing where there is no memory for that
// copy or nothing runs.
std::optional<TimedMethod> fastest_method(Cuda& cuda, const MatmulProduct& product, const MatmulOperands& operands,
                                          std::span<const MatmulMethod> methods, const MatmulLaunch& launch);

} // namespace gpt2
