// Elementwise operation on a (rows, cols) matrix that also sums its columns: the bias gradient costs no pass of its
// own.
#pragma once

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/split_reduction.h"
#include "kernels/device/vector.cuh"

namespace gpt2 {

// A CTA takes 256 columns (32 lanes of 8) and a slice of the rows, which its 8 warps share.
constexpr int kStripWarps = 8;
constexpr int kStripColumns = kWarp * kVector;
constexpr int kStripUnroll = 4;

// Concept Work:
//   struct Raw;                              loads in flight, 8 columns of one row; all zeros outside the matrix
//   Raw load(int64_t vector) const;          vector of 8 columns, index into the matrix
//   Float8 values(const Raw&) const;         summed and stored; maps zeros to zeros
//   void store(int64_t vector, const Float8&) const;
// partials: (gridDim.y, cols), or null.
template <class Work>
__global__ void __launch_bounds__(kStripWarps* kWarp)
    column_strip_kernel(Work work, float* partials, int64_t rows, int cols) {
  static_assert(kStripWarps * kWarp == kStripColumns, "one thread per column in the final sum");
  __shared__ float sums[kStripWarps][kStripColumns];
  const int lane = threadIdx.x, warp = threadIdx.y;
  const int vectors = cols / kVector;
  const int column = blockIdx.x * kWarp + lane; // index of the vector
  const bool active = column < vectors;
  const int64_t slice = ceil_div(rows, gridDim.y);
  const int64_t last = min(rows, (blockIdx.y + 1) * slice);

  Float8 sum{};
  for (int64_t first = blockIdx.y * slice + warp; first < last; first += kStripWarps * kStripUnroll) {
    typename Work::Raw raw[kStripUnroll];
#pragma unroll
    for (int u = 0; u < kStripUnroll; ++u) {
      const int64_t row = first + u * kStripWarps;
      raw[u] = active && row < last ? work.load(row * vectors + column) : typename Work::Raw{};
    }
#pragma unroll
    for (int u = 0; u < kStripUnroll; ++u) {
      const int64_t row = first + u * kStripWarps;
      const Float8 values = work.values(raw[u]);
      if (active && row < last) work.store(row * vectors + column, values);
      sum += values;
    }
  }
  if (!partials) return;
#pragma unroll
  for (int k = 0; k < kVector; ++k) sums[warp][lane * kVector + k] = sum.v[k];
  __syncthreads();
  const int own = warp * kWarp + lane;
  const int64_t target = static_cast<int64_t>(blockIdx.x) * kStripColumns + own;
  if (target >= cols) return;
  float total = 0;
#pragma unroll
  for (int w = 0; w < kStripWarps; ++w) total += sums[w][own];
  partials[static_cast<int64_t>(blockIdx.y) * cols + target] = total;
}

// dbias: (cols) += column sums; may be null.
template <class Work>
void launch_column_strips(CudaStream& cuda, const Work& work, float* dbias, int64_t rows, int cols, const char* name) {
  const unsigned strips = grid_size(cols, kStripColumns);
  int resident = 0;
  CUDA_CHECK(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, column_strip_kernel<Work>, kStripWarps * kWarp, 0));
  // One wave, rounded down: a second wave would be nearly empty. A slice has at least one unrolled round.
  const int64_t wanted = static_cast<int64_t>(cuda.device->multiprocessors) * max(resident, 1) / strips;
  const auto slices = static_cast<unsigned>(max(int64_t{1}, min(wanted, ceil_div(rows, kStripWarps * kStripUnroll))));
  float* const partials = dbias ? cuda.scratch<float>(static_cast<size_t>(slices) * cols) : nullptr;
  column_strip_kernel<Work>
      <<<dim3(strips, slices), dim3(kWarp, kStripWarps), 0, cuda.stream>>>(work, partials, rows, cols);
  CUDA_CHECK_LAUNCH(name);
  if (dbias) add_column_partials(cuda, {{dbias}, 1, partials, static_cast<int>(slices), cols});
}

} // namespace gpt2
