#include "engine/backend/backend.h"

#include "engine/base/error.h"

namespace gpt2 {
namespace {

Precision cpu_precision(const BackendOptions& options, std::vector<std::string>& notes) {
  if (options.precision == PrecisionChoice::fp8) return Precision::fp8;
  if (options.precision == PrecisionChoice::bf16) notes.push_back("the CPU engine has no BF16: using FP32");
  return Precision::fp32;
}

Precision gpu_precision(const BackendOptions& options, const GpuReport& gpu, std::vector<std::string>& notes) {
  if (options.precision == PrecisionChoice::fp32) {
    throw Error(ExitCode::usage, "--precision fp32 needs the CPU engine: a GPU trains in bf16 or fp8",
                "use --precision bf16 (with FP32 master weights), or --device cpu");
  }
  if (options.precision != PrecisionChoice::fp8) return Precision::bf16;
  if (gpu.compute_capability < kFp8ComputeCapability) {
    notes.push_back(gpu.name + " has compute capability " + std::to_string(gpu.compute_capability / 10) + "." +
                    std::to_string(gpu.compute_capability % 10) + ", FP8 needs 8.9: training in BF16");
    return Precision::bf16;
  }
  if (!gpu.fp8_refusal.empty()) {
    notes.push_back("FP8 GEMMs fail on " + gpu.name + " (" + gpu.fp8_refusal + "): training in BF16");
    return Precision::bf16;
  }
  return Precision::fp8;
}

} // namespace

std::unique_ptr<Model> Backend::make_model(const ModelOptions& options) {
  RankGroup alone; // no model keeps a reference to it
  return make_model(options, alone);
}

DeviceChoice choose_device(const BackendOptions& options, const GpuReport& gpu) {
  DeviceChoice choice;
  if (options.device == DeviceKind::cuda && !gpu.usable) {
    throw Error(ExitCode::device, "--device cuda: " + gpu.why_not, "use --device cpu, or --device auto");
  }
  choice.gpu = options.device != DeviceKind::cpu && gpu.usable;
  if (options.device == DeviceKind::automatic && !gpu.usable) {
    choice.notes.push_back("no GPU (" + gpu.why_not + "): using the CPU");
  }
  if (choice.gpu && !gpu.self_check.empty()) choice.notes.push_back(gpu.name + " has " + gpu.self_check);
  choice.precision = choice.gpu ? gpu_precision(options, gpu, choice.notes) : cpu_precision(options, choice.notes);
  if (choice.precision == Precision::fp8 && options.mxfp8) choice.notes.emplace_back(kMxfp8Sentence);
  return choice;
}

OpenBackend open_backend(const BackendOptions& options) {
  const GpuReport gpu = options.device == DeviceKind::cpu ? GpuReport{} : find_gpu(options);
  OpenBackend open{.device = choose_device(options, gpu), .backend = nullptr};
  open.backend =
      open.device.gpu ? make_cuda_backend(options.cuda) : make_cpu_backend(options.threads, options.cuda.sharing);
  return open;
}

} // namespace gpt2
