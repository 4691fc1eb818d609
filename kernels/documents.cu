// One CTA per sequence. A thread owns a chunk of consecutive tokens; scans over the chunks carry the last separator
// before a chunk and the first one after it.
#include "kernels/documents.h"

#include <cub/block/block_scan.cuh>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/profile.h"
#include "kernels/device/vector.cuh"

namespace gpt2 {
namespace {

constexpr int kThreads = 256;

struct Maximum {
  __device__ int operator()(int a, int b) const { return max(a, b); }
};

__global__ void __launch_bounds__(kThreads) find_documents_kernel(FindDocuments p) {
  using Scan = cub::BlockScan<int, kThreads>;
  __shared__ typename Scan::TempStorage storage;
  const int chunk = (p.T + kThreads - 1) / kThreads;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * p.T;
  const int32_t* const tokens = p.tokens + row;

  int first = min(p.T, static_cast<int>(threadIdx.x) * chunk), last = min(p.T, first + chunk);
  int begin = 0;
  for (int t = first; t < last; ++t)
    if (tokens[t] == p.separator) begin = t;
  Scan(storage).ExclusiveScan(begin, begin, 0, Maximum{});
  for (int t = first; t < last; ++t) {
    if (tokens[t] == p.separator) begin = t;
    p.begin[row + t] = begin;
    if (p.positions) p.positions[row + t] = t - begin;
  }

  // Backward: thread 0 has the last chunk. The scan carries T - separator, whose maximum is the nearest one.
  __syncthreads();
  first = min(p.T, static_cast<int>(kThreads - 1 - threadIdx.x) * chunk), last = min(p.T, first + chunk);
  int distance = 0; // from the end of the sequence to the first separator of the chunk
  for (int t = last - 1; t >= first; --t)
    if (tokens[t] == p.separator) distance = p.T - t;
  Scan(storage).ExclusiveScan(distance, distance, 0, Maximum{});
  for (int t = last - 1; t >= first; --t) {
    p.end[row + t] = p.T - distance;
    if (tokens[t] == p.separator) distance = p.T - t;
  }
}

} // namespace

void find_documents(CudaStream& cuda, const FindDocuments& p) {
  const NvtxRange range(cuda, "find_documents", 20.0 * p.B * p.T);
  find_documents_kernel<<<static_cast<unsigned>(p.B), kThreads, 0, cuda.stream>>>(p);
  CUDA_CHECK_LAUNCH("find_documents");
}

} // namespace gpt2
