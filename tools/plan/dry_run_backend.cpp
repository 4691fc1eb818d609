#include "tools/plan/dry_run_backend.h"

#include <algorithm>
#include <stdexcept>

#include "engine/backend/roofline.h"
#include "engine/base/error.h"
#include "engine/model/batch_sizes_that_fit.h"
#include "tools/plan/gpu_table.h"

namespace gpt2 {
namespace {

CudaDeviceInfo within_limit(CudaDeviceInfo device, const CudaModelOptions& options) {
  if (options.memory_limit > 0) device.free_bytes = std::min(device.free_bytes, options.memory_limit);
  return device;
}

class DryRunGpu : public Backend {
 public:
  DryRunGpu(const CudaDeviceInfo& device, const KnownGpu* known, const CudaModelOptions& options)
      : device_(device), known_(known), options_(options) {
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
    const std::optional<double> measured = gpu_expected_speed(device_, model);
    return !measured && known_ ? estimated_speed(*known_, model) : measured;
  }

#ifdef GPT2_WITH_CUDA
  int choose_batch_size(const ModelOptions& model, int target, int max_batch_size) override {
    return predict_cuda_batch_size(device_, model, options_, target, max_batch_size > 0 ? max_batch_size : target);
  }
  std::vector<MemoryLine> memory(const ModelOptions& model, int ranks) const override {
    return cuda_model_memory(model, settled(model, options_, device_.free_bytes, ranks), ranks);
  }
#else
  // The sizes of docs/benchmarks.md: 65,536 tokens, 32,768 for the largest model; fewer where they do not fit.
  int choose_batch_size(const ModelOptions& model, int target, int max_batch_size) override {
    const int tokens = model.config.channels > 1280 ? 32768 : 65536, most = std::max(1, tokens / model.seq_len);
    ModelOptions one = model;
    one.batch_size = 1;
    const Recompute recompute = settled_recompute(one, 1);
    const auto bytes_of = [&](int batch_size) {
      one.batch_size = batch_size;
      return device_bytes(estimated_memory(one, recompute, 1));
    };
    const std::vector<int> sizes = batch_sizes_that_fit(
        target, max_batch_size > 0 ? std::min(most, max_batch_size) : most, device_.free_bytes, bytes_of);
    return sizes.empty() ? 1 : sizes.front(); // none: the plan refuses the memory of one
  }
  std::vector<MemoryLine> memory(const ModelOptions& model, int ranks) const override {
    return estimated_memory(model, settled_recompute(model, ranks), ranks);
  }
  Recompute settled_recompute(const ModelOptions& model, int ranks) const {
    if (options_.recompute != Recompute::automatic) return options_.recompute;
    const bool fits = device_bytes(estimated_memory(model, Recompute::none, ranks)) <= device_.free_bytes;
    return fits ? Recompute::none : Recompute::block;
  }
#endif

 private:
  const CudaDeviceInfo device_;
  const KnownGpu* const known_; // null: unknown
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

DryRunBackend open_dry_run_backend(const BackendOptions& options, const std::string& gpu) {
  if (!gpu.empty() && options.device == DeviceKind::cpu)
    throw Error(ExitCode::usage, "--for " + gpu + " and --device cpu contradict each other", "give one of the two");
  const bool probes = gpu.empty() && options.device != DeviceKind::cpu;
  const CudaDeviceInfo found = probes ? probe_gpu(options.cuda.device) : CudaDeviceInfo{};
  const bool assumed = !gpu.empty() || (options.device == DeviceKind::cuda && !found.usable);
  const KnownGpu* const known = assumed ? &find_known_gpu(gpu.empty() ? "h200" : gpu) : nullptr;
  const CudaDeviceInfo device = within_limit(known ? device_of(*known) : found, options.cuda);
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
  dry_run.backend = std::make_unique<DryRunGpu>(device, known, options.cuda);
  const bool measured = !known || std::string(known->key) == "h200"; // another GPU of this machine has no figure
  dry_run.speed_from = measured ? "measured on one H200, docs/benchmarks.md"
                                : "an estimate: an H200's measured speed, scaled by peak TFLOP/s and bandwidth";
  if (known) {
    dry_run.math_rate = math_rate(*known, Precision::bf16);
    dry_run.figures = figures_of(*known);
  }
  return dry_run;
}

} // namespace gpt2
