// NVTX ranges for Nsight. With a Profile, CUDA events time each operation, and its bytes and FLOPs give GB/s, TFLOP/s
// and the share of the step.
#pragma once

#include <cuda_runtime.h>

#include <string>
#include <vector>

#include "kernels/backend.h"

namespace gpt2 {

struct OperationTime {
  std::string name;
  int calls = 0;
  double ms = 0;    // sum over calls
  double bytes = 0; // minimum device memory traffic, sum over calls
  double flops = 0;
};

class Profile {
 public:
  explicit Profile(cudaStream_t stream) : stream_(stream) {}
  ~Profile();
  Profile(const Profile&) = delete;

  void begin(const char* name, double bytes, double flops);
  void end();
  std::vector<OperationTime> results(); // waits for the stream; sorted by time

 private:
  struct Record {
    const char* name;
    double bytes, flops;
    cudaEvent_t start, stop;
  };
  cudaStream_t stream_;
  std::vector<Record> records_;
};

inline double gemm_flops(int64_t m, int64_t n, int64_t k) {
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
}

// First line of a launcher: NvtxRange range(cuda, "gelu_forward", 4.0 * rows * cols);
class NvtxRange {
 public:
  NvtxRange(CudaStream& cuda, const char* name, double bytes, double flops = 0);
  ~NvtxRange();
  NvtxRange(const NvtxRange&) = delete;

 private:
  CudaStream& cuda_;
};

} // namespace gpt2
