// Parameter initialization on the device.
#pragma once

#include "kernels/backend.h"

namespace gpt2 {

// GPT-2's initialization of one tensor: out[i] = deviation * normal(seed, stream, first + i). Same numbers as on the
// CPU up to the last bit of log and cos.
struct FillNormal {
  float* out; // (count)
  int64_t count;
  int64_t first; // index of out[0]: a rank fills its shard of a tensor
  uint64_t seed, stream;
  float deviation;
};
void fill_normal(CudaStream&, const FillNormal&);

template <class T>
struct FillConstant {
  T* out; // (count)
  int64_t count;
  T value;
};
void fill_constant(CudaStream&, const FillConstant<float>&);
void fill_constant(CudaStream&, const FillConstant<double>&);

} // namespace gpt2
