// Kernels of multi-rank training beside the collectives: sums over ranks, gather of segments, FP8 transpose. GPU only.
#pragma once

#include "kernels/backend.h"

namespace gpt2 {

// out[i] = parts[0][i] + parts[1][i] + ..., in FP32 and in rank order; (2 ranks + 4) bytes per element.
struct SumOverRanks {
  float* out;        // (count)
  const bf16* parts; // (ranks, count)
  int ranks;
  int64_t count; // a multiple of 8
};
void sum_over_ranks(CudaStream&, const SumOverRanks&);

// A segment of one buffer and its offset in another, in elements.
struct Segment {
  int64_t from, to, count;
};

// Copies segments from one buffer to another; converts to BF16 if out is BF16.
template <class T>
struct CopySegments {
  T* out;
  const float* in;
  const Segment* segments; // (count), in device memory
  int count;
  int64_t longest; // elements of the longest segment
};
void copy_segments(CudaStream&, const CopySegments<float>&);
void copy_segments(CudaStream&, const CopySegments<bf16>&);

// out (cols, rows) = in (rows, cols) transposed: FP8 weights received from their owner, for GEMMs that contract over
// rows.
struct TransposeFp8 {
  uint8_t* out;
  const uint8_t* in;
  int64_t rows; // a multiple of 16
  int cols;     // a multiple of 16
};
void transpose_fp8(CudaStream&, const TransposeFp8&);

} // namespace gpt2
