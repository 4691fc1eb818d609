// What a doctor asks of GPUs: are their FP8 products right, how fast are they, how do they reach each other?
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/cuda/nvml.h"
#include "engine/model/model.h"

namespace gpt2 {

// 1e-2 is what rounding to BF16 and the tensor cores' own sums explain (tests/gpu/test_gemm_fp8.cpp).
constexpr double kFp8ProductTolerance = 1e-2;

// The three products of a linear layer in FP8 against the same in double: the largest relative error, in norm.
double fp8_product_error(int device);

struct GpuRates {
  double bf16_tflops = 0, fp8_tflops = 0; // products of 8192^3; FP8 0 below compute capability 9.0
  double copy_gb_per_s = 0;               // read and written, 1 GB at a time
  GpuCondition under_load;                // right after them
};
GpuRates measure_gpu_rates(int device);

GpuCondition gpu_condition(int device);
std::string cudnn_version(int device); // "cuDNN 9.19.0", or empty

// All GPUs of this process as ranks of one NCCL communicator.
struct NcclProbe {
  std::string problem;                     // why there is no answer; empty: there is
  std::optional<double> bus_gb_per_s = {}; // all-reduce of 256 MB, as nccl-tests counts it; absent with one GPU
  std::vector<std::string> transports = {}, networks = {}; // as NCCL's own log names them
};
NcclProbe probe_nccl();

// Of one micro-step of a GPU's model, which is trained by it: the shares of FLOPs and of time that are FP8 products.
struct Fp8Share {
  double flops = 0, time = 0;
};
Fp8Share measure_fp8_share(Model& model, const Batch& batch);

} // namespace gpt2
