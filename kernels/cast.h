// FP32 to BF16 outside the step: after initialization and after loading a checkpoint.
#pragma once

#include "kernels/backend.h"

namespace gpt2 {

struct CastToBf16 {
  bf16* out;       // (count)
  const float* in; // (count)
  int64_t count;   // a multiple of 8
};
void cast_to_bf16(CudaStream&, const CastToBf16&);

} // namespace gpt2
