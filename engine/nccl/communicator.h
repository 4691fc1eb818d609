// Collectives between GPUs: NCCL, opened with dlopen, in non-blocking mode, on one stream.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <string>

#include "engine/ranks/communicator.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/memory.h"

namespace gpt2 {

struct NcclVersion {
  bool found = false;
  std::string text; // "2.28.3"; if not found, the error
};
NcclVersion nccl_version();

class NcclLibrary;

class NcclCommunicator final : public Communicator {
 public:
  // Runs on the stream of `cuda`; `group` and `cuda` must outlive it. `largest_part`: elements per rank of the largest
  // BF16 exchange; 0: none. Throws Error(communication) without NCCL, or if the ranks cannot connect.
  NcclCommunicator(RankGroup& group, CudaStream& cuda, int64_t largest_part);
  ~NcclCommunicator() override;

  int rank() const override { return group_.rank(); }
  int ranks() const override { return group_.ranks(); }

  void reduce_scatter(float* buffer, int64_t count, GradExchange exchange) override;
  void all_gather(void* buffer, int64_t bytes) override;
  void all_reduce_sum(float* values, int64_t count) override;
  void all_reduce_sum(double* values, int64_t count) override;
  void all_reduce_max(uint32_t* values, int64_t count) override;

  // Blocks until `shared`, an event after a collective. Time before `own` counts as this rank's work, time after it as
  // waiting for other ranks. Throws Error(communication) if a rank is lost meanwhile.
  void wait(const Event& own, const Event& shared);
  void abort_if_lost() noexcept; // ends collectives that a lost rank would block forever; takes seconds

 private:
  void poll();
  void abort() noexcept;
  void settle(int result, const char* what); // waits while NCCL reports "in progress", throws on an error
  void exchange_bf16(float* buffer, int64_t count);

  RankGroup& group_;
  CudaStream& cuda_;
  const NcclLibrary& nccl_;
  void* comm_ = nullptr;
  std::unique_ptr<DeviceMemory> sent_, received_; // (ranks, largest_part) BF16 each
};

} // namespace gpt2
