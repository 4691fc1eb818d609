// First values of parameters, made on the device.
#pragma once

#include "kernels/backend.h"

namespace gpt2 {

// GPT-2's initialisation of one tensor: out[i] = deviation * normal(seed, stream, i); the same numbers as the CPU's up
// to the last bit of log and cos.
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
