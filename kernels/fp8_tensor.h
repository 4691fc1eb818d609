// An FP8 tensor on the device is its codes, its format and its meta: the scale in force and what was counted of the
// values since the last update; their amaxes stand in an array of their own, which ranks can maximise in one go.
// Producers write through a sink (codes, and where the next product contracts over rows their transpose); matrix
// products read a tensor.
#pragma once

#include <cstdint>

#include "engine/base/float_formats.h"
#include "engine/base/host_device.h"
#include "kernels/backend.h"

namespace gpt2 {

// One per quantized tensor, in device memory. Producers multiply by `scale`; cuBLASLt multiplies by `inverse`, whose
// address it wants aligned to 16 bytes.
struct alignas(16) Fp8TensorMeta {
  float scale_inv; // 1 / scale
  float scale;
  unsigned long long saturated; // values beyond the format's range, as they were scaled
  unsigned long long flushed;   // nonzero values that became zero, counted on one value in kFlushedSample
};

constexpr int kFlushedSample = 8; // the first of every 8 columns: a share needs no more, and counting all would cost 5%

// A matrix as cuBLASLt reads it: row-major, its columns the dimension that is contracted.
struct Fp8Tensor {
  const uint8_t* data;
  Fp8Format format;
  const Fp8TensorMeta* meta;
};

// What a producer tells of the values it quantizes.
enum class Fp8Statistics : uint8_t {
  all,       // amax, saturated and flushed
  none,      // the same values were metered when they were first quantized, or nobody asks
  amax_only, // nothing is wanted but the amax: the first of the two passes of current scaling
};

// Where a producer puts a (rows, cols) matrix.
struct Fp8Output {
  uint8_t* data;       // (rows, cols), or null if only the transpose is wanted
  uint8_t* transposed; // (cols, rows), or null
  Fp8Format format;
  Fp8TensorMeta* meta; // scale is read; saturated and flushed are added to
  uint32_t* amax;      // largest |value| before scaling, as the bits of a float (bits order as values do); atomicMax
  Fp8Statistics statistics = Fp8Statistics::all;

  GPT2_HOST_DEVICE bool amax_only() const { return statistics == Fp8Statistics::amax_only; }
};

} // namespace gpt2
