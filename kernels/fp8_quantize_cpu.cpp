// FP8 quantization on the CPU: rounds to the FP8 grid and counts saturated and flushed values.
#include "kernels/fp8_quantize.h"

#include <algorithm>
#include <bit>

#include "kernels/stochastic_rounding.h"

namespace gpt2 {
namespace {

constexpr int64_t kChunk = 1 << 14; // values; fits 32-bit counters, which vectorize with the floats

// Magnitudes of floats order like their bits, and an integer maximum vectorizes. NaN is above infinity, so it survives.
inline uint32_t magnitude_bits(float x) { return std::bit_cast<uint32_t>(x) & 0x7FFFFFFFu; }

uint32_t max_magnitude_bits(const float* in, int64_t count) {
  uint32_t highest = 0;
  for (int64_t i = 0; i < count; ++i) highest = std::max(highest, magnitude_bits(in[i]));
  return highest;
}

struct ChunkCounts {
  int32_t saturated = 0, flushed = 0;
};

// A template: with constant format parameters the loop vectorizes.
template <Fp8Format format>
ChunkCounts quantize_chunk(float* out, const float* in, int64_t count, float scale) {
  const float inverse = 1 / scale; // scale_inv of the GPU's tensor
  int32_t saturated = 0, flushed = 0;
#pragma omp simd reduction(+ : saturated, flushed)
  for (int64_t i = 0; i < count; ++i) { // out may be in
    const float x = in[i], scaled = x * scale, rounded = fp8_round(scaled, format);
    saturated += (scaled > fp8_max(format)) | (scaled < -fp8_max(format));
    flushed += (rounded == 0) & (x != 0);
    out[i] = rounded * inverse;
  }
  return {saturated, flushed};
}

} // namespace

void fp8_quantize(Cpu&, const Fp8Quantize& op) {
  int64_t saturated = 0, flushed = 0;
  uint32_t amax_bits = magnitude_bits(op.counts->amax);
#pragma omp parallel for schedule(static) reduction(+ : saturated, flushed) reduction(max : amax_bits)
  for (int64_t start = 0; start < op.count; start += kChunk) {
    const int64_t count = std::min(kChunk, op.count - start);
    amax_bits = std::max(amax_bits, max_magnitude_bits(op.in + start, count)); // before out overwrites in
    const auto quantize =
        op.format == Fp8Format::e4m3 ? quantize_chunk<Fp8Format::e4m3> : quantize_chunk<Fp8Format::e5m2>;
    const ChunkCounts counts = quantize(op.out + start, op.in + start, count, op.scale);
    saturated += counts.saturated;
    flushed += counts.flushed;
  }
  op.counts->amax = std::bit_cast<float>(amax_bits);
  op.counts->values += op.count;
  op.counts->saturated += saturated;
  op.counts->flushed += flushed;
}

void fp8_quantize_dlogits(Cpu& cpu, const Fp8QuantizeDlogits& op) {
  constexpr int kColumns = 8; // columns per draw of random bytes
  const int64_t count = op.rows * op.padded_vocab;
  const float amax = absolute_max(cpu, op.in, count), inverse = 1 / op.scale;
  int64_t flushed = 0;
#pragma omp parallel for schedule(static) reduction(+ : flushed)
  for (int64_t row = 0; row < op.rows; ++row) {
    const uint32_t key = rounding_key(op.first_row + row, op.targets[row]);
    const float* in = op.in + row * op.padded_vocab;
    float* out = op.out + row * op.padded_vocab;
    for (int column = 0; column < op.padded_vocab; column += kColumns) {
      const RoundingBytes random = rounding_bytes(key, column);
      for (int k = 0; k < kColumns; ++k) {
        const float x = in[column + k], rounded = e5m2_round_stochastic(x * op.scale, rounding_byte(random, k));
        flushed += rounded == 0 && x != 0;
        out[column + k] = rounded * inverse;
      }
    }
  }
  op.counts->amax = std::max(op.counts->amax, amax);
  op.counts->values += count;
  op.counts->flushed += flushed;
}

float absolute_max(Cpu&, const float* in, int64_t count) {
  uint32_t highest = 0;
#pragma omp parallel for schedule(static) reduction(max : highest)
  for (int64_t start = 0; start < count; start += kChunk)
    highest = std::max(highest, max_magnitude_bits(in + start, std::min(kChunk, count - start)));
  return std::bit_cast<float>(highest);
}

} // namespace gpt2
