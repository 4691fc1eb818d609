// Event timing and NVTX ranges around operations.
#include "kernels/cuda/profile.h"

#include <nvtx3/nvToolsExt.h>

#include <algorithm>

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
    auto found = std::find_if(operations.begin(), operations.end(),
                              [&](const OperationTime& operation) { return operation.name == record.name; });
    if (found == operations.end()) found = operations.insert(operations.end(), OperationTime{.name = record.name});
    found->calls += 1;
    found->ms += ms;
    found->bytes += record.bytes;
    found->flops += record.flops;
  }
  std::sort(operations.begin(), operations.end(),
            [](const OperationTime& a, const OperationTime& b) { return a.ms > b.ms; });
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
