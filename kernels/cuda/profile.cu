// Event timing and NVTX ranges around operations.
#include "kernels/cuda/profile.h"

#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <functional>

#include "kernels/cuda/cuda_backend.h"

namespace gpt2 {

Profile::~Profile() {
  for (Record& record : records_) {
    cudaEventDestroy(record.start);
    cudaEventDestroy(record.stop);
  }
}

void Profile::begin(const char* name, double bytes, double flops) {
  Record record{name, bytes, flops, nullptr, nullptr};
  CUDA_CHECK(cudaEventCreate(&record.start));
  CUDA_CHECK(cudaEventCreate(&record.stop));
  CUDA_CHECK(cudaEventRecord(record.start, stream_));
  records_.push_back(record);
}

// Called from destructors: results() reports errors.
void Profile::end() { cudaEventRecord(records_.back().stop, stream_); }

std::vector<OperationTime> Profile::results() {
  CUDA_CHECK(cudaStreamSynchronize(stream_));
  std::vector<OperationTime> operations;
  for (const Record& record : records_) {
    float ms = 0;
    CUDA_CHECK(cudaEventElapsedTime(&ms, record.start, record.stop));
    auto found = std::ranges::find(operations, record.name, &OperationTime::name);
    if (found == operations.end()) found = operations.insert(operations.end(), OperationTime{.name = record.name});
    found->calls += 1;
    found->ms += ms;
    found->bytes += record.bytes;
    found->flops += record.flops;
  }
  std::ranges::sort(operations, std::ranges::greater{}, &OperationTime::ms);
  return operations;
}

NvtxRange::NvtxRange(CudaStream& cuda, const char* name, double bytes, double flops) : cuda_(cuda) {
  nvtxRangePushA(name);
  if (cuda_.profile) cuda_.profile->begin(name, bytes, flops);
}

NvtxRange::~NvtxRange() {
  if (cuda_.profile) cuda_.profile->end();
  nvtxRangePop();
}

} // namespace gpt2
