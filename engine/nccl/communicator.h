// The communicator of GPUs: NCCL, opened at run time, in non-blocking mode. All of its work goes to one stream.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <string>

#include "engine/ranks/communicator.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/memory.h"

namespace gpt2 {

// "2.28.3", or why there is none.
struct NcclVersion {
  bool found = false;
  std::string text;
};
NcclVersion nccl_version();

class NcclLibrary;

class NcclCommunicator final : public Communicator {
 public:
  // `group` and `cuda`, whose stream it works on, must outlive it. `largest_part`: elements of the largest part that
  // will be exchanged in BF16; 0: none. Throws Error(communication) without NCCL, or if the ranks cannot connect.
  NcclCommunicator(RankGroup& group, CudaStream& cuda, int64_t largest_part);
  ~NcclCommunicator() override;

  int rank() const override { return group_.rank(); }
  int ranks() const override { return group_.ranks(); }

  void reduce_scatter(float* buffer, int64_t count, GradExchange exchange) override;
  void all_gather(void* buffer, int64_t bytes) override;
  void all_reduce_sum(float* values, int64_t count) override;
  void all_reduce_sum(double* values, int64_t count) override;
  void all_reduce_max(uint32_t* values, int64_t count) override;

  // Returns when `shared`, which takes all ranks, has happened; until `own` has, this rank works and does not wait.
  // Throws Error(communication) if a rank is lost meanwhile.
  void wait(const Event& own, const Event& shared);
  void abort_if_lost() noexcept; // work that waits for a lost rank would never end; takes seconds

 private:
  void poll();
  void abort() noexcept;
  void settle(int result, const char* what); // what NCCL answered at once, and what it answers in the end
  void exchange_bf16(float* buffer, int64_t count);

  RankGroup& group_;
  CudaStream& cuda_;
  const NcclLibrary& nccl_;
  void* comm_ = nullptr;
  std::unique_ptr<DeviceMemory> sent_, received_; // (ranks, largest_part) BF16 each
};

} // namespace gpt2
