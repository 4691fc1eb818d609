// The CUDA backend. In a build without CUDA: stubs that report no GPU.
#include <cstdlib>
#include <stdexcept>

#include "engine/backend/backend.h"
#include "engine/backend/roofline.h"
#include "engine/base/error.h"
#include "engine/cuda/self_check.h"
#include "engine/system/output_file.h"

namespace gpt2 {

#ifdef GPT2_WITH_CUDA
namespace {

class CudaBackend : public Backend {
 public:
  explicit CudaBackend(const CudaModelOptions& options)
      : options_(options), device_(probe_cuda_device(options.device)) {
    refuse_foreign_file(options.timeline, kTimelineOutput, false);
  }

  using Backend::make_model;
  bool is_gpu() const override { return true; }
  std::unique_ptr<Model> make_model(const ModelOptions& model, RankGroup& group) override {
    if (!group.alone()) check_devices_differ(group);
    return make_cuda_model(model, options_, group);
  }
  std::string versions() const override {
    return device_.name + ", " + cuda_version() + ", " + cuda_library_versions();
  }
  int choose_batch_size(const ModelOptions& model, int target, int max_batch_size) override {
    return choose_cuda_batch_size(model, options_, target, max_batch_size > 0 ? max_batch_size : target);
  }
  std::optional<double> roofline(const ModelOptions& model) const override { return gpu_roofline(device_, model); }
  std::optional<double> expected_speed(const ModelOptions& model) const override {
    if (options_.kernels == KernelChoice::general) return std::nullopt; // not measured
    return gpu_expected_speed(device_, model);
  }
  std::vector<MemoryLine> memory(const ModelOptions& model, int ranks) const override {
    return cuda_model_memory(model, settled(model, options_, device_.free_bytes, ranks), ranks);
  }

 private:
  // Two ranks on one GPU run at half speed, and NCCL refuses them unless their host ids differ (--share_gpu).
  void check_devices_differ(RankGroup& group) const {
    const std::vector<std::string> all = group.all_gather(device_.uuid);
    for (int rank = 0; rank < group.ranks(); ++rank) {
      for (int other = 0; other < rank; ++other) {
        if (all[static_cast<size_t>(rank)] != all[static_cast<size_t>(other)]) continue;
        if (options_.share_device) {
          ::setenv("NCCL_HOSTID", ("rank" + std::to_string(group.rank())).c_str(), 0);
          ::setenv("NCCL_SOCKET_IFNAME", "lo", 0);
          return;
        }
        throw AgreedError(ExitCode::communication,
                          group.name_of(other) + " and " + group.name_of(rank) + " use the same GPU",
                          "start one rank for each GPU, and let every rank see them all or only its own "
                          "(CUDA_VISIBLE_DEVICES)");
      }
    }
  }

  CudaModelOptions options_;
  CudaDeviceInfo device_;
};

} // namespace

std::unique_ptr<Backend> make_cuda_backend(const CudaModelOptions& options) {
  limit_cuda_memory(options.memory_limit);
  return std::make_unique<CudaBackend>(options);
}

GpuReport find_gpu(const BackendOptions& options) {
  const CudaDeviceInfo found = probe_cuda_device(options.cuda.device);
  const bool try_fp8 =
      found.usable && options.precision == PrecisionChoice::fp8 && found.compute_capability >= kFp8ComputeCapability;
  GpuReport report{found.usable, found.why_not, found.name, found.compute_capability,
                   try_fp8 ? fp8_refusal(options.cuda.device) : ""};
  if (found.usable && options.self_check && needs_self_check(found.compute_capability)) {
    const SelfCheckVerdict verdict = self_check(options.cuda);
    report.self_check = verdict.note;
    if (report.fp8_refusal.empty()) report.fp8_refusal = verdict.fp8_refusal;
  }
  return report;
}

int gpu_count() { return cuda_device_count(); }

std::string cuda_version() {
  const int version = cuda_runtime_version();
  return "CUDA " + std::to_string(version / 1000) + "." + std::to_string(version / 10 % 100);
}

#else

std::unique_ptr<Backend> make_cuda_backend(const CudaModelOptions&) {
  throw std::logic_error("this build has no CUDA engine");
}
GpuReport find_gpu(const BackendOptions&) { return {}; }
int gpu_count() { return 0; }
std::string cuda_version() { return "CPU only"; }

#endif

} // namespace gpt2
