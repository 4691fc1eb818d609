// GPUs that --plan --for knows without having them.
#pragma once

#include <string>
#include <vector>

#include "engine/cuda/gpt2_cuda.h"
#include "engine/model/model.h"

namespace gpt2 {

// Figures of the vendor's data sheets. TFLOP/s are dense and of tensor cores that accumulate in FP32.
struct KnownGpu {
  const char* key; // for --for
  const char* name;
  double gib; // total memory, as cudaMemGetInfo() reports it
  int compute_capability, sms;
  double bandwidth; // TB/s
  double bf16, fp8; // TFLOP/s; 0: not supported
};

// Ignores case, blanks and dashes, NVIDIA, GeForce and RTX. Throws Error(usage) that lists the known ones.
const KnownGpu& find_known_gpu(const std::string& name);

CudaDeviceInfo device_of(const KnownGpu& gpu); // idle

// "132 SMs, 3.35 TB/s, 989 TFLOP/s in BF16, 1979 in FP8"
std::string figures_of(const KnownGpu& gpu);

// Its peak TFLOP/s over an H200's.
double math_rate(const KnownGpu& gpu, Precision precision);

// Tokens per second of training: an estimate. The step of an H200, measured, whose math is scaled by peak TFLOP/s and
// whose memory traffic by bandwidth.
double estimated_speed(const KnownGpu& gpu, const ModelOptions& model);

// Bytes of device memory without CUDA's own: an estimate for builds without the CUDA engine, which counts them.
std::vector<MemoryLine> estimated_memory(const ModelOptions& model, Recompute recompute, int ranks);

} // namespace gpt2
