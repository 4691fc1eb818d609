// The GPU as a backend; in a build without CUDA, a report that there is none.
#include <stdexcept>

#include "engine/backend/backend.h"
#include "engine/backend/light_speed.h"

namespace gpt2 {

#ifdef GPT2_WITH_CUDA
namespace {

class CudaBackend : public Backend {
 public:
  explicit CudaBackend(const CudaModelOptions& options)
      : options_(options), device_(probe_cuda_device(options.device)) {}

  bool is_gpu() const override { return true; }
  std::unique_ptr<Model> make_model(const ModelOptions& model) override { return make_cuda_model(model, options_); }
  int choose_batch_size(const ModelOptions& model, int target, int max_batch_size) override {
    return choose_cuda_batch_size(model, options_, target, max_batch_size > 0 ? max_batch_size : target);
  }
  std::optional<double> light_speed(const ModelOptions& model) const override {
    return gpu_light_speed(device_, model);
  }

 private:
  CudaModelOptions options_;
  CudaDeviceInfo device_;
};

} // namespace

std::unique_ptr<Backend> make_cuda_backend(const CudaModelOptions& options) {
  return std::make_unique<CudaBackend>(options);
}

GpuReport find_gpu(const BackendOptions& options) {
  const CudaDeviceInfo found = probe_cuda_device(options.cuda.device);
  const bool try_fp8 =
      found.usable && options.precision == PrecisionChoice::fp8 && found.compute_capability >= kFp8ComputeCapability;
  return {found.usable, found.why_not, found.name, found.compute_capability,
          try_fp8 ? fp8_refusal(options.cuda.device) : ""};
}

std::string cuda_version() {
  const int version = cuda_runtime_version();
  return "CUDA " + std::to_string(version / 1000) + "." + std::to_string(version / 10 % 100);
}

#else

std::unique_ptr<Backend> make_cuda_backend(const CudaModelOptions&) {
  throw std::logic_error("this build has no CUDA engine");
}
GpuReport find_gpu(const BackendOptions&) { return {}; }
std::string cuda_version() { return "CPU only"; }

#endif

} // namespace gpt2
