#include "tools/plan/dry_run_backend.h"

#include <algorithm>
#include <stdexcept>

#include "engine/backend/roofline.h"
#include "engine/base/divisors.h"

namespace gpt2 {
namespace {

// An idle H200: cudaMemGetInfo with driver 580.159, 2026-11.
CudaDeviceInfo assumed_gpu() {
  return {.usable = true,
          .why_not = "",
          .name = "NVIDIA H200",
          .compute_capability = 90,
          .free_bytes = 149'000'000'000,
          .uuid = ""};
}

CudaDeviceInfo within_limit(CudaDeviceInfo device, const CudaModelOptions& options) {
  if (options.memory_limit > 0) device.free_bytes = std::min(device.free_bytes, options.memory_limit);
  return device;
}

class DryRunGpu : public Backend {
 public:
  DryRunGpu(const CudaDeviceInfo& device, const CudaModelOptions& options) : device_(device), options_(options) {
    options_.compute_capability = device.compute_capability;
  }

  using Backend::make_model;
  bool is_gpu() const override { return true; }
  std::unique_ptr<Model> make_model(const ModelOptions&, RankGroup&) override {
    throw std::logic_error("a dry run makes no model");
  }
  std::string versions() const override { return device_.name; }
  std::optional<double> roofline(const ModelOptions& model) const override { return gpu_roofline(device_, model); }
  std::optional<double> expected_speed(const ModelOptions& model) const override {
    return gpu_expected_speed(device_, model);
  }

#ifdef GPT2_WITH_CUDA
  int choose_batch_size(const ModelOptions& model, int target, int max_batch_size) override {
    return predict_cuda_batch_size(device_, model, options_, target, max_batch_size > 0 ? max_batch_size : target);
  }
  std::vector<MemoryLine> memory(const ModelOptions& model, int ranks) const override {
    return cuda_model_memory(model, settled(model, options_, device_.free_bytes), ranks);
  }
#else
  // The sizes of docs/benchmarks.md: 65,536 tokens, 32,768 for the largest model.
  int choose_batch_size(const ModelOptions& model, int target, int max_batch_size) override {
    const int tokens = model.config.channels > 1280 ? 32768 : 65536, most = std::max(1, tokens / model.seq_len);
    return largest_divisor_at_most(target, max_batch_size > 0 ? std::min(most, max_batch_size) : most);
  }
#endif

 private:
  const CudaDeviceInfo device_;
  CudaModelOptions options_;
};

CudaDeviceInfo probe_gpu([[maybe_unused]] int device) {
#ifdef GPT2_WITH_CUDA
  return probe_cuda_device(device);
#else
  return {};
#endif
}

} // namespace

DryRunBackend open_dry_run_backend(const BackendOptions& options) {
  const CudaDeviceInfo found = options.device == DeviceKind::cpu ? CudaDeviceInfo{} : probe_gpu(options.cuda.device);
  const bool assumed = options.device == DeviceKind::cuda && !found.usable;
  const CudaDeviceInfo device = within_limit(assumed ? assumed_gpu() : found, options.cuda);
  const GpuReport report{.usable = device.usable,
                         .why_not = device.why_not.empty() ? GpuReport{}.why_not : device.why_not,
                         .name = device.name,
                         .compute_capability = device.compute_capability,
                         .fp8_refusal = ""};
  DryRunBackend dry_run{
      .device = choose_device(options, report), .backend = nullptr, .name = "CPU", .assumed = assumed};
  if (!dry_run.device.gpu) {
    dry_run.backend = make_cpu_backend(options.threads, options.cuda.sharing);
    return dry_run;
  }
  dry_run.name = device.name;
  dry_run.memory_bytes = device.free_bytes;
  dry_run.backend = std::make_unique<DryRunGpu>(device, options.cuda);
  return dry_run;
}

} // namespace gpt2
