// Opens a GPU with its GEMM and attention plans.
#pragma once

#include <memory>

#include "kernels/cuda/cuda_backend.h"

namespace gpt2 {

std::shared_ptr<CudaDevice> open_device(const CudaOptions& options);

} // namespace gpt2
