// FP32 to BF16, where no producer could have written it: after initialisation and after loading a checkpoint.
#pragma once

#include "kernels/backend.h"

namespace gpt2 {

struct CastToBf16 {
  bf16* out;       // (count)
  const float* in; // (count)
  int64_t count;   // a multiple of 8
};
void cast_to_bf16(Cuda&, const CastToBf16&);

// GPT-2's initialisation of one tensor on the device: out[i] = deviation * normal(seed, stream, i); the same
// numbers as the CPU's up to the last bit of log and cos.
struct FillNormal {
  float* out; // (count)
  int64_t count;
  uint64_t seed, stream;
  float deviation;
};
void fill_normal(Cuda&, const FillNormal&);

struct FillConstant {
  float* out; // (count)
  int64_t count;
  float value;
};
void fill_constant(Cuda&, const FillConstant&);

} // namespace gpt2
