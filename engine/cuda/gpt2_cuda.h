// GPT-2 on one NVIDIA GPU, in BF16 or FP8 with FP32 master weights, moments, gradients and statistics.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/cuda/cuda_options.h"
#include "engine/model/model.h"
#include "engine/ranks/communicator.h"
#include "kernels/backend.h"

namespace gpt2 {

struct CudaDeviceInfo {
  bool usable = false;
  std::string why_not;        // one line for the user unless usable
  std::string name;           // "NVIDIA H200"
  int compute_capability = 0; // 90 for Hopper
  int64_t free_bytes = 0;
  std::string uuid; // independent of CUDA_VISIBLE_DEVICES
};

// Without a driver or a GPU, usable is false. Throws Error(device) for a usable GPU for which this program was not
// compiled: no silent fallback to the CPU.
CudaDeviceInfo probe_cuda_device(int device);

// Runs the three FP8 GEMMs of a linear layer. Empty if they work, else the error.
std::string fp8_refusal(int device);

void limit_cuda_memory(int64_t bytes); // that this process allocates (kernels/cuda/cuda_backend.h); 0: no limit

int cuda_device_count();             // 0 without a driver
int cuda_runtime_version();          // 13000 for CUDA 13.0
std::string cuda_library_versions(); // "cuBLASLt 13.1.0, NCCL 2.28.3"

// Throws Error(device) with a hint if the model does not fit.
std::unique_ptr<Model> make_cuda_model(const ModelOptions& options, const CudaModelOptions& cuda_options);

// The model of one rank. Collective over `group`, which must outlive it; rank 0 tunes and broadcasts the GEMM plans.
std::unique_ptr<Model> make_cuda_model(const ModelOptions& options, const CudaModelOptions& cuda_options,
                                       RankGroup& group);

// The options with --recompute auto settled: none if the model fits `free_bytes` without, else block. Both have the
// same bits.
CudaModelOptions settled(const ModelOptions& options, CudaModelOptions cuda_options, int64_t free_bytes, int ranks);

// Device memory of such a model in one process, computed without allocating.
int64_t cuda_model_bytes(const ModelOptions& options, const CudaModelOptions& cuda_options);
// The same by purpose, for one of `ranks` ranks. Needs no GPU. Throws Error(usage) for shapes without GPU kernels.
std::vector<MemoryLine> cuda_model_memory(const ModelOptions& options, const CudaModelOptions& cuda_options, int ranks);

// The fastest micro-batch among the divisors of `target` sequences that fit: timed in a few seconds, cached next to the
// GEMM plans. Deterministic runs take the largest that fits, without timing.
int choose_cuda_batch_size(ModelOptions options, const CudaModelOptions& cuda_options, int target, int max_batch_size);
// The same without timing, for a dry run: the cached answer, else the largest that fits. Needs no GPU.
int predict_cuda_batch_size(const CudaDeviceInfo& device, const ModelOptions& options,
                            const CudaModelOptions& cuda_options, int target, int max_batch_size);

} // namespace gpt2
