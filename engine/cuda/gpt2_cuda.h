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
  std::string why_not;        // one line for the user when it is not usable
  std::string name;           // "NVIDIA H200"
  int compute_capability = 0; // 90 for Hopper
  int64_t free_bytes = 0;
  std::string uuid; // the same whatever CUDA_VISIBLE_DEVICES calls it
};

// Without a driver or a GPU, usable is false and why_not says why. Throws Error(device) only for a usable GPU for which
// this program was not compiled: training on the CPU instead would not be what anybody wants.
CudaDeviceInfo probe_cuda_device(int device);

// Multiplies once in FP8 in each of the three ways that training needs. Empty if that works, else why not.
std::string fp8_refusal(int device);

int cuda_device_count();             // 0 without a driver
int cuda_runtime_version();          // 13000 for CUDA 13.0
std::string cuda_library_versions(); // "cuBLASLt 13.1.0, NCCL 2.28.3"

// Throws Error(device) if the memory does not suffice, saying what to change.
std::unique_ptr<Model> make_cuda_model(const ModelOptions& options, const CudaModelOptions& cuda_options);

// One of the ranks of `group`, which must outlive it. Every rank makes its own at the same time; rank 0 tunes, and
// hands the plans to the others.
std::unique_ptr<Model> make_cuda_model(const ModelOptions& options, const CudaModelOptions& cuda_options,
                                       RankGroup& group);

// Device memory that such a model takes in one process, before anything is allocated.
int64_t cuda_model_bytes(const ModelOptions& options, const CudaModelOptions& cuda_options);
// The same by purpose, of one of so many ranks. Needs no GPU. Throws Error(usage) for shapes that no GPU here takes.
std::vector<MemoryLine> cuda_model_memory(const ModelOptions& options, const CudaModelOptions& cuda_options, int ranks);

// The micro-batch that trains fastest among the divisors of `target` sequences that fit, measured in a few seconds and
// remembered beside the plans. Deterministic runs take the largest that fits, without timing.
int choose_cuda_batch_size(ModelOptions options, const CudaModelOptions& cuda_options, int target, int max_batch_size);
// What it would answer on `device` without timing: what is remembered, else the largest that fits. Needs no GPU.
int plan_cuda_batch_size(const CudaDeviceInfo& device, const ModelOptions& options,
                         const CudaModelOptions& cuda_options, int target, int max_batch_size);

} // namespace gpt2
