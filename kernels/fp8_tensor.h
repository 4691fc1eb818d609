// FP8 tensors on the device: bytes, format and Fp8TensorMeta (scale and saturation statistics). The amaxes are in an
// array of their own, so that ranks can reduce them in one call. Producers write an Fp8Output: row-major, and
// transposed for GEMMs that contract over rows. GEMMs read an Fp8Tensor.
#pragma once

#include <cstdint>

#include "engine/base/float_formats.h"
#include "engine/base/host_device.h"
#include "kernels/backend.h"

namespace gpt2 {

// One per quantized tensor, in device memory. Producers multiply by `scale`; cuBLASLt multiplies by `scale_inv` and
// requires 16-byte alignment.
struct alignas(16) Fp8TensorMeta {
  float scale_inv; // 1 / scale
  float scale;
  unsigned long long saturated; // scaled values beyond the format's range
  unsigned long long flushed;   // nonzero values that became zero, counted on one value in kFlushedSample
};

constexpr int kFlushedSample = 8; // first of every 8 columns: enough for a share; counting all would cost 5%

// A GEMM operand: row-major, columns are the K dimension.
struct Fp8Tensor {
  const uint8_t* data;
  Fp8Format format;
  const Fp8TensorMeta* meta;
};

// Statistics that a producer gathers.
enum class Fp8Statistics : uint8_t {
  all,       // amax, saturated and flushed
  none,      // already counted, or unused
  amax_only, // no output: first pass of current scaling
};

// Destination of a quantized (rows, cols) matrix.
struct Fp8Output {
  uint8_t* data;       // (rows, cols), or null
  uint8_t* transposed; // (cols, rows), or null
  Fp8Format format;
  Fp8TensorMeta* meta; // reads scale, adds to saturated and flushed
  uint32_t* amax;      // max |value| before scaling, as float bits (same order as the values); atomicMax
  Fp8Statistics statistics = Fp8Statistics::all;

  GPT2_HOST_DEVICE bool amax_only() const { return statistics == Fp8Statistics::amax_only; }
};

} // namespace gpt2
