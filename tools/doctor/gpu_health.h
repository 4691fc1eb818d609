// GPU checks for bin/doctor: FP8 GEMM accuracy, GEMM and copy rates, NCCL bandwidth.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/cuda/nvml.h"
#include "engine/model/model.h"

namespace gpt2 {

// 1e-2: rounding to BF16 and the tensor cores' accumulation (tests/gpu/test_gemm_fp8.cpp).
constexpr double kFp8GemmTolerance = 1e-2;

// The three GEMMs of a linear layer in FP8 against double: the largest relative error in norm.
double fp8_gemm_error(int device);

struct GpuRates {
  double bf16_tflops = 0, fp8_tflops = 0; // GEMMs of 8192^3; FP8: 0 below compute capability 9.0
  double copy_gb_per_s = 0;               // read + write, 1 GB copies
  GpuCondition under_load;                // right after the measurements
};
GpuRates measure_gpu_rates(int device);

GpuCondition gpu_condition(int device);
std::string cudnn_version(int device); // "cuDNN 9.19.0", or empty

// All GPUs of this process as ranks of one NCCL communicator.
struct NcclProbe {
  std::string problem;                     // the error; empty: none
  std::optional<double> bus_gb_per_s = {}; // all-reduce of 256 MB, as nccl-tests counts it; absent with one GPU
  std::vector<std::string> transports = {}, networks = {}; // as named in NCCL's log
};
NcclProbe probe_nccl();

// The shares of FLOPs and time of one micro-step that are FP8 GEMMs. Changes the model's state.
struct Fp8Share {
  double flops = 0, time = 0;
};
Fp8Share measure_fp8_share(Model& model, const Batch& batch);

} // namespace gpt2
