// The last pass of a sum that many blocks began.
#pragma once

#include "kernels/backend.h"

namespace gpt2 {

// *sum += partials[0] + partials[1] + ..., in an order that depends on `count` alone.
void add_partial_sums(CudaStream& cuda, double* sum, const double* partials, int64_t count);

} // namespace gpt2
