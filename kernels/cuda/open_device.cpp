#include "kernels/cuda/open_device.h"

#include "kernels/cuda/attention_cudnn.h"
#include "kernels/cuda/gemm_plans.h"

namespace gpt2 {

std::shared_ptr<CudaDevice> open_device(const CudaOptions& options) {
  auto device = std::make_shared<CudaDevice>(options);
  device->gemms = std::make_shared<GemmPlans>(*device);
  device->attentions = std::make_shared<AttentionPlans>(*device);
  return device;
}

} // namespace gpt2
