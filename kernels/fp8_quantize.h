// FP8 quantization on the CPU, between a producer and a GEMM. Values stay floats on the FP8 grid (decode(encode(x *
// scale)) / scale): the GPU's FP8 values, dequantized, bit for bit.
#pragma once

#include "engine/base/float_formats.h"
#include "kernels/backend.h"

namespace gpt2 {

// Statistics of quantization, summed over the micro-batches of a step.
struct Fp8Counts {
  float amax = 0; // of the unscaled input; max over micro-batches
  int64_t values = 0;
  int64_t saturated = 0; // |x * scale| above the largest finite value
  int64_t flushed = 0;   // nonzero x that became zero
};

struct Fp8Quantize {
  float* out;      // (count) dequantized; may be in itself
  const float* in; // (count)
  int64_t count;
  Fp8Format format;
  float scale; // FP8 values hold x * scale
  Fp8Counts* counts;
};
void fp8_quantize(Cpu&, const Fp8Quantize&);

// Gradient of the logits: to E5M2 with stochastic rounding, keyed by token (stochastic_rounding.h).
struct Fp8QuantizeDlogits {
  float* out;             // (rows, padded_vocab) dequantized; may be in itself
  const float* in;        // (rows, padded_vocab)
  const int32_t* targets; // (rows)
  int64_t first_row;      // position of row 0 in the step, over all micro-batches and ranks
  int64_t rows;
  int padded_vocab; // a multiple of 8
  float scale;
  Fp8Counts* counts;
};
void fp8_quantize_dlogits(Cpu&, const Fp8QuantizeDlogits&);

float absolute_max(Cpu&, const float* in, int64_t count); // for current scaling

} // namespace gpt2
